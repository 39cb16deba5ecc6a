"""Closed forms of the estimators, and what every one of them must obey."""

import numpy as np
import pytest
import torch

from easyr1.algorithms.advantages import ESTIMATORS, grpo
from easyr1.algorithms.needs import NEEDS


def at_last_token(scores, lengths):
    """Rewards as the trainer makes them: the score at the last token."""
    rewards = [torch.zeros(length) for length in lengths]
    for reward, score in zip(rewards, scores, strict=True):
        reward[-1] = score
    return rewards


def firsts(tensors):
    return torch.stack([tensor[0] for tensor in tensors])


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1, 0, 0, 1], [0.86602, -0.86602, -0.86602, 0.86602]),
        ([1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
        ([3.0, 1.0], [0.70711, -0.70711]),
    ],
)
def test_grpo_standardises_with_the_unbiased_std(scores, expected):
    advantages, returns = grpo(at_last_token(scores, [1, 2, 3, 4][: len(scores)]), torch.zeros(len(scores)).long())
    torch.testing.assert_close(firsts(advantages), torch.tensor(expected), atol=1e-5, rtol=0)
    for advantage, value in zip(advantages, returns, strict=True):
        assert (advantage == advantage[0]).all()
        assert torch.equal(advantage, value)


def test_grpo_sums_the_token_rewards_so_that_a_kl_in_the_reward_counts():
    spread = [torch.tensor([-0.25, -0.25, 1.0]), torch.tensor([-0.5, 0.0])]
    summed = [torch.tensor([0.0, 0.0, 0.5]), torch.tensor([0.0, -0.5])]
    groups = torch.tensor([0, 0])
    for one, other in zip(grpo(spread, groups)[0], grpo(summed, groups)[0], strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.3, -1e4])
def test_a_group_of_equal_scores_gets_exactly_zero(value):
    # 0.1 + 0.2 is not 0.3 in floating point; summed in another order the same score differs in its last bits
    rewards = [
        torch.tensor([value]),
        torch.tensor([value / 3, value / 3, value / 3]),
        torch.tensor([value * 0.7, value * 0.3]),
    ]
    for advantage in grpo(rewards, torch.tensor([5, 5, 5]))[0]:
        assert torch.equal(advantage, torch.zeros_like(advantage))


def test_a_small_difference_that_is_meant_is_kept():
    advantages, _ = grpo(at_last_token([0.5, 0.501], [1, 1]), torch.tensor([0, 0]))
    assert advantages[1][0] == pytest.approx(0.7061, abs=1e-3)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_sample_order_changes_nothing(name):
    random = np.random.default_rng(0)
    lengths = random.integers(1, 9, size=24).tolist()
    rewards = at_last_token(random.normal(size=24).tolist(), lengths)
    groups = torch.arange(6).repeat_interleave(4)
    plain = ESTIMATORS[name](rewards, groups)
    order = random.permutation(24)
    shuffled = ESTIMATORS[name]([rewards[i] for i in order], groups[torch.from_numpy(order)])
    for expected, result in zip(plain, shuffled, strict=True):
        for place, i in enumerate(order):
            torch.testing.assert_close(result[place], expected[i])


def test_interleaved_prompts_are_the_same_groups():
    # p1, p2, p1, p2: treating neighbours as a group would give +-0.70711 throughout
    advantages, _ = grpo(at_last_token([1, 5, 0, 5], [1, 1, 1, 1]), torch.tensor([0, 1, 0, 1]))
    torch.testing.assert_close(firsts(advantages), torch.tensor([0.70711, 0, -0.70711, 0]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_output_is_ragged_float32_like_the_rewards(name):
    rewards = [torch.ones(3, dtype=torch.float64), torch.zeros(1, dtype=torch.float64), torch.zeros(0)]
    for result in ESTIMATORS[name](rewards, torch.tensor([1, 1, 1])):
        assert [(len(tensor), tensor.dtype) for tensor in result] == [(length, torch.float32) for length in (3, 1, 0)]
        result[0][0] = 9.0  # no shared storage behind the tokens
        assert result[0][1] != 9.0


@pytest.mark.parametrize("name", [name for name, needs in NEEDS.items() if needs.min_n > 1])
def test_too_few_answers_are_refused_with_the_cure(name):
    with pytest.raises(ValueError, match=r"1 of 2 groups have a single answer.*rollout\.n"):
        ESTIMATORS[name](at_last_token([1, 0, 1], [1, 1, 1]), torch.tensor([0, 0, 1]))
