"""Logged answers as cards of the report: one data row with its pictures, and what was answered to it step by step.

Everything shown was made by a model or a data set, so all of it is escaped.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from easyr1.tracking.wording import number, shorten

MAX_CARDS = 12
MAX_PICTURES = 4
MAX_PICTURE_CHARACTERS = 2_000_000  # of base64, about 1.5 MB
MAX_PROMPT, MAX_RESPONSE, MAX_GROUND_TRUTH = 800, 2400, 400
SMALL_PIXELS = 96  # below this a picture is shown enlarged, pixel by pixel
PNG_START = b"\x89PNG\r\n\x1a\n"


@dataclass
class Question:
    """A data row and its answers, in the order of steps."""

    prompt: str
    ground_truth: str
    pictures: Sequence[str]
    answers: list[Mapping[str, Any]] = field(default_factory=list)


def questions(rows: Sequence[Mapping[str, Any]]) -> list[Question]:
    """The rows of generations.jsonl, gathered by the data row that they answer, in order of first sight."""
    gathered: dict[tuple[str, ...], Question] = {}
    for row in rows:
        prompt, truth = str(row.get("prompt", "")), _text(row.get("ground_truth", ""))
        key = (str(row.get("source", "")), str(row["row"])) if "row" in row else (prompt, truth)
        pictures = row.get("images")
        question = Question(prompt, truth, pictures if isinstance(pictures, list) else [])
        gathered.setdefault(key, question).answers.append(row)
    for question in gathered.values():
        question.answers.sort(key=lambda row: _step(row))
    return list(gathered.values())


def answer_cards(rows: Sequence[Mapping[str, Any]]) -> str:
    """HTML of the first questions; each with its first and last answer in view and the others folded away."""
    found = questions(rows)
    cards = "".join(_card(question) for question in found[:MAX_CARDS])
    rest = len(found) - MAX_CARDS
    more = f'<p class="quiet">{rest} more in generations.jsonl</p>' if rest > 0 else ""
    return cards + more


def picture(data: str) -> str:
    """An <img> with the PNG inside, or a note where the text is no PNG or too big for a page."""
    if not isinstance(data, str) or len(data) > MAX_PICTURE_CHARACTERS:
        return '<span class="quiet">picture too big to show</span>'
    try:
        png = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        png = b""
    if not png.startswith(PNG_START):
        return '<span class="quiet">picture is no PNG</span>'
    width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
    small = ' class="small"' if max(width, height) < SMALL_PIXELS else ""
    return f'<img{small} alt="{width} x {height} pixels" src="data:image/png;base64,{data}">'


def _card(question: Question) -> str:
    pictures = "".join(picture(data) for data in question.pictures[:MAX_PICTURES])
    answers = question.answers
    shown = [answers[0], answers[-1]] if len(answers) > 1 else answers
    between = answers[1:-1]
    folded = f"<details><summary>{len(between)} answers between</summary>{_answers(between)}</details>"
    return (
        '<article class="card">'
        + (f'<div class="pictures">{pictures}</div>' if pictures else "")
        + f'<pre class="prompt">{escape(shorten(question.prompt, MAX_PROMPT))}</pre>'
        + f'<p class="truth"><b>Ground truth</b> {escape(shorten(question.ground_truth, MAX_GROUND_TRUTH))}</p>'
        + _answers(shown)
        + (folded if between else "")
        + "</article>"
    )


def _answers(rows: Sequence[Mapping[str, Any]]) -> str:
    return f'<div class="answers">{"".join(_answer(row) for row in rows)}</div>'


def _answer(row: Mapping[str, Any]) -> str:
    response = shorten(str(row.get("response", "")), MAX_RESPONSE) or "(empty)"
    return f'<div class="answer"><p><b>Step {_step(row)}</b> {_scores(row)}</p><pre>{escape(response)}</pre></div>'


def _scores(row: Mapping[str, Any]) -> str:
    scores = row.get("scores", row.get("score"))
    if not isinstance(scores, Mapping):
        scores = {} if scores is None else {"score": scores}
    return " ".join(_chip(str(name), value) for name, value in scores.items())


def _chip(name: str, value: Any) -> str:
    if not isinstance(value, (int, float)):
        return f'<span class="chip">{escape(name)} {escape(_text(value))}</span>'
    look = "good" if value >= 0.999 else "bad" if value <= 0 else ""
    return f'<span class="chip {look}">{escape(name)} {number(value)}</span>'


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _step(row: Mapping[str, Any]) -> int:
    step = row.get("step")
    return step if isinstance(step, int) else 0
