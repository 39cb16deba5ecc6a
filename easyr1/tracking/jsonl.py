"""Files with one JSON object a line: append, read, cut after a step. Knows nothing of metrics or trainers.

Such a file survives a killed process: a row is written and flushed whole, and a half-written last row harms nobody.
"""

import datetime
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

NOT_FINITE = "not_finite"


class JsonLines:
    """A file that only grows. It is opened for appending, whatever it already holds."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = _ends_inside_a_line(path)
        # A lone surrogate (half an emoji) cannot be encoded; escaped with a backslash it is still JSON.
        self._file = path.open("a", encoding="utf-8", errors="backslashreplace")
        if torn:
            self._file.write("\n")

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row and flush it, so that a killed process loses no finished row."""
        self._file.write(encode_row(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def encode_row(row: Mapping[str, Any]) -> str:
    """The row as one line of strict JSON.

    Numbers of numpy and torch become plain ones. JSON has no NaN and no infinity: they are written as null, and the
    row's `not_finite` keeps what they were: {"actor/grad_norm": "nan"}.
    """
    not_finite: dict[str, str] = {}
    plain = {str(name): _plain(value, str(name), not_finite) for name, value in row.items()}
    if not_finite:
        plain[NOT_FINITE] = not_finite
    return json.dumps(plain, ensure_ascii=False, allow_nan=False)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All whole rows of the file; none if there is no such file. Lines that are no JSON object are skipped."""
    return [row for _, row in _lines(path) if row is not None]


def move_rows_aside(path: Path, after_step: int) -> int:
    """Move the rows with a later `step` to `NAME-superseded.jsonl` beside the file, and return how many they were.

    A note in that file says when and why. Rows without a step stay. The file is replaced in one go, after the rows
    are safe in the other one, so that a crash on the way loses nothing.
    """
    kept: list[str] = []
    moved: list[str] = []
    for line, row in _lines(path):
        step = None if row is None else row.get("step")
        later = isinstance(step, (int, float)) and step > after_step
        (moved if later else kept).append(line)
    if not moved:
        return 0
    note = f"the next {len(moved)} rows were moved aside when the run resumed at step {after_step}"
    aside = path.with_name(f"{path.stem}-superseded.jsonl")
    with aside.open("a", encoding="utf-8") as file:
        file.write("\n".join([encode_row({"note": note, "time": timestamp()}), *moved]) + "\n")
        file.flush()
        os.fsync(file.fileno())
    replace_text(path, "".join(f"{line}\n" for line in kept))
    return len(moved)


def replace_text(path: Path, text: str) -> None:
    """Give the file new content in one go: a reader sees the old text or the new one, never a part."""
    new = path.with_name(f".{path.name}.new")
    with new.open("w", encoding="utf-8", errors="replace") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def timestamp() -> str:
    """Now, to the second, with the offset from UTC: "2025-01-31T09:05:00+01:00"."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Each line that is not blank, with its row, or None where it is no JSON object."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.strip():
                yield line.rstrip("\n"), _parse(line)


def _parse(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _ends_inside_a_line(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _plain(value: Any, name: str, not_finite: dict[str, str]) -> Any:
    """The value in JSON's own types; what JSON lacks becomes its text."""
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        not_finite[name] = str(float(value))
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, f"{name}.{key}", not_finite) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, f"{name}.{index}", not_finite) for index, inner in enumerate(value)]
    if hasattr(value, "tolist"):  # scalars and arrays of numpy, tensors of torch
        return _plain(value.tolist(), name, not_finite)
    return str(value)
