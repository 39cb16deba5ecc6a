"""The rows that are shown at each validation."""

import random

from easyr1.tracking.samples import pick_rows

ROWS = [f"test.jsonl:{row}" for row in range(200)]


def picked(rows, k=5, seed=0):
    return [rows[position] for position in pick_rows(rows, k, seed)]


def test_order_changes_nothing():
    shuffled = ROWS[:]
    random.Random(3).shuffle(shuffled)
    assert picked(shuffled) == picked(ROWS)


def test_more_rows_in_view_keep_the_ones_before():
    assert picked(ROWS, k=9)[:5] == picked(ROWS, k=5)


def test_the_pick_is_spread_and_the_seed_changes_it():
    assert picked(ROWS) != ROWS[:5]
    assert picked(ROWS, seed=1) != picked(ROWS, seed=2)
    hits = [row for seed in range(400) for row in picked(ROWS, seed=seed)]
    assert len(set(hits)) > 190  # 2,000 draws of 200 rows miss few, if all have a chance


def test_a_known_pick_stays_the_same_over_processes_and_versions():
    assert pick_rows(list(range(10)), 3) == [3, 7, 9]


def test_each_row_is_shown_once_by_its_first_answer():
    assert sorted(pick_rows(["a", "a", "b", "b"], 4)) == [0, 2]


def test_none_or_fewer_than_asked():
    assert pick_rows(ROWS, 0) == []
    assert pick_rows(ROWS, -1) == []
    assert sorted(pick_rows(ROWS[:3], 8)) == [0, 1, 2]
