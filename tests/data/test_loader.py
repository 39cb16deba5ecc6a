"""The order of rows: from seed and epoch alone, every row equally often, and exact after a restart anywhere."""

import json
from collections import Counter

import numpy as np
import pytest

from easyr1.batch import Prompt
from easyr1.data.loader import Loader, Share, starting_without
from easyr1.errors import ConfigError


def loader(rows=10, batch_size=4, **options):
    return Loader([Prompt(row=number, ids=np.array([1])) for number in range(rows)], batch_size, **options)


def rows_of(prompts):
    return [prompt.row for prompt in prompts]


def test_an_epoch_has_the_whole_batches_of_the_rows():
    assert loader(2101, 32).steps_per_epoch == 65
    assert loader(8, 4).steps_per_epoch == 2
    with pytest.raises(ConfigError, match=r"data.rollout_batch_size: it is 4, but only 3 rows"):
        loader(3, 4)


@pytest.mark.parametrize(("rows", "batch_size"), [(10, 4), (8, 4), (7, 7), (5, 1), (11, 6), (33, 32)])
def test_rows_come_equally_often_and_never_twice_in_a_batch(rows, batch_size):
    drawing = loader(rows, batch_size)
    counts = Counter(dict.fromkeys(range(rows), 0))
    for _ in range(20 * rows):
        batch = rows_of(drawing.next())
        assert len(set(batch)) == batch_size
        counts.update(batch)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_left_over_rows_are_the_first_of_the_next_step():
    drawing = loader(10, 4)
    first = rows_of(drawing.next() + drawing.next())
    third = drawing.next()
    assert set(rows_of(third[:2])) == set(range(10)) - set(first)
    assert [(prompt.epoch, prompt.index) for prompt in third] == [(0, 8), (0, 9), (1, 0), (1, 1)]


def test_draws_of_any_size_follow_one_order():
    whole, pieces = loader(), loader()
    expected = [prompt for _ in range(6) for prompt in whole.next()]
    drawn = [prompt for count in (1, 3, 2, 2, 4, 3, 1, 4, 4) for prompt in pieces.next(count)]
    assert [(p.row, p.epoch, p.index) for p in drawn] == [(p.row, p.epoch, p.index) for p in expected]
    assert len({prompt.group_id for prompt in drawn}) == 24


def test_the_order_depends_on_seed_and_epoch():
    orders = {seed: rows_of(loader(50, 50, seed=seed).next()) for seed in (1, 2)}
    again = loader(50, 50, seed=1)
    assert rows_of(again.next()) == orders[1] != orders[2]
    assert rows_of(again.next()) != orders[1]
    assert orders[1] != sorted(orders[1])


def test_without_shuffle_rows_come_as_in_the_file():
    drawing = loader(5, 3, shuffle=False)
    assert [rows_of(drawing.next()) for _ in range(3)] == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]


@pytest.mark.parametrize("rows", [8, 10])
def test_a_restart_anywhere_goes_on_exactly(rows):
    straight = loader(rows, 4, seed=3)
    states, steps = [], []
    for _ in range(12):
        states.append(straight.state())
        steps.append(straight.next(3))
    for step, state in enumerate(states):
        resumed = loader(rows, 4, seed=3)
        for _ in range(5):  # what was drawn before does not matter
            resumed.next()
        resumed.restore(state)
        assert resumed.state() == state
        rest = [resumed.next(3) for _ in steps[step:]]
        assert [[(p.row, p.epoch, p.index) for p in batch] for batch in rest] == [
            [(p.row, p.epoch, p.index) for p in batch] for batch in steps[step:]
        ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"rows": 9}, "data.train_files: .*rows 10.*9"),
        ({"seed": 2}, "data.seed: .*seed 1.*2"),
        ({"shuffle": False}, "data.shuffle: .*shuffle True.*False"),
    ],
)
def test_a_position_in_another_order_is_refused(options, expected):
    state = loader().state()
    with pytest.raises(ConfigError, match=expected):
        loader(**options).restore(state)


def test_epochs_of_whole_batches_are_shuffled_freely():
    drawing = loader(6, 3)
    pairs = {frozenset(rows_of(drawing.next())) for _ in range(40)}
    assert len(pairs) > 6


def test_an_order_changes_only_where_a_batch_reaches_into_it():
    assert starting_without({0, 3}, [3, 1, 0, 2, 4], count=2) == [1, 2, 3, 0, 4]
    assert starting_without({0, 3}, [1, 2, 3, 4, 0], count=2) == [1, 2, 3, 4, 0]
    assert starting_without(set(), [2, 0, 1], count=0) == [2, 0, 1]


