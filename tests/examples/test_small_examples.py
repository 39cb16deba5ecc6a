"""The parts of the other examples that are not settings: videos that are drawn, and the number game's reward."""

import json

import numpy as np
import pytest
from PIL import Image

from easyr1.examples import videos
from easyr1.examples.reward_function.android_gui import compute_score
from easyr1.seeding import generator


def centre(frame: Image.Image) -> np.ndarray:
    """(x, y) of the middle of the square."""
    rows, columns = np.nonzero(np.asarray(frame).min(axis=-1) < 255)
    return np.array([columns.mean(), rows.mean()])


@pytest.mark.parametrize(("direction", "step"), videos.STEPS.items())
def test_the_square_goes_where_the_answer_says(direction, step):
    way = centre(videos.frames(direction, generator(3))[-1]) - centre(videos.frames(direction, generator(3))[0])
    assert np.array_equal(np.sign(way), step)
    assert np.abs(way).max() == videos.SIDE - videos.SQUARE


def test_rows_name_their_frames_and_ask_for_every_direction(tmp_path):
    (file,) = videos.write_videos(tmp_path, {"train": 24})
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["answer"] for row in rows} == set(videos.STEPS)
    assert all(row["problem"].startswith("<video>") and len(row["videos"]) == 1 for row in rows)
    assert all(len(list((tmp_path / row["videos"][0]).iterdir())) == videos.NUM_FRAMES for row in rows)


@pytest.mark.parametrize(
    ("response", "right"), [("1", 1.0), (" 1\n", 1.0), ("press 1, not 2", 1.0), ("2", 0.0), ("7", 0.0), ("", 0.0)]
)
def test_the_first_place_named_is_pressed(response, right):
    for truth in ("1", 1):
        scores = compute_score([{"response": response, "ground_truth": truth}])
        assert scores == [{"overall": right, "accuracy": right}]
