"""Which curves stand together in one picture of the report, and their data in the shape that the page draws.

Knows metric names; not how a picture is drawn.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from easyr1.tracking.history import Series

MAX_POINTS = 400  # of a curve
MAX_CURVES = 8  # of a picture; the page has so many colours

LABELS = {
    "val/reward_score": "overall",
    "response_length/clip_ratio": "training",
    "val_response_length/clip_ratio": "validation",
    "val_response_length/mean": "validation mean",
    "actor/pg_clipfrac_higher": "too high",
    "actor/pg_clipfrac_lower": "too low",
    "actor/grad_norm": "actor",
    "critic/grad_norm": "critic",
    "actor/lr": "actor",
    "critic/lr": "critic",
    "rollout/kl": "KL",
    "rollout/log_prob_gap_mean": "mean gap of log-probs",
}


@dataclass(frozen=True)
class Panel:
    """A picture with a title; `names` are patterns of metric names, drawn in this order."""

    title: str
    names: tuple[str, ...]
    without: tuple[str, ...] = ()

    def curves(self, series: Mapping[str, Series]) -> dict[str, str]:
        """Label -> metric of the curves there are; where two metrics bear one label, the first counts."""
        found: dict[str, str] = {}
        for pattern in self.names:
            for name in sorted(name for name in series if fnmatchcase(name, pattern) and name not in self.without):
                found.setdefault(label(name), name)
        return dict(list(found.items())[:MAX_CURVES])

    def metrics(self, runs: Iterable[Mapping[str, Series]]) -> list[str]:
        """The metrics of this panel that any of the runs has."""
        return list(dict.fromkeys(name for series in runs for name in self.curves(series).values()))


PANELS = (
    Panel("Validation", ("val/accuracy_reward", "val/format_reward", "val/reward_score", "val/*_reward")),
    Panel("Training reward and its parts", ("reward/accuracy", "reward/format", "reward/overall", "reward/*")),
    Panel("Answer length, tokens", ("response_length/mean", "response_length/max", "val_response_length/mean")),
    Panel("Share of answers truncated", ("response_length/clip_ratio", "val_response_length/clip_ratio")),
    Panel("KL to the reference", ("actor/kl_loss", "actor/kl_penalty")),
    Panel("KL to the policy before the update", ("actor/ppo_kl",)),
    Panel("Share of tokens clipped", ("actor/pg_clipfrac_higher", "actor/pg_clipfrac_lower")),
    Panel("Entropy, nats a token", ("actor/entropy",)),
    Panel("Gradient norm", ("actor/grad_norm", "critic/grad_norm")),
    Panel("Share of groups whose answers all scored alike", ("rollout/flat_groups",)),
    Panel("Gap between sampler and trainer", ("rollout/kl", "rollout/log_prob_gap_mean")),
    Panel("Learning rate", ("actor/lr", "critic/lr")),
    Panel("Speed, tokens a second per rank", ("perf/throughput",)),
    Panel("Time by phase, seconds", ("timing_s/gen", "timing_s/update_actor", "timing_s/*"), ("timing_s/step",)),
)


def label(name: str) -> str:
    """The short name of a metric in a legend: "val/accuracy_reward" -> "accuracy", of a source "math12k accuracy"."""
    if name in LABELS:
        return LABELS[name]
    first, *between, last = name.split("/")
    return " ".join([*between, last.removesuffix("_reward")]) if first == "val" else last


def drawn_panels(series: Mapping[str, Series]) -> list[dict[str, Any]]:
    """Every panel with a curve: title, `x` the steps of all its curves, and of each curve `label` and `y`.

    y holds null where a curve has no point.
    """
    drawn = ((panel.title, panel.curves(series)) for panel in PANELS)
    return [
        _drawn(title, {label: series[name] for label, name in curves.items()}) for title, curves in drawn if curves
    ]


def overlaid(title: str, metric: str, runs: Mapping[str, Mapping[str, Series]]) -> dict[str, Any]:
    """A panel with the curves that the runs have of one metric, under the names of the runs."""
    return _drawn(title, {name: series[metric] for name, series in runs.items() if metric in series})


def thin(points: Series, most: int = MAX_POINTS) -> Series:
    """At most `most` points, each the mean of its neighbours; the last point stays itself."""
    if len(points) <= most:
        return points
    size = math.ceil(len(points) / (most - 1))
    chunks = [points[start : start + size] for start in range(0, len(points) - 1, size)]
    means = [(chunk[len(chunk) // 2][0], sum(value for _, value in chunk) / len(chunk)) for chunk in chunks]
    return [point for point in means if point[0] < points[-1][0]] + [points[-1]]


def _drawn(title: str, curves: Mapping[str, Series]) -> dict[str, Any]:
    steps = sorted({step for points in curves.values() for step, _ in points})
    return {"title": title, "x": steps, "curves": [_curve(*item, steps) for item in curves.items()]}


def _curve(label: str, points: Series, steps: list[int]) -> dict[str, Any]:
    values = dict(points)
    return {"label": label, "y": [float(f"{values[step]:.6g}") if step in values else None for step in steps]}
