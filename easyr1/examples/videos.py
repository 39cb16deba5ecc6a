"""`python -m easyr1.examples.videos [FOLDER]`: short videos of a moving square, and rows that ask which way it goes.

Enough to try training on videos with any model that takes them; a video is a folder of frames.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from easyr1.seeding import generator

FOLDER = "videos"
NUM_ROWS = {"train": 256, "val": 32}
NUM_FRAMES, SIDE, SQUARE = 6, 112, 24  # pixels
STEPS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


def write_videos(folder: Path, num_rows: dict[str, int] = NUM_ROWS) -> list[Path]:
    """Write one file of rows for each name in `num_rows`, which says how many, with their videos beside it."""
    written = []
    for seed, (name, count) in enumerate(num_rows.items()):
        random = generator(seed)
        rows = [_row(folder, f"{name}-{number}", random) for number in range(count)]
        written.append(folder / f"{name}.jsonl")
        written[-1].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return written


def _row(folder: Path, name: str, random: np.random.Generator) -> dict[str, object]:
    direction = str(random.choice(list(STEPS)))
    clip = folder / "clips" / name
    clip.mkdir(parents=True, exist_ok=True)
    for number, frame in enumerate(frames(direction, random)):
        frame.save(clip / f"{number}.png")
    question = "<video>Which way does the square move: left, right, up or down?"
    return {"problem": question, "answer": direction, "videos": [str(clip.relative_to(folder))]}


def frames(direction: str, random: np.random.Generator) -> list[Image.Image]:
    """The frames of one video: a square of a random colour crosses the picture on a random track."""
    across, down = STEPS[direction]
    track = int(random.integers(SIDE - SQUARE))
    colour = tuple(random.integers(0, 200, size=3).tolist())
    pictures = []
    for number in range(NUM_FRAMES):
        place = number * (SIDE - SQUARE) // (NUM_FRAMES - 1)
        if across + down < 0:
            place = SIDE - SQUARE - place
        left, top = (place, track) if across else (track, place)
        picture = Image.new("RGB", (SIDE, SIDE), "white")
        ImageDraw.Draw(picture).rectangle((left, top, left + SQUARE - 1, top + SQUARE - 1), fill=colour)
        pictures.append(picture)
    return pictures


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0] if arguments else FOLDER).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.write("".join(f"{path}\n" for path in write_videos(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
