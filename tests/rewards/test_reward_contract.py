"""Every way to return something wrong is told with the sample and the cure; every right way gives plain floats."""

import math

import numpy as np
import pytest
import torch

from easyr1.rewards.contract import Breach, check_batch, check_scores

GOOD = {"overall": 1.0}


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1.0), (True, 1.0), (0.25, 0.25), (np.float32(0.5), 0.5), (np.int64(3), 3.0), (np.bool_(False), 0.0)],
)
def test_numbers_of_any_make_become_plain_floats(value, expected):
    scores = check_scores({"overall": value, "extra": value}, 0)
    assert scores == {"overall": expected, "extra": expected}
    assert {type(number) for number in scores.values()} == {float}


def test_a_tensor_of_no_dimension_is_a_number():
    assert check_scores({"overall": torch.tensor(0.5)}, 0) == {"overall": 0.5}


@pytest.mark.parametrize(
    ("returned", "index", "told", "cure"),
    [
        ([GOOD] * 3, None, "3 scores for 4 samples", "one per sample, in the same order"),
        ([1.0], None, "1 scores for 4 samples", "one per sample"),
        (1.0, None, "1.0 (float) instead of a list", 'REWARD_TYPE = "sequential"'),
        (None, None, "None instead of a list", "return a list"),
        (GOOD, None, "{'overall': 1.0} (dict) instead of a list", 'REWARD_TYPE = "sequential"'),
        ([GOOD, 0.5, GOOD, GOOD], 1, "0.5 (float) instead of a dict", '{"overall": 1.0, "accuracy": 1.0}'),
        ([GOOD, GOOD, None, GOOD], 2, "None instead of a dict", "return for example"),
        ([GOOD, GOOD, GOOD, {"accuracy": 1}], 3, "no \"overall\" (keys: 'accuracy')", "add it"),
        ([GOOD, {}, GOOD, GOOD], 1, 'no "overall" (keys: none)', "add it"),
        ([{"overall": math.nan}, GOOD, GOOD, GOOD], 0, "nan for 'overall'", "finite number"),
        ([{"overall": 1, "x": -math.inf}, GOOD, GOOD, GOOD], 0, "-inf for 'x'", "finite number"),
        ([{"overall": None}, GOOD, GOOD, GOOD], 0, "None for 'overall'", "leave out a key"),
        ([{"overall": "1"}, GOOD, GOOD, GOOD], 0, "'1' (str) for 'overall'", "one number"),
        ([{"overall": 1, "all": [1, 2]}, GOOD, GOOD, GOOD], 0, "[1, 2] (list) for 'all'", "one number"),
        ([{"overall": np.ones(1)}, GOOD, GOOD, GOOD], 0, "(ndarray) for 'overall'", "one number"),
        ([{"overall": 1, 3: 1}, GOOD, GOOD, GOOD], 0, "the key 3", "strings"),
    ],
)
def test_wrong_returns_say_what_came_and_what_to_do(returned, index, told, cure):
    with pytest.raises(Breach) as caught:
        check_batch(returned, 4)
    assert caught.value.index == index
    assert told in str(caught.value)
    assert cure in str(caught.value)


def test_a_key_that_only_some_samples_have_stays_with_them():
    assert check_batch([{"overall": 1, "bonus": 2}, {"overall": 0}], 2) == [{"overall": 1, "bonus": 2}, {"overall": 0}]


def test_a_huge_value_does_not_flood_the_message():
    with pytest.raises(Breach) as caught:
        check_scores(["x" * 10_000] * 1000, 0)
    assert len(str(caught.value)) < 400
