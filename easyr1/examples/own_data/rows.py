"""A few rows with drawn pictures, and one without, in place of a user's own."""

import json
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

SIDE = 112  # pixels of a picture
COLOURS = ("red", "blue", "green", "black")
TEXT_ROW = {"problem": "What is 17 + 25?", "answer": "42", "images": []}


def write_rows(data: Path) -> None:
    """train.jsonl and val.jsonl, and the pictures that they name, into an existing folder."""
    (data / "images").mkdir()
    for name, numbers in (("train", (1, 2, 3, 4, 5, 6, 7)), ("val", (3, 5, 8))):
        rows = [_row(data, f"{name}-{place}", number) for place, number in enumerate(numbers)]
        lines = (json.dumps(row) + "\n" for row in (*rows, TEXT_ROW))
        (data / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def _row(data: Path, name: str, number: int) -> dict[str, Any]:
    """A question about a picture with so many dots (at most 9)."""
    picture = Image.new("RGB", (SIDE, SIDE), "white")
    draw = ImageDraw.Draw(picture)
    colour = COLOURS[number % len(COLOURS)]
    for dot in range(number):
        left, top = 8 + 34 * (dot % 3), 8 + 34 * (dot // 3)
        draw.ellipse((left, top, left + 24, top + 24), fill=colour)
    picture.save(data / "images" / f"{name}.png")
    return {
        "problem": f"<image>How many {colour} dots are there?",
        "answer": str(number),
        "images": [f"images/{name}.png"],
    }
