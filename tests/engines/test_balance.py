"""Shares of groups: even, whole where that is as good, complete, and in order."""

import numpy as np
import pytest

from easyr1.balance import Size, Work, imbalance, loads, share_out


def sizes(count: int, prompt: int, *lengths: int) -> list[Size]:
    return [Size(prompt, lengths) for _ in range(count)]


def places(shares) -> list[tuple[int, int]]:
    return sorted((part.group, answer) for share in shares for part in share for answer in part.answers)


@pytest.mark.parametrize("replicas", (1, 2, 3, 4, 7))
@pytest.mark.parametrize("seed", range(5))
def test_every_answer_is_in_one_share_and_shares_keep_the_order(replicas, seed):
    rng = np.random.default_rng(seed)
    given = [
        Size(int(rng.integers(1, 900)), tuple(rng.integers(1, 2000, rng.integers(1, 9)).tolist()), 0)
        for _ in range(int(rng.integers(1, 40)))
    ]
    shares = share_out(given, replicas)
    assert len(shares) == replicas
    assert places(shares) == [
        (group, answer) for group, size in enumerate(given) for answer in range(len(size.answers))
    ]
    for share in shares:
        assert [part.group for part in share] == sorted({part.group for part in share})
    if len(given) >= 8 * replicas:
        assert imbalance(loads(shares)) < 1.1


def test_groups_stay_whole_where_shares_are_even_anyway():
    shares = share_out(sizes(8, 1000, 100, 100, 100, 100), 4)
    assert [len(share) for share in shares] == [2] * 4
    assert all(part.answers == (0, 1, 2, 3) for share in shares for part in share)


def test_a_group_much_longer_than_the_rest_is_split_and_the_rest_is_not():
    shares = share_out([Size(100, (4000,) * 8), *sizes(6, 100, 100, 100)], 2)
    assert imbalance(loads(shares)) < 1.1
    split = [part.group for share in shares for part in share if part.group == 0]
    assert len(split) == 2 and sum(len(share) for share in shares) == 8


def test_one_long_answer_cannot_be_split():
    shares = share_out([Size(10, (9000,)), Size(10, (10,))], 3)
    assert sorted(len(share) for share in shares) == [0, 1, 1]


def test_splitting_a_long_prompt_for_short_answers_does_not_pay():
    shares = share_out([Size(8000, (10, 10)), Size(8000, (10, 10)), Size(8000, (10, 10))], 2)
    assert sorted(len(share) for share in shares) == [1, 2]


def test_fewer_groups_than_replicas_are_split_evenly():
    shares = share_out(sizes(3, 10, *[500] * 8), 4)
    assert imbalance(loads(shares)) < 1.05


def test_pictures_and_long_attention_cost():
    alike = Size(500, (100,))
    assert Work().of_group(500, (100,), 400) > 1.3 * Work().of_group(alike.prompt, alike.answers)
    assert Work().of_group(24_000, ()) == pytest.approx(1.5 * 24_000)
    shared = Work().of_group(1000, (100, 100))
    assert shared < 2 * Work().of_group(1000, (100,)) - 900  # the prompt is computed once
