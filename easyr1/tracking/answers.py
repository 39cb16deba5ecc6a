"""The logged answers that a report shows, chosen from generations.jsonl within bounds.

The file is read from end to end, but only the rows that are shown are parsed, so a long run costs little more than a
short one. All text stays data here: whoever shows it must escape it.
"""

import base64
import binascii
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from easyr1.tracking.wording import shorten

MAX_QUESTIONS = 24  # validation rows
MAX_VALIDATIONS = 12  # of each, the first and the last among them
MAX_TRAINING_STEPS = 52  # as many as a run logs by itself
MAX_GROUPS = 4  # of a training step
MAX_ANSWERS = 64  # of a group
MAX_TEXT, MAX_PICTURE_TEXT = 1_500_000, 2_500_000  # bytes on the whole page; pictures in base64
MAX_PROMPT, MAX_RESPONSE, MAX_SHORT = 1200, 2400, 400  # characters of a text
MAX_PICTURES = 4  # of a question
RIGHT = 0.5  # of the accuracy, where there is none of `overall`
PNG_START = b"\x89PNG\r\n\x1a\n"

ROW_START = re.compile(rb'\{"step": (\d{1,18})(?:, "split": "([a-z]+)")?')
Places = dict[int, list[tuple[int, int]]]  # step -> (offset, length) of its rows in the file


@dataclass
class Answers:
    """What is shown, ready for JSON.

    questions: validation rows with an answer for each shown step; groups: training prompts with all their answers.
    pictures: base64 PNG files, each once; a question or group names them by number.
    """

    questions: list[dict[str, Any]] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # in words
    text_left: int = field(default_factory=lambda: MAX_TEXT)
    picture_text_left: int = field(default_factory=lambda: MAX_PICTURE_TEXT)
    num_dropped: int = 0  # answers that there was no room for


def read_answers(path: Path) -> Answers:
    """Choose from the file; nothing where there is none."""
    found = Answers()
    if not path.is_file():
        return found
    places = index_rows(path)
    with path.open("rb") as file:
        _add_questions(found, file, places.get("val", {}))
        _add_groups(found, file, places.get("train", {}))
    if found.num_dropped:
        found.left_out.append(f"all but {found.num_dropped:,} of their answers, for which the page has no room")
    return found


