"""Sums of two digits as rows: problem, answer. What validation asks, in either order, no training row asks."""

import json
from pathlib import Path

from easyr1.seeding import generator

NUM_HELD_OUT = 11  # of 55 pairs
SPLIT_SEED = 0  # validation is the same in every run, so that runs can be compared


def write_rows(folder: Path) -> tuple[Path, Path]:
    """Write train.jsonl and val.jsonl into `folder` and return their paths."""
    pairs = [(low, high) for low in range(10) for high in range(low, 10)]
    order = generator(SPLIT_SEED).permutation(len(pairs)).tolist()
    held_out = {pairs[number] for number in order[:NUM_HELD_OUT]}
    folder.mkdir(parents=True, exist_ok=True)
    train, val = folder / "train.jsonl", folder / "val.jsonl"
    sums = [(left, right) for left in range(10) for right in range(10)]
    for file, in_val in ((train, False), (val, True)):
        rows = [_row(*pair) for pair in sums if (tuple(sorted(pair)) in held_out) == in_val]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return train, val


def _row(left: int, right: int) -> dict[str, str]:
    return {"problem": f"What is {left} + {right}?", "answer": str(left + right)}
