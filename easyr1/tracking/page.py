"""The report as one HTML page that fetches nothing. Knows how facts look, not how they came about.

Curves are drawn by uPlot, and the answers shown by a script of ours; both lie in the page, and its policy lets no
other script run and nothing be fetched, whatever an answer or a file name holds.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from easyr1.tracking.answers import Answers
from easyr1.tracking.history import History
from easyr1.tracking.panels import MAX_CURVES
from easyr1.tracking.wording import number, score

WEB = Path(__file__).with_name("web")
MAX_EVENTS = 50
MAX_NUMBERS = 400  # metrics in the table of all numbers
MAX_VALUE = 200  # characters of a setting or an event
NO_SCRIPT = "<noscript><p>Curves and answers are shown by a script, and scripts are switched off here.</p></noscript>"


def render(name: str, facts: Mapping[str, Any], history: History, drawn: Mapping[str, Any], answers: Answers) -> str:
    """The whole page.

    `facts` is what report.json holds, `drawn` the panels and marks that the script draws. All text is escaped here or
    goes into the page as JSON.
    """
    sections = [
        ("", _tiles(facts)),
        ("Warnings", _warnings(facts["warnings"])),
        ("Curves", f'{NO_SCRIPT}<div class="panels" id="curves"></div>' if drawn["panels"] else ""),
        ("Answers", _answers(answers)),
        ("Time by phase", _times(facts["time_by_phase"])),
        ("Settings that differ from the default", _settings(facts["settings"])),
        ("All numbers", _numbers(history)),
        ("Events", _events(history.events)),
    ]
    body = "".join(section(title, content) for title, content in sections if content)
    phases = f'<p class="phases">{escape(facts["learning"]["words"])}</p>' if drawn["panels"] else ""
    shown = {**drawn, "questions": answers.questions, "groups": answers.groups, "pictures": answers.pictures}
    top = f'<h1>{escape(name)}</h1><p class="outcome">{escape(facts["sentence"])}</p>{phases}'
    return document(name, top + body, shown)


def document(title: str, body: str, shown: Mapping[str, Any]) -> str:
    """A whole page of `body`, which is HTML already, and of what the script shows in it."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{_policy()}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_web('uPlot.css')}\n{_web('report.css')}</style></head><body>"
        f'<main>{body}</main><script type="application/json" id="data">{as_json(shown)}</script>'
        f"{''.join(f'<script>{script}</script>' for script in _scripts())}</body></html>\n"
    )


def section(title: str, content: str) -> str:
    """A part of the page under its heading, if it has one; `content` is HTML already."""
    return f"<section>{f'<h2>{title}</h2>' if title else ''}{content}</section>"


def as_json(value: Any) -> str:
    """JSON that can stand inside a <script>: no text in it can end the element or open a comment.

    >>> as_json({"a": "</script>"})
    '{"a":"\\\\u003c/script>"}'
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


@cache
def _web(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")


def _scripts() -> list[str]:
    """The library under its licence, and the page's own script."""
    return [f"/*\n{_web('uPlot.LICENSE')}*/\n{_web('uPlot.js')}", _web("report.js")]


def _policy() -> str:
    """Only these very scripts run, only pictures inside the page are shown, and nothing is fetched."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in _scripts()
    )
    rules = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes}; base-uri 'none'"
    return f'<meta http-equiv="Content-Security-Policy" content="{rules}">'


def _answers(answers: Answers) -> str:
    if not answers.questions and not answers.groups:
        return ""
    left = f"Shown are {'; '.join(answers.left_out)}; generations.jsonl holds all. " if answers.left_out else ""
    return f'<p class="quiet">{left}An answer counts as right from an accuracy of 0.5 on.</p><div id="answers"></div>'


def _tiles(facts: Mapping[str, Any]) -> str:
    pairs = dict(facts["validation"])
    if facts["training_reward"]:
        pairs["training reward"] = facts["training_reward"]
    tiles = [
        f'<div class="tile"><b>{score(pair["first"])} &rarr; {score(pair["last"])}</b>'
        f"<span>{'validation ' if label in facts['validation'] else ''}{label}</span></div>"
        for label, pair in pairs.items()
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>' if tiles else ""


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    return f'<ul class="warnings">{"".join(f"<li>{escape(cut(text))}</li>" for text in warnings)}</ul>'


def _times(phases: Mapping[str, Mapping[str, float]]) -> str:
    if not phases:
        return ""
    colours = {name: f"c{min(index, MAX_CURVES - 1)}" for index, name in enumerate(phases)}
    bar = "".join(
        f'<i class="{colours[name]}" style="flex:{max(part["share"], 1e-4):.4f}" title="{escape(name)}"></i>'
        for name, part in phases.items()
    )
    rows = [
        (f'<i class="{colours[name]}"></i>{escape(name)}', f"{part['seconds']:,.1f} s", f"{100 * part['share']:.1f} %")
        for name, part in phases.items()
    ]
    table = html_table(("phase", "time", "share"), rows, "times", numbers_from=1)
    return f'<div class="bar">{bar}</div>{table}'


def _settings(settings: Mapping[str, Mapping[str, Any]]) -> str:
    if not settings:
        return ""
    rows = [
        (escape(key), escape(cut(setting["value"])), escape(cut(setting["default"])))
        for key, setting in settings.items()
    ]
    return html_table(("key", "this run", "default"), rows, "keys")


def _numbers(history: History) -> str:
    rows = [
        (escape(name), *(number(value) for value in (values[0], values[-1], min(values), max(values))))
        for name, values in sorted((name, [value for _, value in points]) for name, points in history.series.items())
    ]
    if not rows:
        return ""
    table = html_table(("metric", "first", "last", "lowest", "highest"), rows[:MAX_NUMBERS], "keys", numbers_from=1)
    count = f"{len(rows)} metrics" if len(rows) <= MAX_NUMBERS else f"the first {MAX_NUMBERS} of {len(rows)} metrics"
    return f"<details><summary>{count}</summary>{table}</details>"


def _events(events: Sequence[Mapping[str, Any]]) -> str:
    if not events:
        return ""
    rows = []
    for event in events[-MAX_EVENTS:]:
        rest = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("time", "kind"))
        rows.append((escape(str(event.get("time", ""))), escape(str(event.get("kind", ""))), escape(cut(rest))))
    table = html_table(("time", "event", "details"), rows, "keys")
    return f"<details><summary>the last {len(rows)} of {len(events)}</summary>{table}</details>"


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]], look: str, numbers_from: int = 99) -> str:
    """A table of cells that are HTML already; columns from `numbers_from` on hold numbers."""

    def cells(tag: str, row: Sequence[str]) -> str:
        looks = ["n" if column >= numbers_from else "key" if not column else "" for column in range(len(row))]
        return "".join(
            f'<{tag} class="{look}">{cell}</{tag}>' if look else f"<{tag}>{cell}</{tag}>"
            for look, cell in zip(looks, row, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = cells("th", heads)
    return (
        f'<div class="table"><table class="{look}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def cut(value: Any) -> str:
    """The value as text, its end left out where it is long."""
    text = str(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]} ..."
