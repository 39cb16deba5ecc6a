"""Finding the answer in a response, and deciding whether it means the same as the ground truth.

For reward files: `from easyr1.rewards.grading import last_boxed, same_answer`. Every function takes any text whatever,
never raises on it, and is fast: what a model writes while it learns can be a hundred thousand braces or 9^9^9^9.
"""

import re
import signal
import threading
from collections.abc import Callable
from fractions import Fraction
from types import FrameType
from typing import Any

from easyr1.rewards.units import split_unit

MAX_CHARS = 300  # longer answers are compared as text
MAX_SYMBOLIC_CHARS = 120  # longer expressions are not simplified
MAX_POWERS = 3
MAX_ROOTS = 4
SYMBOLIC_LIMIT_S = 0.4  # of processor time; ordinary answers take a tenth of it

_BOX = re.compile(r"\\boxed\s{0,4}\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_TAG = re.compile(r"<\s{0,4}(/?)\s{0,4}(think|answer)\s{0,4}>")
_DECIMAL = re.compile(r"[-+]?(?=\.?\d)(?:\d{1,3}(?:,\d{3})+|\d{1,40})?(?:\.\d{0,40})?(?:[eE][-+]?\d{1,2})?")
_FRACTION = re.compile(r"(-?)(?:\\[dt]?frac\{(\d{1,20})\}\{(\d{1,20})\}|(\d{1,20})/(\d{1,20}))")
_DANGEROUS = re.compile(
    r"""\*\*|//|!|__|['"<>:;@#&|~?`]"""  # Python, and factorials
    r"""|\d{31}|\d\s*e\s*[-+]?\d{3}"""  # very large numbers
    r"""|\^[\s{(+-]*\d{2}|\^[\s{(+-]*\w+[\s})]*\^""",  # powers of 10 and more, powers of powers
    re.IGNORECASE,
)
_CALL = re.compile(r"(?<![A-Za-z])([A-Za-z]{2,})\s*\(")
_FUNCTIONS = frozenset(
    ("sqrt", "sin", "cos", "tan", "ln", "log", "exp", "pi", "frac", "left", "right", "cdot", "times")
)
_FLAT_LIST = re.compile(r"[(\[]?[^()\[\]]*[)\]]?")
_WRAPPERS = (("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("__", "__"), ("`", "`"), ('"', '"'))
_SPACES = re.compile(r"\\[,!;: ]|[\s~\u00a0\u202f]+")


def plain_tags(response: str) -> str:
    """The response with spaces inside its think and answer tags removed, as some models write them.

    >>> plain_tags("< think >a</ think>")
    '<think>a</think>'
    """
    return _TAG.sub(r"<\1\2>", response)


def between(text: str, start: str, stop: str) -> str | None:
    """What stands between the last `stop` and the `start` before it; None if they are not there.

    >>> between("<answer>1</answer><answer>2</answer>", "<answer>", "</answer>")
    '2'
    """
    before, closed, _ = text.rpartition(stop)
    _, opened, content = before.rpartition(start)
    return content if closed and opened else None


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...}; None if there is none, or if the last one is never closed.

    >>> last_boxed(r"\boxed{1} so \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    start = text.rfind("\\boxed")
    opening = _BOX.match(text, start) if start >= 0 else None
    if opening is None:
        return None
    depth = 1
    for brace in _BRACE.finditer(text, opening.end()):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)  # \{ and \} are letters of a set, not braces
        if depth == 0:
            return text[opening.end() : brace.start()].strip()
    return None


def same_answer(given: Any, truth: Any) -> bool:
    r"""Whether a given answer means the same as the ground truth. A missing or empty answer never does.

    Numbers are compared by value, 1,000 = 1000.0. A unit at the end may be missing on either side, but two different
    units differ. A percentage is its number and its fraction: 60% = 60 = 0.6. All else is decided by mathruler, which
    wants integers as integers and fractions reduced (4/2 is not 2), and simplifies what is left with sympy.

    >>> [same_answer(given, "12") for given in ("12.00", r"12\text{cm}^2", "12°", "$12$", "12.5", None)]
    [True, True, True, True, False, False]
    """
    if given is None or truth is None:
        return False
    given, truth = str(given).strip(), str(truth).strip()
    if len(given) > MAX_CHARS or len(truth) > MAX_CHARS:
        return given == truth
    given, truth = bare(given), bare(truth)
    if not given or not truth:
        return False
    return given.lower() == truth.lower() or _same_with_units(given, truth)


def bare(answer: str) -> str:
    """The answer without what a writer puts around it: $...$, **...**, \\boxed{...}, a full stop, thin spaces.

    >>> bare("**$34.$**")
    '34'
    """
    answer = _SPACES.sub(" ", answer.replace("{,}", ",").replace("−", "-")).strip()
    while True:
        shorter = answer.rstrip("。").rstrip()
        if shorter.endswith(".") and not shorter.endswith(".."):
            shorter = shorter[:-1].rstrip()
        for start, stop in _WRAPPERS:
            if len(shorter) > len(start + stop) and shorter.startswith(start) and shorter.endswith(stop):
                shorter = shorter[len(start) : -len(stop)].strip()
        if shorter.startswith("\\boxed"):
            shorter = last_boxed(shorter) or shorter
        if shorter == answer:
            return answer
        answer = shorter


def _same_with_units(given: str, truth: str) -> bool:
    given_value, given_unit = split_unit(given)
    truth_value, truth_unit = split_unit(truth)
    if given_unit and truth_unit and not given_unit.is_same(truth_unit):
        return False
    if truth_unit and not truth_unit.is_sure and not given_unit:
        truth_value = truth  # 12m may be twelve times m
    return _same_value(bare(given_value), bare(truth_value))


def _same_value(given: str, truth: str) -> bool:
    given_number, truth_number = _number(given), _number(truth)
    if given_number is not None and truth_number is not None:
        return _close(given_number, truth_number)
    if given.endswith("%") != truth.endswith("%"):
        return _same_percentage(given, truth)
    return _same_expression(given.rstrip("\\% "), truth.rstrip("\\% "))


def _same_percentage(given: str, truth: str) -> bool:
    """One of the two is a percentage: it counts as its number and as its hundredth."""
    percent, other = sorted((given, truth), key=lambda answer: not answer.endswith("%"))
    percent_number, other_number = _number(percent.rstrip("\\% ")), _number(other)
    if other_number is None:
        other_number = _fraction(other)
    if percent_number is None or other_number is None:
        return False
    return _close(percent_number, other_number) or _close(percent_number / 100, other_number)


def _number(answer: str) -> Fraction | None:
    """The value of a plain decimal number, with or without thousands commas."""
    answer = answer.replace(" ", "") if re.fullmatch(r"[-+]? ?\d{1,3}(?: \d{3})+|[-+] \d+", answer) else answer
    if not _DECIMAL.fullmatch(answer):
        return None
    return Fraction(answer.replace(",", "").rstrip("."))


def _fraction(answer: str) -> Fraction | None:
    match = _FRACTION.fullmatch(answer.replace(" ", ""))
    if match is None:
        return None
    above, below = int(match[2] or match[4]), int(match[3] or match[5])
    return Fraction(-above if match[1] else above, below) if below else None


def _close(one: Fraction, other: Fraction) -> bool:
    """Equal up to the rounding of a float written out in full, such as 0.30000000000000004."""
    return abs(one - other) * 10**9 <= abs(other)


def _same_expression(given: str, truth: str) -> bool:
    # imported here because sympy takes half a second to load, and most answers are decided without
    if not (_is_harmless(given) and _is_harmless(truth)):
        from mathruler.math_normalize import normalize_answer

        return normalize_answer(given.lower()) == normalize_answer(truth.lower())
    from mathruler.grader import grade_answer

    return _within_limit(lambda: bool(grade_answer(given, truth)))


def _is_harmless(expression: str) -> bool:
    """Whether sympy may see it. Its parser evaluates Python: a tower of powers runs for hours, [x]*999999999 takes all
    memory. Only arithmetic passes, and tuples and intervals whose parts mathruler compares one by one."""
    if len(expression) > MAX_SYMBOLIC_CHARS or _DANGEROUS.search(expression):
        return False
    if any(name.lower() not in _FUNCTIONS for name in _CALL.findall(expression)):
        return False
    if expression.count("^") > MAX_POWERS or expression.count("sqrt") > MAX_ROOTS:
        return False
    return not re.search(r"[\[\],]", expression) or bool(_FLAT_LIST.fullmatch(expression))


def _within_limit(work: Callable[[], bool]) -> bool:
    """What `work` says, or False once it has used SYMBOLIC_LIMIT_S of processor time: a net below `_is_harmless`.

    The signal comes again and again because mathruler swallows every exception. It may also come just before it is
    turned off, hence the second `disarm`. Python allows signals only in the main thread; elsewhere there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    previous = signal.signal(signal.SIGVTALRM, _stop)

    def disarm() -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)

    try:
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, SYMBOLIC_LIMIT_S, SYMBOLIC_LIMIT_S / 4)
            return work()
        finally:
            disarm()
    except TimeoutError:
        disarm()
        return False


def _stop(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError
