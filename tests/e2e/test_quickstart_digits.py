"""The questions of the quickstart: right answers, disjoint scans, and rows that the ordinary data path reads."""

import io
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from easyr1.data.sources import load_rows
from easyr1.examples.quickstart.digits import ONE, TWO, split_scans, write_tasks


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return write_tasks(tmp_path_factory.mktemp("tasks"), seed=1)


def rows_of(path) -> list[dict]:
    return load_rows(str(path)).table.to_list()


def pictures(rows) -> set[bytes]:
    return {image["bytes"] for row in rows for image in row["images"]}


def test_the_scans_are_all_there_and_split_without_overlap():
    train, val = split_scans()
    assert (len(train), len(val)) == (1497, 300)
    assert not {scan.image["path"] for scan in train} & {scan.image["path"] for scan in val}
    assert set(Counter(scan.digit for scan in train)) == set(range(10))
    assert split_scans()[1][:5] == val[:5]


def test_scans_are_grey_pictures_of_8_by_8_with_bright_ink():
    scan = split_scans()[0][0]
    pixels = np.asarray(Image.open(io.BytesIO(scan.image["bytes"])))
    assert pixels.shape == (8, 8) and pixels.dtype == np.uint8
    assert pixels.max() > 200
    assert pixels[:, 0].max() < 100  # the left edge is paper


def test_answers_are_right_and_both_tasks_have_as_many_rows(tasks):
    label = {scan.image["path"]: scan.digit for part in split_scans() for scan in part}
    for path in (tasks.train, tasks.val):
        rows = rows_of(path)
        for row in rows:
            assert row["digits"] == [label[image["path"]] for image in row["images"]]
            assert row["answer"] == str(max(row["digits"]))
            assert row["problem"].count("<image>") == len(row["images"]) == {ONE: 1, TWO: 2}[row["task"]]
            assert len(set(row["digits"])) == len(row["digits"])  # two equal digits have no larger one
        counts = Counter(row["task"] for row in rows)
        assert counts[ONE] == counts[TWO]
    assert len(rows_of(tasks.val)) == 240


def test_no_scan_of_validation_is_trained_on(tasks):
    assert not pictures(rows_of(tasks.train)) & pictures(rows_of(tasks.val))


def test_the_larger_digit_cannot_be_guessed_without_looking(tasks):
    answers = Counter(row["answer"] for row in rows_of(tasks.val) if row["task"] == TWO)
    assert answers.most_common(1)[0][1] / answers.total() < 0.3


def test_the_seed_changes_training_pairs_alone(tasks, tmp_path):
    other = write_tasks(tmp_path / "other", seed=2)
    again = write_tasks(tmp_path / "again", seed=1)
    assert rows_of(again.train) == rows_of(tasks.train) != rows_of(other.train)
    assert rows_of(other.val) == rows_of(tasks.val)
