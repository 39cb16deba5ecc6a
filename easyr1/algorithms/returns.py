"""Estimators that look along an answer: rewards still to come, and advantages whitened over all tokens of the batch.

Pure functions with the contract of `advantages`; nothing is padded, sums are done in float64, results are float32. An
answer ends where it ends, also one that was cut off at the length limit: nothing is expected after its last token.

Shape legend: B samples, T_i tokens of answer i.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from easyr1.algorithms.groups import all_equal

VARIANCE_EPSILON = 1e-8


def reinforce_plus_plus(
    rewards: Sequence[Tensor], groups: Tensor, *, gamma: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Discounted rewards still to come at each token, whitened over all tokens of the batch.

    Formula: G_{i,t} = r_{i,t} + gamma G_{i,t+1}; A = (G - mean(G)) / sqrt(var(G) + 1e-8)
    Paper: REINFORCE++ (arXiv:2501.03262); with a KL in the reward and gamma 1 its score less the KL to come
    Departure: a batch of equal G gets exactly 0. The variance is the unbiased one (N - 1).

    Args:
        rewards: B tensors (T_i,), reward of each token.
        groups: (B,) not used.
        gamma: discount per token.

    Returns:
        Advantages, and the discounted rewards to come as returns; each B float32 tensors (T_i,).

    >>> advantages, _ = reinforce_plus_plus(
    ...     [torch.tensor([1.0]), torch.tensor([0.0, 0.0, 0.0])], torch.tensor([0, 0]), gamma=1.0)
    >>> [[round(x, 4) for x in advantage.tolist()] for advantage in advantages]
    [[1.5], [-0.5, -0.5, -0.5]]
    """
    returns = discounted(rewards, gamma)
    return float32(whitened(returns)), float32(returns)


def gae(
    rewards: Sequence[Tensor], groups: Tensor, *, values: Sequence[Tensor], gamma: float, lam: float
) -> tuple[list[Tensor], list[Tensor]]:
    """What was better than the critic expected from each token on, whitened over all tokens of the batch.

    Formula: d_t = r_t + gamma V_{t+1} - V_t; a_t = d_t + gamma lam a_{t+1}; A = (a - mean(a)) / sqrt(var(a) + 1e-8)
    Paper: generalised advantage estimation (arXiv:1506.02438), equation 16
    Departure: equal a throughout the batch give exactly 0. The variance is the unbiased one (N - 1).

    Args:
        rewards: B tensors (T_i,), reward of each token.
        groups: (B,) not used.
        values: B tensors (T_i,), the critic's value before each token was chosen; 0 after the last.
        gamma: discount per token.
        lam: weight of later surprises; 0 trusts the critic, 1 the rewards.

    Returns:
        Advantages, and a + V as returns, which the critic learns; each B float32 tensors (T_i,).

    >>> advantages, returns = gae([torch.tensor([0.0, 1.0])], torch.tensor([0]), values=[torch.tensor([0.5, 0.25])],
    ...     gamma=1.0, lam=0.0)
    >>> returns[0].tolist(), [round(x, 4) for x in advantages[0].tolist()]
    ([0.25, 1.0], [-0.7071, 0.7071])
    """
    before = float64(values)
    after = [torch.cat((value, value.new_zeros(1)))[1:] for value in before]
    surprises = [
        reward + gamma * later - value for reward, later, value in zip(float64(rewards), after, before, strict=True)
    ]
    raw = discounted(surprises, gamma * lam)
    returns = [advantage + value for advantage, value in zip(raw, before, strict=True)]
    size = max((float(value.abs().max()) for value in before if len(value)), default=1.0)
    return float32(whitened(raw, size)), float32(returns)


def discounted(tokens: Sequence[Tensor], decay: float) -> list[Tensor]:
    """B float64 tensors (T_i,): at each token its value, plus `decay` times the result at the next one.

    >>> [sums.tolist() for sums in discounted([torch.tensor([1.0, 2.0, 4.0]), torch.tensor([3.0])], 0.5)]
    [[3.0, 4.0, 4.0], [3.0]]
    """
    lengths = torch.tensor([len(token) for token in tokens], dtype=torch.long)
    flat = torch.cat([*float64(tokens), torch.zeros(0, dtype=torch.float64)])
    order = lengths.argsort(descending=True)
    last_B, lengths_B = lengths.cumsum(0)[order] - 1, lengths[order]
    for back in range(1, int(lengths.max()) if len(lengths) else 0):
        here = last_B[: int((lengths_B > back).sum())] - back
        flat[here] += decay * flat[here + 1]
    return list(flat.split(lengths.tolist()))


def whitened(tokens: Sequence[Tensor], size: float = 1.0) -> list[Tensor]:
    """The same with mean 0 and variance 1 over all tokens together; zeros where all are equal up to rounding.

    `size`: of the numbers that they are differences of, for what rounding may do.

    >>> [values.tolist() for values in whitened([torch.tensor([2.0]), torch.tensor([2.0, 2.0])])]
    [[0.0], [0.0, 0.0]]
    """
    flat = torch.cat([*float64(tokens), torch.zeros(0, dtype=torch.float64)])
    if all_equal(flat, size):
        return [torch.zeros_like(values) for values in float64(tokens)]
    scale = (flat.var() + VARIANCE_EPSILON).rsqrt()
    return [(values - flat.mean()) * scale for values in float64(tokens)]


def float64(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors in double precision."""
    return [tensor.to(torch.float64) for tensor in tensors]


def float32(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors in single precision, each with storage of its own."""
    return [tensor.to(torch.float32).clone() for tensor in tensors]
