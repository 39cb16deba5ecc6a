"""Sample rows as tables and pictures for trackers, which know none of the rows' names."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

GENERATIONS = "val/generations"  # EasyR1's name
PICTURES = "val/pictures"
MAX_PICTURES = 4  # of a row
FIRST = ("prompt", "response", "ground_truth")
Row = Mapping[str, Any]


def answer_table(rows: Sequence[Row], picture: Callable[[object], Any]) -> tuple[list[str], list[list[Any]]]:
    """Columns and cells: prompt, response, ground truth, each score, what else is plain, each picture.

    None where a row has none. `picture` makes a cell of base64 text.
    """
    scores = [row["scores"] if isinstance(row.get("scores"), Mapping) else {} for row in rows]
    images = [list(row.get("images") or ())[:MAX_PICTURES] for row in rows]
    names = list(dict.fromkeys(name for of_row in scores for name in of_row))
    others = list(dict.fromkeys(name for row in rows for name in row if name not in FIRST and _is_plain(row[name])))
    num_pictures = max(map(len, images), default=0)
    columns = [*FIRST, *(f"scores/{name}" for name in names), *others]
    columns += [f"image_{place}" for place in range(1, num_pictures + 1)]
    cells = [
        [
            *(str(row.get(name, "")) for name in FIRST),
            *(of_row.get(name) for name in names),
            *(row.get(name) for name in others),
            *map(picture, pictures),
            *[None] * (num_pictures - len(pictures)),
        ]
        for row, of_row, pictures in zip(rows, scores, images, strict=True)
    ]
    return columns, cells


def text_table(rows: Sequence[Row]) -> str:
    """The table in Markdown, without pictures."""
    columns, cells = answer_table([{**row, "images": ()} for row in rows], str)
    lines = [columns, ["---"] * len(columns), *cells]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def pictures_of(rows: Sequence[Row]) -> list[tuple[bytes, str]]:
    """Every picture of the rows as a PNG file, with a caption that tells row and answer."""
    return [
        (data, f"row {row.get('row', place)}: {row.get('response', '')} (right: {row.get('ground_truth', '')})"[:200])
        for place, row in enumerate(rows)
        for image in list(row.get("images") or ())[:MAX_PICTURES]
        if (data := png_bytes(image)) is not None
    ]


def png_bytes(data: object) -> bytes | None:
    """The file behind base64 text; None for what is no picture."""
    try:
        found = base64.b64decode(str(data), validate=True)
        return found if open_picture(found) is not None else None
    except (ValueError, OSError):
        return None


def open_picture(data: bytes) -> Any:
    """A PIL image. Raises OSError for what is none."""
    from PIL import Image

    return Image.open(io.BytesIO(data))


def picture_of(data: object) -> Any:
    """A PIL image of base64 text; None for what is no picture."""
    found = png_bytes(data)
    return None if found is None else open_picture(found)


def is_picture(cell: object) -> bool:
    from PIL import Image

    return isinstance(cell, Image.Image)


def empty_picture() -> Any:
    """One white pixel."""
    from PIL import Image

    return Image.new("RGB", (1, 1), "white")


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested configuration by dotted keys."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        inner = flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
        found |= inner
    return found


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float))


def _cell(value: object) -> str:
    return "" if value is None else str(value).replace("|", "\\|").replace("\n", "<br>")
