"""A run folder read back: its numbers over the steps, its events and configuration.

Takes what is there: files may be missing, and the last line of each may be half-written.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from easyr1.tracking.clock import BESIDE_THE_STEP
from easyr1.tracking.jsonl import NOT_FINITE, read_rows
from easyr1.tracking.loggers import CONFIG_FILE, EVENTS_FILE, METRICS_FILE

Series = list[tuple[int, float]]  # (step, value), steps rising

STEP_TIME = "timing_s/step"


@dataclass(frozen=True)
class History:
    """All that a run left behind, but for its answers."""

    series: dict[str, Series] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)  # the configuration, dotted
    given: list[str] = field(default_factory=list)  # the keys that the user set
    not_finite: list[tuple[int, str, str]] = field(default_factory=list)  # (step, metric, "nan" or "inf")

    @property
    def last_step(self) -> int:
        """The last step with any number; 0 if there is none."""
        return max((points[-1][0] for points in self.series.values()), default=0)

    def first_and_last(self, *names: str) -> tuple[float, float] | None:
        """First and last value of the first of these metrics that the run has."""
        points = next((self.series[name] for name in names if name in self.series), None)
        return (points[0][1], points[-1][1]) if points else None


def read_history(folder: Path) -> History:
    """Read the run folder, however complete it is."""
    rows = [row for row in read_rows(folder / METRICS_FILE) if _step(row) is not None]
    values, given = _read_config(folder / CONFIG_FILE)
    return History(
        series=_series(rows),
        events=read_rows(folder / EVENTS_FILE),
        values=values,
        given=given,
        not_finite=[
            (row["step"], name, str(text)) for row in rows for name, text in (row.get(NOT_FINITE) or {}).items()
        ],
    )


def phase_seconds(series: Mapping[str, Series]) -> dict[str, float]:
    """Seconds of the whole run in each phase, longest first; "other" is what no phase of a step names."""
    prefix = "timing_s/"
    phases = {
        name.removeprefix(prefix): sum(seconds for _, seconds in points)
        for name, points in series.items()
        if name.startswith(prefix) and name != STEP_TIME
    }
    steps = sum(seconds for _, seconds in series.get(STEP_TIME, []))
    named = sum(seconds for name, seconds in phases.items() if name not in BESIDE_THE_STEP)
    if steps > named:
        phases["other"] = steps - named
    return dict(sorted(phases.items(), key=lambda item: -item[1]))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"data": {"seed": 1}} -> {"data.seed": 1}. What is flat stays so; an empty mapping is a value."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _step(row: Mapping[str, Any]) -> int | None:
    step = row.get("step")
    return step if isinstance(step, int) else None


def _series(rows: Sequence[Mapping[str, Any]]) -> dict[str, Series]:
    """The values of each metric; where a step has two of one metric, the later row is right."""
    values: dict[str, dict[int, float]] = {}
    for row in rows:
        for name, value in row.items():
            if name != "step" and isinstance(value, (int, float)) and abs(value) <= sys.float_info.max:  # no NaN
                values.setdefault(name, {})[row["step"]] = float(value)
    return {name: sorted(by_step.items()) for name, by_step in values.items()}


def _read_config(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Dotted values and the keys that the user set, as `config.load.dump` wrote them; a bare tree will do too."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}, []
    if not isinstance(tree, dict):
        return {}, []
    values, given = tree.get("config"), tree.get("set_by_user")
    if not isinstance(values, dict):
        return flatten(tree), []
    return flatten(values), [str(key) for key in given] if isinstance(given, list) else []