def index_rows(path: Path) -> dict[str, Places]:
    """Where the rows of each split and step are; a row that names none counts as one of validation at step 0."""
    places: dict[str, Places] = {}
    offset = 0
    with path.open("rb") as file:
        for line in file:
            start = ROW_START.match(line)
            step, split = (int(start[1]), (start[2] or b"val").decode()) if start else (0, "val")
            places.setdefault(split, {}).setdefault(step, []).append((offset, len(line)))
            offset += len(line)
    return places


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most `most` items at about equal distance, the first and the last among them, in order.

    >>> spread([0, 1, 2, 3, 4, 5, 6], 3)
    [0, 3, 6]
    """
    if len(items) <= most:
        return list(items)
    if most < 2:
        return list(items[:most])
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def ends_first(items: Sequence[Any]) -> list[Any]:
    """All items, in an order of which every beginning is spread: both ends, the middle, and so on.

    >>> ends_first([0, 1, 2, 3, 4])
    [0, 4, 2, 1, 3]
    """
    order: list[Any] = []
    most = 2
    while len(order) < len(items):
        order += [item for item in spread(items, most) if item not in order]
        most = 2 * most - 1
    return order


def is_right(scores: Mapping[str, Any]) -> bool | None:
    """Whether an answer counts as right: its accuracy, or `overall` where there is none, is 0.5 or more."""
    value = scores.get("accuracy", scores.get("overall"))
    return value >= RIGHT if isinstance(value, (int, float)) else None


def num_bytes(value: Any) -> int:
    """Its size in the page, where "<" takes six bytes."""
    text = json.dumps(value, ensure_ascii=False)
    return len(text.encode(errors="surrogatepass")) + 5 * text.count("<")


def is_png(data: object) -> bool:
    """Whether this is the base64 text of a PNG file."""
    try:
        return isinstance(data, str) and base64.b64decode(data, validate=True).startswith(PNG_START)
    except (binascii.Error, ValueError):
        return False


def _add_questions(found: Answers, file: Any, places: Places) -> None:
    steps = spread(sorted(places), MAX_VALIDATIONS)
    questions: dict[tuple[str, ...], dict[str, Any]] = {}
    for step in ends_first(steps):  # the space may end
        for row in _rows(file, places[step][:MAX_QUESTIONS]):
            key = (str(row.get("source", "")), str(row["row"])) if "row" in row else (str(row.get("prompt")), "")
            if key not in questions:
                questions[key] = _question(row) | {"pictures": [], "answers": {}}
            _take_pictures(found, questions[key], row)
            answer = _answer(row) | {"step": step}
            if _take_text(found, answer, questions[key] if not questions[key]["answers"] else {}):
                questions[key]["answers"][step] = answer
    for question in questions.values():
        question["answers"] = [question["answers"][step] for step in sorted(question["answers"])]
    found.questions = [question for question in questions.values() if question["answers"]]
    _say(found, "validations", len(steps), len(places))
    _say(found, "validation rows", len(found.questions), max(map(len, places.values()), default=0))


def _add_groups(found: Answers, file: Any, places: Places) -> None:
    steps = spread(sorted(places), MAX_TRAINING_STEPS)
    groups: list[dict[str, Any]] = []
    for step in ends_first(steps):
        of_step: dict[str, dict[str, Any]] = {}
        for row in _rows(file, places[step][: MAX_GROUPS * MAX_ANSWERS]):
            name = str(row.get("group", ""))
            group = of_step.get(name) or _question(row) | {"step": step, "group": name, "pictures": [], "answers": []}
            if name not in of_step and len(of_step) == MAX_GROUPS:
                continue
            of_step[name] = group
            _take_pictures(found, group, row)
            answer = _answer(row)
            if len(group["answers"]) < MAX_ANSWERS and _take_text(found, answer, {} if group["answers"] else group):
                group["answers"].append(answer)
        groups += of_step.values()
    found.groups = sorted((group for group in groups if group["answers"]), key=lambda group: group["step"])
    _say(found, "logged training steps", len({group["step"] for group in found.groups}), len(places))


def _rows(file: Any, places: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """The rows at these places that can be read; a killed run may leave half of one."""
    rows = []
    for offset, length in places:
        file.seek(offset)
        try:
            row = json.loads(file.read(length).decode("utf-8", errors="replace"))
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _question(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "row": str(row.get("row", "")),
        "source": str(row.get("source", "")),
        "prompt": shorten(str(row.get("prompt", "")), MAX_PROMPT),
        "truth": shorten(str(row.get("ground_truth", "")), MAX_SHORT),
    }


def _answer(row: Mapping[str, Any]) -> dict[str, Any]:
    scores = row.get("scores", row.get("score"))
    if not isinstance(scores, Mapping):
        scores = {} if scores is None else {"score": scores}
    parsed = row.get("parsed")
    return {
        "text": shorten(str(row.get("response", "")), MAX_RESPONSE),
        "parsed": None if parsed is None else shorten(str(parsed), MAX_SHORT),
        "scores": [[shorten(str(name), 80), _number_or_text(value)] for name, value in scores.items()],
        "right": is_right(scores),
        "truncated": row.get("truncated") is True,
        "advantage": row["advantage"] if _is_number(row.get("advantage")) else None,
    }


def _number_or_text(value: Any) -> Any:
    return value if _is_number(value) else shorten(str(value), 80)


def _is_number(value: Any) -> bool:
    """Whether JSON and the page's script know it as one: no NaN, which only files of other programs hold."""
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


def _take_pictures(found: Answers, owner: dict[str, Any], row: Mapping[str, Any]) -> None:
    """Give `owner` the row's pictures, by number; -1 is one that did not fit, -2 one that is no PNG file."""
    images = row.get("images")
    if owner["pictures"] or not isinstance(images, list):
        return
    for data in images[:MAX_PICTURES]:
        number = found.pictures.index(data) if data in found.pictures else -1
        if number < 0 and not is_png(data):
            number = -2
        elif number < 0 and len(data) <= found.picture_text_left:
            number = len(found.pictures)
            found.pictures.append(data)
            found.picture_text_left -= len(data)
        owner["pictures"].append(number)


def _take_text(found: Answers, *parts: Mapping[str, Any]) -> bool:
    """Whether these texts still fit on the page; if so, their space is taken."""
    size = sum(num_bytes(part) for part in parts)
    if size > found.text_left:
        found.num_dropped += 1
        return False
    found.text_left -= size
    return True


def _say(found: Answers, what: str, shown: int, there_are: int) -> None:
    if shown < there_are:
        found.left_out.append(f"{shown} of {there_are} {what}")
