"""Row files: what goes in comes out, whatever was killed on the way."""

import json

import numpy as np
import torch

from easyr1.tracking.jsonl import JsonLines, encode_row, move_rows_aside, read_rows


def write(path, *rows):
    file = JsonLines(path)
    for row in rows:
        file.append(row)
    file.close()


def test_a_second_opening_appends(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, {"step": 1})
    write(path, {"step": 2})
    assert read_rows(path) == [{"step": 1}, {"step": 2}]


def test_a_row_is_on_disk_before_the_file_is_closed(tmp_path):
    file = JsonLines(tmp_path / "metrics.jsonl")
    file.append({"step": 1})
    assert read_rows(tmp_path / "metrics.jsonl") == [{"step": 1}]
    file.close()


def test_a_half_written_last_line_spoils_neither_reading_nor_the_next_row(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "reward/over')
    assert read_rows(path) == [{"step": 1}]
    write(path, {"step": 2})
    assert read_rows(path) == [{"step": 1}, {"step": 2}]


def test_numbers_of_numpy_and_torch_are_plain_numbers():
    row = {
        "a": np.float32(0.5),
        "b": np.int64(3),
        "c": np.bool_(True),
        "d": np.arange(2),
        "e": torch.tensor(1.5),
        "f": {"g": (np.float64(2.5), None)},
    }
    expected = {"a": 0.5, "b": 3, "c": True, "d": [0, 1], "e": 1.5, "f": {"g": [2.5, None]}}
    assert json.loads(encode_row(row)) == expected


def test_what_is_not_finite_is_null_with_a_note():
    row = {"loss": float("nan"), "norm": np.float32("inf"), "scores": {"overall": -np.inf}, "fine": 1.0}
    assert json.loads(encode_row(row)) == {
        "loss": None,
        "norm": None,
        "scores": {"overall": None},
        "fine": 1.0,
        "not_finite": {"loss": "nan", "norm": "inf", "scores.overall": "-inf"},
    }


def test_objects_that_json_lacks_are_written_as_text(tmp_path):
    assert json.loads(encode_row({"folder": tmp_path, 3: {1}})) == {"folder": str(tmp_path), "3": "{1}"}


def test_half_an_emoji_and_line_separators_survive(tmp_path):
    path = tmp_path / "generations.jsonl"
    text = "eins\nzwei\u2028drei \ud83d 数"
    write(path, {"response": text})
    assert read_rows(path) == [{"response": text}]


def test_later_rows_move_aside_with_a_note(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, {"step": 1}, {"step": 2}, {"step": 3}, {"note": "no step"}, {"step": 4, "x": "ä"})
    assert move_rows_aside(path, after_step=2) == 2
    assert read_rows(path) == [{"step": 1}, {"step": 2}, {"note": "no step"}]
    note, *moved = read_rows(tmp_path / "metrics-superseded.jsonl")
    assert "resumed at step 2" in note["note"]
    assert moved == [{"step": 3}, {"step": 4, "x": "ä"}]


def test_moving_twice_keeps_the_first_rows_and_touches_nothing_when_none_are_later(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, {"step": 1}, {"step": 2, "try": 1})
    move_rows_aside(path, after_step=1)
    write(path, {"step": 2, "try": 2})
    assert move_rows_aside(path, after_step=1) == 1
    aside = [row for row in read_rows(tmp_path / "metrics-superseded.jsonl") if "try" in row]
    assert [row["try"] for row in aside] == [1, 2]
    assert move_rows_aside(path, after_step=1) == 0
    assert move_rows_aside(tmp_path / "missing.jsonl", after_step=1) == 0
