"""Units at the end of an answer: '12cm²', '12\\text{ cm}^2', '12 square centimetres' and '12°' are 12 of something.

Knows spellings, not sizes: 120 mm is not 12 cm here.
"""

import re
from dataclasses import dataclass

_LENGTHS = {
    "mm": "mm|millimet(?:er|re)s?|毫米",
    "cm": "cm|centimet(?:er|re)s?|厘米",
    "dm": "dm|decimet(?:er|re)s?|分米",
    "m": "m|met(?:er|re)s?|米",
    "km": "km|kilomet(?:er|re)s?|千米|公里",
    "in": "in|inch(?:es)?",
    "ft": "ft|foot|feet",
    "yd": "yds?|yards?",
    "mi": "mi|miles?",
    "unit": "units?",
}
_OTHERS = {
    "°": "deg|degrees?|度",
    "s": "s|secs?|seconds?",
    "min": "mins?|minutes?",
    "h": "h|hrs?|hours?",
    "day": "days?",
    "week": "weeks?",
    "month": "months?",
    "year": "years?",
    "g": "g|grams?",
    "kg": "kg|kilograms?",
    "mg": "mg|milligrams?",
    "lb": "lbs?|pounds?",
    "l": "l|lit(?:er|re)s?",
    "ml": "ml|millilit(?:er|re)s?",
    "dollar": "dollars?",
    "cent": "cents?",
    "km/h": "km/h|kmh|kph",
    "m/s": "m/s",
    "mph": "mph",
}
_SPELLINGS = "|".join(f"(?:{spelling})" for spelling in (*_LENGTHS.values(), *_OTHERS.values()))
_NAMES = [(name, re.compile(spelling, re.IGNORECASE)) for name, spelling in (_LENGTHS | _OTHERS).items()]
_PREFIXES = {"square": 2, "sq": 2, "平方": 2, "cubic": 3, "cu": 3, "立方": 3}
_POWER = r"(?:\s*(?:\^\s*\{?\s*(?P<power>[23])\s*\}?|(?P<sign>[²³])))?"
_PREFIX = r"(?:(?P<prefix>(?:square|sq|cubic|cu)\.?\s+|平方|立方))?"

_DEGREE = re.compile(r"(?P<value>.*\S)\s*(?:\^\s*\{?\s*\\circ\s*\}?|\^?\s*\\degree|\^?\s*°)", re.DOTALL)
_WORD = re.compile(
    rf"(?P<value>.*?[^\sA-Za-z\\])(?P<space>\s*){_PREFIX}(?P<word>{_SPELLINGS}){_POWER}\.?", re.IGNORECASE | re.DOTALL
)
_TEXT = re.compile(
    rf"(?P<value>.*\S)\s*\\(?:text|textrm|mathrm|mbox|rm)\s*\{{\s*(?P<text>[^{{}}]*?)\s*\.?\s*\}}{_POWER}", re.DOTALL
)
_ALONE = re.compile(rf"{_PREFIX}(?P<word>{_SPELLINGS}){_POWER}", re.IGNORECASE)


@dataclass(frozen=True)
class Unit:
    """A unit in one spelling, with its power; `is_sure` is false for a letter that may as well be a variable: 12m."""

    name: str
    power: int = 1
    is_sure: bool = True

    def is_same(self, other: "Unit") -> bool:
        return (self.name, self.power) == (other.name, other.power)


def split_unit(answer: str) -> tuple[str, Unit | None]:
    """The answer without its trailing unit, and the unit.

    >>> split_unit(r"12\\text{cm}^2")
    ('12', Unit(name='cm', power=2, is_sure=True))
    >>> split_unit("12 sq. metres")[1].is_same(split_unit("12 m²")[1])
    True
    >>> split_unit("x+1")
    ('x+1', None)
    """
    if match := _DEGREE.fullmatch(answer):
        return match["value"], Unit("°")
    if match := _TEXT.fullmatch(answer):
        return match["value"], _unit_in_text(match)
    if match := _WORD.fullmatch(answer):
        is_sure = len(match["word"]) > 1 or bool(match["space"]) or not match["word"].isascii()
        return match["value"], Unit(_name(match["word"]), _power(match), is_sure)
    return answer, None


def _unit_in_text(match: re.Match[str]) -> Unit:
    """Whatever stands in \\text after a value is a unit: apples too."""
    inner = _ALONE.fullmatch(match["text"])
    if inner is None:
        return Unit(match["text"].lower(), _power(match))
    return Unit(_name(inner["word"]), max(_power(inner), _power(match)))


def _name(word: str) -> str:
    return next(name for name, spelling in _NAMES if spelling.fullmatch(word))


def _power(match: re.Match[str]) -> int:
    parts = match.groupdict()
    if parts.get("prefix"):
        return _PREFIXES[parts["prefix"].strip().rstrip(".").lower()]
    return int((parts["power"] or parts["sign"] or "1").translate(str.maketrans("²³", "23")))
