"""report.html for people and report.json for programs, from what a run folder holds.

Works for a run that is going on, was killed or never logged a step. Knows EasyR1's metric names, nothing of training.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from easyr1.config.schema import Config, walk
from easyr1.tracking.answers import read_answers
from easyr1.tracking.history import History, flatten, phase_seconds, read_history
from easyr1.tracking.jsonl import encode_row, replace_text
from easyr1.tracking.learning import learning
from easyr1.tracking.loggers import GENERATIONS_FILE
from easyr1.tracking.page import render
from easyr1.tracking.panels import drawn_panels, thin
from easyr1.tracking.rules import RULES, not_finite
from easyr1.tracking.wording import duration, score

HTML_FILE = "report.html"
JSON_FILE = "report.json"

OUTCOMES = {  # what a reader asks first, and the metrics that may tell it, best first
    "accuracy": ("val/accuracy_reward",),
    "format": ("val/format_reward",),
    "reward": ("val/reward_score", "val/overall_reward"),
}
TRAINING_REWARD = ("reward/overall", "critic/score/mean")
MAX_WARNINGS = 20


def write_report(run_folder: Path) -> Path:
    """Write report.html and report.json into the run folder and return the path of the page.

    Raises FileNotFoundError if there is no such folder.
    """
    folder = Path(run_folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"no run folder at {folder}; a run writes to trainer.save_checkpoint_path")
    history = read_history(folder)
    facts = summarise(history)
    answers = read_answers(folder / GENERATIONS_FILE)
    drawn = {"panels": drawn_panels(facts["curves"]), "marks": learning(history.series).marks}
    replace_text(folder / JSON_FILE, encode_row(facts) + "\n")
    replace_text(folder / HTML_FILE, render(run_name(history, folder), facts, history, drawn, answers))
    return folder / HTML_FILE


def summarise(history: History) -> dict[str, Any]:
    """What report.json holds: outcome, phases of learning, curves, time by phase, changed settings, warnings."""
    phases = phase_seconds(history.series)
    total_s = sum(phases.values())
    ends = {label: history.first_and_last(*names) for label, names in OUTCOMES.items()}
    validation = {label: pair for label, pair in ends.items() if pair}
    training = history.first_and_last(*TRAINING_REWARD)
    return {
        "sentence": sentence(history.last_step, total_s, validation, training),
        "steps": history.last_step,
        "seconds": total_s,
        "validation": {label: {"first": pair[0], "last": pair[1]} for label, pair in validation.items()},
        "training_reward": {"first": training[0], "last": training[1]} if training else None,
        "learning": asdict(learning(history.series)),
        "time_by_phase": {
            name: {"seconds": seconds, "share": seconds / total_s if total_s else 0.0}
            for name, seconds in phases.items()
        },
        "settings": changed_settings(history.values),
        "warnings": warnings(history),
        "curves": {name: thin(points) for name, points in history.series.items()},
    }


def sentence(
    steps: int,
    seconds: float,
    validation: Mapping[str, tuple[float, float]],
    training: tuple[float, float] | None,
) -> str:
    """The outcome of a run in words, from first and last values.

    >>> sentence(60, 185, {"accuracy": (0.34, 0.86), "format": (0.9, 0.9)}, None)
    'In 60 steps (3 min 5 s) validation accuracy rose from 0.34 to 0.86; format stayed at 0.90.'
    """
    if not validation and training is None:
        return "No step has been logged yet."
    told = {
        f"validation {label}" if not index else label: pair for index, (label, pair) in enumerate(validation.items())
    }
    if training and not validation:
        told = {"the training reward": training}
    words = "; ".join(f"{label} {_change(*pair)}" for label, pair in told.items())
    start = f"In {steps} step{'' if steps == 1 else 's'} ({duration(seconds)}) " if steps else "Before training "
    return f"{start}{words}{'' if validation else ', and nothing was validated'}."


def changed_settings(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The dotted keys whose value is not the default, with both, sorted."""
    defaults = default_settings()
    return {
        key: {"value": value, "default": defaults.get(key)}
        for key, value in sorted(values.items())
        if key not in defaults or value != defaults[key]
    }


def default_settings() -> dict[str, Any]:
    """Every dotted key with its default, in the types that JSON has."""
    tree = {key: value for key, _, value in walk(Config())}
    return flatten(json.loads(json.dumps(tree, default=str)))


def warnings(history: History) -> list[str]:
    """What the rules find, numbers that were no numbers, and what the run itself warned of."""
    said = [found for rule in RULES if (found := rule(history.series))] + not_finite(history.not_finite)
    said += [str(event.get("message", event)) for event in history.events if event.get("kind") == "warning"]
    unique = list(dict.fromkeys(said))
    rest = len(unique) - MAX_WARNINGS
    return unique[:MAX_WARNINGS] + ([f"{rest} more in events.jsonl"] if rest > 0 else [])


def run_name(history: History, folder: Path) -> str:
    """Project and experiment as configured, else the folder's name."""
    names = [history.values.get(key) for key in ("trainer.project_name", "trainer.experiment_name")]
    return " / ".join(str(name) for name in names if name) or folder.resolve().name


def _change(first: float, last: float) -> str:
    before, after = score(first), score(last)
    if before == after:
        return f"stayed at {after}"
    return f"{'rose' if last > first else 'fell'} from {before} to {after}"