def weighted(*pairs, batch_size=4, **options):
    """A loader of sources with (rows, weight); rows are numbered through."""
    shares = [Share.weighted(rows, weight) for rows, weight in pairs]
    return loader(sum(rows for rows, _ in pairs), batch_size, shares=shares, **options)


def epochs_of(drawing, count):
    """Row -> draws, of each of the first epochs."""
    counts = [Counter() for _ in range(count)]
    while True:
        for prompt in drawing.next(1):
            if prompt.epoch == count:
                return counts
            counts[prompt.epoch][prompt.row] += 1


def test_weights_of_one_leave_the_order_as_it_is():
    plain, ones = loader(10, 4), weighted((6, 1), (4, 1))
    assert [rows_of(plain.next()) for _ in range(9)] == [rows_of(ones.next()) for _ in range(9)]
    first = loader(10, 10).next()
    assert rows_of(first) == [8, 7, 3, 1, 6, 2, 5, 4, 0, 9]  # as checkpoints of earlier versions have it


def test_a_whole_weight_repeats_every_row_in_every_epoch():
    drawing = weighted((5, 3), (4, 1))
    assert drawing.steps_per_epoch == 19 // 4
    for counts in epochs_of(drawing, 3):
        assert counts == {**dict.fromkeys(range(5), 3), **dict.fromkeys(range(5, 9), 1)}


@pytest.mark.parametrize("weight", [0.5, 0.1, 1 / 3, 1.25, 2.6])
def test_a_fraction_takes_turns_and_passes_no_row_over(weight):
    rows, epochs = 10, 12
    counts = epochs_of(weighted((rows, weight), (7, 1)), epochs)
    total = Counter(dict.fromkeys(range(rows), 0))
    for number, epoch in enumerate(counts, start=1):
        own = Counter({row: count for row, count in epoch.items() if row < rows})
        assert own.total() == round(weight * rows)
        total.update(own)
        assert max(total.values()) - min(total.values()) <= 1
        assert total.total() == number * round(weight * rows)
    assert min(total.values()) >= 1


def test_which_rows_a_fraction_takes_depends_on_the_seed():
    taken = [frozenset(epochs_of(weighted((30, 0.5), batch_size=5, seed=seed), 1)[0]) for seed in (1, 1, 2)]
    assert taken[0] == taken[1] != taken[2]
    assert taken[0] != frozenset(range(15))


def test_a_light_source_is_drawn_all_the_same():
    assert Share.weighted(10, 0.001) == Share(rows=10, draws=1)
    assert Share.weighted(0, 5.0) == Share(rows=0, draws=0)  # all its rows were too long


def test_weights_without_shuffle_go_through_the_file_again():
    drawing = weighted((3, 2), (2, 1), shuffle=False)
    assert rows_of(drawing.next(8)) == [0, 1, 2, 3, 4, 0, 1, 2]


def test_no_draw_is_lost_where_weighted_orders_meet():
    drawing = weighted((3, 2.0), (2, 1.5), batch_size=7)  # 9 draws an epoch, 7 a batch
    drawn = Counter()
    for _ in range(9):  # 63 draws are 7 epochs
        drawn.update(rows_of(drawing.next()))
    assert drawn.total() == 63 and [drawn[row] for row in range(3)] == [14, 14, 14]
    assert sorted(drawn[row] for row in (3, 4)) == [10, 11]


def test_a_weighted_restart_anywhere_goes_on_exactly():
    pairs = ((5, 1.5), (4, 0.5), (3, 2))
    straight = weighted(*pairs, seed=3)
    states, steps = [], []
    for _ in range(14):
        states.append(json.loads(json.dumps(straight.state())))
        steps.append(straight.next(3))
    for step, state in enumerate(states):
        resumed = weighted(*pairs, seed=3)
        resumed.restore(state)
        rest = [resumed.next(3) for _ in steps[step:]]
        assert [[(p.row, p.epoch, p.index) for p in batch] for batch in rest] == [
            [(p.row, p.epoch, p.index) for p in batch] for batch in steps[step:]
        ]
    for prompt in steps[1]:
        assert straight.at(prompt.epoch, prompt.index).row == prompt.row


def test_other_weights_are_another_order():
    state = weighted((5, 2), (5, 1)).state()
    with pytest.raises(ConfigError, match=r"data.train_weights"):
        weighted((5, 1), (5, 2)).restore(state)
    older = {name: value for name, value in loader().state().items() if name != "draws"}
    loader().restore(older)
