"""A picture whose body proves broken in training: the run stops with its row and file, or goes on without it."""

import json

import numpy as np
import pytest
import runs
import tiny

from easyr1.batch import Prompt
from easyr1.data.loader import Loader
from easyr1.errors import DataError
from easyr1.trainer.collect import Draws

KIND = "qwen2_5_vl"
BAD_ROW = 3


class Store:
    """Pictures of which some are broken."""

    def __init__(self, *bad: str) -> None:
        self.bad = bad

    def prefetch(self, handles) -> None:
        self.asked = list(handles)

    def problem(self, handle: str) -> str | None:
        return f"picture {handle} is broken" if handle in self.bad else None


def rows(count: int) -> list[Prompt]:
    return [Prompt(row=number, ids=np.array([1]), media=(str(number),)) for number in range(count)]


def test_the_next_drawn_row_takes_the_place_of_a_broken_one():
    told = []
    draws = Draws(Loader(rows(10), 4, shuffle=False), Store("1", "4"), True, told.append)
    assert [prompt.row for prompt in draws.next()] == [0, 2, 3, 5]
    assert draws.skipped == 2
    assert told == [f"left out (data.on_bad_media=skip): picture {bad} is broken" for bad in "14"]
    assert [prompt.row for prompt in draws.next(3)] == [6, 7, 8]
    assert [prompt.row for prompt in draws.next(4)] == [9, 0, 2, 3]  # told once, left out again
    assert (draws.skipped, len(told)) == (3, 2)


def test_nothing_is_looked_at_where_nothing_is_skipped():
    draws = Draws(Loader(rows(4), 2, shuffle=False), Store("1"), False, pytest.fail)
    assert [prompt.row for prompt in draws.next()] == [0, 1]
    assert draws.usable(rows(4)) == draws.usable(rows(4))
    assert Draws(Loader(rows(4), 2), None, True, pytest.fail).next()


def test_a_set_without_any_good_row_ends():
    draws = Draws(Loader(rows(3), 2), Store("0", "1", "2"), True, lambda _: None)
    with pytest.raises(DataError, match="on_bad_media=skip: no row is left"):
        draws.next()


def settings(folder, **more):
    """Arguments of a run of which one row's picture has a whole header and a broken body."""
    folder.mkdir(exist_ok=True)
    data = tiny.write_rows(folder / "rows8.jsonl", tiny.vision_rows(8))
    picture = folder / "rows8_images" / f"{BAD_ROW}-0.png"
    tiny.picture(200, 200).save(picture)
    found = picture.read_bytes()
    place = found.index(b"IDAT") + 60
    picture.write_bytes(found[:place] + bytes(100) + found[place + 100 :])
    val = tiny.write_rows(folder / "val.jsonl", tiny.vision_rows(2))
    assert data.exists()
    return runs.arguments(folder, KIND, 8, **{"data__val_files": val, "trainer__max_steps": 4, **more})


def test_stop_names_row_and_file(tmp_path):
    with pytest.raises(DataError, match=rf"rows8\.jsonl, row {BAD_ROW}: .*{BAD_ROW}-0\.png: not a whole picture"):
        runs.run(settings(tmp_path))


def drawn(folder):
    """Rows of each step, and the weights' fingerprint in its metrics."""
    return {
        step: {key: value for key, value in row.items() if key.startswith(("actor/", "reward/", "data/"))}
        for step, row in runs.steps(folder / "run").items()
    }


def test_skip_goes_on_counts_and_resumes_exactly(tmp_path):
    skip = {"data__on_bad_media": "skip", "trainer__save_freq": 1}
    runs.run(settings(tmp_path / "whole", **skip))
    whole = drawn(tmp_path / "whole")
    assert sum(row.get("data/skipped_rows", 0) for row in whole.values()) >= 1
    events = [json.loads(line) for line in (tmp_path / "whole" / "run" / "events.jsonl").read_text().splitlines()]
    told = [event["message"] for event in events if "on_bad_media" in event.get("message", "")]
    assert len(told) == 1 and f"row {BAD_ROW}" in told[0] and f"{BAD_ROW}-0.png" in told[0]

    runs.run(settings(tmp_path / "parts", **skip | {"trainer__max_steps": 2}))
    runs.run(settings(tmp_path / "parts", **skip))
    parts = drawn(tmp_path / "parts")
    for step in (1, 2, 3, 4):
        assert parts[step] == whole[step]


def test_broken_validation_rows_are_left_out(tmp_path):
    arguments = settings(tmp_path, data__on_bad_media="skip", trainer__max_steps=1)
    arguments = [one for one in arguments if not one.startswith("data.val_files")]
    _, found = runs.run([*arguments, f"data.val_files={tmp_path / 'rows8.jsonl'}"])
    assert "val/reward_score" in found
