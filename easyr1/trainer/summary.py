"""Lines of answers -> the numbers of an evaluation, overall and for each source. Pure functions."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from easyr1.data.sources import labels
from easyr1.errors import ConfigError
from easyr1.rewards.parsed import ballot
from easyr1.trainer.estimates import interval, ks_of, maj_at, pass_at

Lines = Sequence[Mapping[str, Any]]  # the answers to one row
PREFERRED = ("accuracy", "overall")


@dataclass(frozen=True)
class Judgement:
    """Which score tells whether an answer is right, and from which value on it is."""

    score: str
    at_least: float = 1.0

    def right(self, lines: Lines) -> list[bool]:
        """Of each answer; one without the score is not right."""
        return [line["scores"].get(self.score, float("-inf")) >= self.at_least for line in lines]


def judgement(rows: Mapping[int, Lines], score: str | None, at_least: float) -> Judgement:
    """The score asked for, else accuracy, else overall. ConfigError for one that the reward does not return."""
    names = list(dict.fromkeys(name for lines in rows.values() for line in lines for name in line["scores"]))
    if score is None:
        return Judgement(next(name for name in PREFERRED if name in names), at_least)
    if score not in names:
        raise ConfigError("--score", f"the reward returns no {score!r}; it returns {', '.join(names)}")
    return Judgement(score, at_least)


def summarise(rows: Mapping[int, Lines], by: Judgement, seed: int = 0) -> dict[str, Any]:
    """`overall`, and `sources` by their short names where there are several."""
    sources: dict[str, list[Lines]] = {}
    for lines in rows.values():
        sources.setdefault(lines[0]["source"], []).append(lines)
    found: dict[str, Any] = {"overall": numbers(list(rows.values()), by, seed)}
    if len(sources) > 1:
        names = labels(list(sources))
        found["sources"] = {names[source]: numbers(own, by, seed) for source, own in sources.items()}
    return found


def numbers(rows: Sequence[Lines], by: Judgement, seed: int) -> dict[str, Any]:
    """Of some rows: means over rows with their intervals, and plain means of scores and lengths over answers."""
    size = min(len(lines) for lines in rows)
    right = [by.right(lines) for lines in rows]
    ballots = [[ballot(line["parsed"]) for line in lines] for lines in rows]
    answers = [line for lines in rows for line in lines]
    means = {f"mean@{size}": [float(np.mean([line["scores"].get(by.score, 0.0) for line in lines])) for lines in rows]}
    for k in ks_of(size):
        means[f"pass@{k}"] = [pass_at(len(own), sum(own), k) for own in right]
    for k in ks_of(size) if any(filter(None, itertools.chain(*ballots))) else ():  # else there is nothing to vote on
        votes = zip(ballots, right, strict=True)
        means[f"maj@{k}"] = [maj_at(own, is_right, k, seed + place) for place, (own, is_right) in enumerate(votes)]
    return {
        "rows": len(rows),
        "answers": len(answers),
        **{name: _with_interval(values, seed) for name, values in means.items()},
        "scores": _score_means(answers),
        "unparsed": float(np.mean([line["parsed"] is None for line in answers])),
        "truncated": float(np.mean([line["finish_reason"] == "length" for line in answers])),
        "tokens": float(np.mean([line["tokens"] for line in answers])),
    }


def _with_interval(values: Sequence[float], seed: int) -> dict[str, float]:
    low, high = interval(values, seed)
    return {"value": float(np.mean(values)), "low": low, "high": high}


def _score_means(answers: Lines) -> dict[str, float]:
    """Mean of every score over the answers that have it, as in a validation."""
    values: dict[str, list[float]] = {}
    for line in answers:
        for name, value in line["scores"].items():
            values.setdefault(name, []).append(value)
    return {name: float(np.mean(column)) for name, column in values.items()}
