"""Rewards still to come, whitening over tokens, and the two estimators made of them, by hand."""

import pytest
import torch

from easyr1.algorithms.returns import discounted, gae, reinforce_plus_plus, whitened

TWO = torch.tensor([0, 0])


def assert_tokens(found, expected):
    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, torch.tensor(right, dtype=left.dtype), atol=1e-5, rtol=0)


def test_what_is_to_come_is_discounted_within_each_answer_only():
    tokens = [torch.tensor([1.0, 0.0, 8.0]), torch.zeros(0), torch.tensor([2.0]), torch.tensor([0.0, 4.0])]
    assert_tokens(discounted(tokens, 0.5), [[3, 4, 8], [], [2], [2, 4]])
    assert_tokens(discounted(tokens, 1.0), [[9, 8, 8], [], [2], [4, 4]])
    assert_tokens(discounted(tokens, 0.0), [[1, 0, 8], [], [2], [0, 4]])
    assert discounted([], 0.5) == []
    assert tokens[0].tolist() == [1, 0, 8]  # the input stays


def test_whitening_counts_real_tokens_and_divides_by_one_less():
    assert_tokens(whitened([torch.tensor([1.0]), torch.tensor([0.0, 0.0, 0.0])]), [[1.5], [-0.5, -0.5, -0.5]])
    assert_tokens(whitened([torch.tensor([1.0, 3.0])]), [[-0.70711, 0.70711]])
    assert_tokens(whitened([torch.tensor([0.1 + 0.2]), torch.tensor([0.3])]), [[0], [0]])
    assert whitened([]) == []


def test_reinforce_plus_plus_with_discount():
    advantages, returns = reinforce_plus_plus([torch.tensor([0.0, 0.0, 1.0]), torch.tensor([-1.0])], TWO, gamma=0.5)
    assert_tokens(returns, [[0.25, 0.5, 1.0], [-1.0]])
    # mean 0.1875, std 0.85086
    assert_tokens(advantages, [[0.07345, 0.36727, 0.95491], [-1.39565]])


def test_a_kl_in_the_reward_counts_from_its_token_on():
    _, returns = reinforce_plus_plus([torch.tensor([-0.1, -0.2, 0.7])], TWO[:1], gamma=1.0)
    assert_tokens(returns, [[0.4, 0.5, 0.7]])


def test_gae_by_hand():
    rewards = [torch.tensor([0.0, 1.0]), torch.tensor([0.0])]
    values = [torch.tensor([0.5, 0.25]), torch.tensor([0.4])]
    advantages, returns = gae(rewards, TWO, values=values, gamma=0.9, lam=0.8)
    # surprises -0.275 and 0.75, and -0.4; so 0.265, 0.75, -0.4 with mean 0.205 and std 0.57734
    assert_tokens(returns, [[0.765, 1.0], [0.0]])
    assert_tokens(advantages, [[0.10392, 0.94398], [-1.0479]])


@pytest.mark.parametrize("level", [0.0, 3.0])
def test_with_lambda_one_the_critic_only_shifts_and_with_zero_it_looks_one_token_ahead(level):
    rewards, values = [torch.tensor([1.0, 2.0, 4.0])], [torch.full((3,), level)]
    _, returns = gae(rewards, TWO[:1], values=values, gamma=1.0, lam=1.0)
    assert_tokens(returns, [[7, 6, 4]])
    _, returns = gae(rewards, TWO[:1], values=values, gamma=1.0, lam=0.0)
    assert_tokens(returns, [[1 + level, 2 + level, 4]])
