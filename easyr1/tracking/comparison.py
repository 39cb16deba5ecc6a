"""Several runs on one page: their curves over each other, their outcomes, and the settings in which they differ."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from easyr1.tracking.history import History, read_history
from easyr1.tracking.jsonl import replace_text
from easyr1.tracking.page import cut, document, html_table, section
from easyr1.tracking.panels import MAX_CURVES, PANELS, label, overlaid
from easyr1.tracking.report import run_name, summarise

HTML_FILE = "comparison.html"
MAX_RUNS = MAX_CURVES
OF_THE_RUN = ("trainer.experiment_name", "trainer.save_checkpoint_path")  # every run has its own


def write_comparison(folders: Sequence[Path], page: Path) -> Path:
    """Write a page about 2 to MAX_RUNS run folders and return its path."""
    histories = [read_history(folder) for folder in folders]
    names = run_names(folders, histories)
    facts = [summarise(history) for history in histories]
    curves = {name: fact["curves"] for name, fact in zip(names, facts, strict=True)}
    outcomes = [(escape(name), escape(fact["sentence"])) for name, fact in zip(names, facts, strict=True)]
    body = (
        section("", html_table(("run", "outcome"), outcomes, "keys"))
        + section("Curves", '<div class="panels" id="curves"></div>')
        + section("Settings that differ", _differences(names, [history.values for history in histories]))
    )
    metrics = [(panel.title, metric) for panel in PANELS for metric in panel.metrics(curves.values())]
    panels = [overlaid(f"{title}: {label(metric)}", metric, curves) for title, metric in metrics]
    drawn = {"panels": panels, "marks": [], "questions": [], "groups": [], "pictures": []}
    title = f"{len(names)} runs"
    replace_text(page, document(title, f"<h1>{title}</h1>{body}", drawn))
    return page


def run_names(folders: Sequence[Path], histories: Sequence[History]) -> list[str]:
    """What each run is called: its configured name, the name of its folder where two share one, or its whole path."""
    choices = (
        [run_name(history, folder) for folder, history in zip(folders, histories, strict=True)],
        [folder.resolve().name for folder in folders],
        [str(folder.resolve()) for folder in folders],
    )
    return next((names for names in choices if len(set(names)) == len(names)), choices[-1])


def _differences(names: Sequence[str], values: Sequence[Mapping[str, Any]]) -> str:
    keys = sorted({key for of_run in values for key in of_run} - set(OF_THE_RUN))
    rows = [
        (escape(key), *(escape(cut(of_run.get(key, "–"))) for of_run in values))
        for key in keys
        if any(of_run.get(key) != values[0].get(key) for of_run in values)
    ]
    return html_table(("key", *map(escape, names)), rows, "keys") if rows else "<p>None.</p>"
