"""Questions about the handwritten digits: which digit is it, and which of two is larger.

Rows in the shape that every training run reads: problem, answer, images. Scans of validation rows are in no training
row. Knows no model and no tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from easyr1.data.sources import load_rows
from easyr1.examples.quickstart.silence import no_bars
from easyr1.seeding import generator

SCANS_FILE = Path(__file__).parents[1] / "data" / "digits.parquet"
NUM_VAL_SCANS = 300
VAL_ROWS_PER_TASK = 120
SPLIT_SEED = 0  # scans and rows of validation are the same in every run, so that runs can be compared

ONE, TWO = "which", "larger"  # names of the tasks
QUESTIONS = {ONE: "<image>Which digit is this?", TWO: "<image><image>Which of the two digits is larger?"}
FEATURES = datasets.Features(
    {
        "problem": datasets.Value("string"),
        "answer": datasets.Value("string"),
        "images": datasets.List(datasets.Image()),
        "task": datasets.Value("string"),
        "digits": datasets.List(datasets.Value("int64")),
    }
)


@dataclass(frozen=True)
class Scan:
    """One handwritten digit: a PNG file as {"bytes", "path"}, and which digit it is."""

    image: dict[str, Any]
    digit: int


@dataclass(frozen=True)
class Tasks:
    """Files of rows."""

    train: Path
    val: Path


def write_tasks(folder: Path, seed: int) -> Tasks:
    """Write train.parquet, whose pairs depend on `seed`, and val.parquet, which is always the same.

    Columns: problem, answer, images, task, and digits, what the pictures show. Both tasks have equally many rows, and
    each training scan is asked for once by itself and is the first of one pair.
    """
    train, val = split_scans()
    files = Tasks(folder / "train.parquet", folder / "val.parquet")
    folder.mkdir(parents=True, exist_ok=True)
    few = val[:VAL_ROWS_PER_TASK]
    _write(files.train, [*single_rows(train), *pair_rows(train, train, seed)])
    _write(files.val, [*single_rows(few), *pair_rows(few, val, SPLIT_SEED)])
    return files


def split_scans() -> tuple[list[Scan], list[Scan]]:
    """The scans of training and those of validation, each in a fixed random order."""
    scans = [Scan(row["image"], row["label"]) for row in load_rows(str(SCANS_FILE)).table.to_list()]
    order = generator(SPLIT_SEED).permutation(len(scans)).tolist()
    shuffled = [scans[number] for number in order]
    return shuffled[NUM_VAL_SCANS:], shuffled[:NUM_VAL_SCANS]


def single_rows(scans: Sequence[Scan]) -> Iterator[dict[str, Any]]:
    """A question about each scan."""
    for scan in scans:
        yield _row(ONE, [scan], scan.digit)


def pair_rows(firsts: Sequence[Scan], seconds: Sequence[Scan], seed: int) -> Iterator[dict[str, Any]]:
    """A question about each of `firsts` and a random one of `seconds` that shows another digit."""
    random = generator(seed)
    digits = np.array([scan.digit for scan in seconds])
    for first in firsts:
        second = seconds[random.choice(np.flatnonzero(digits != first.digit))]
        yield _row(TWO, [first, second], max(first.digit, second.digit))


def _row(task: str, scans: Sequence[Scan], answer: int) -> dict[str, Any]:
    return {
        "problem": QUESTIONS[task],
        "answer": str(answer),
        "images": [scan.image for scan in scans],
        "task": task,
        "digits": [scan.digit for scan in scans],
    }


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    table = datasets.Dataset.from_list(rows, features=FEATURES)
    with no_bars():
        table.to_parquet(str(file))
