"""Importance weights where sampler and trainer do not agree on how likely a sampled token was.

The two may compute in different precision or with other kernels, so even the same weights give other log-probs. With
r = exp(trainer - sampler), each correction turns r into a weight of the token's loss. No gradient flows through them.

Shape legend: N answer tokens laid end to end, B samples.
"""

from collections.abc import Callable

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0


def ratio(log_probs: Tensor, sampler: Tensor) -> Tensor:
    """(N,) exp(trainer - sampler) without gradient, its exponent cut at +-20."""
    return (log_probs.detach().float() - sampler.float()).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def truncated(log_probs: Tensor, sampler: Tensor, sample: Tensor, cap: float) -> Tensor:
    """Truncated importance sampling: the ratio, at most `cap`.

    Formula: min(r, cap), r = exp(trainer - sampler)
    Paper: Yao et al. (2025), "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"

    >>> truncated(torch.tensor([0.0, 2.0]), torch.zeros(2), torch.tensor([0, 0]), 2.0).tolist()
    [1.0, 2.0]
    """
    return ratio(log_probs, sampler).clamp(max=cap)


def masked(log_probs: Tensor, sampler: Tensor, sample: Tensor, cap: float) -> Tensor:
    """Masked importance sampling: a token that the sampler took for much less likely teaches nothing.

    Formula: r where r <= cap, else 0
    Paper: the masked variant of truncated importance sampling, as the field's trainers offer it

    >>> masked(torch.tensor([0.0, 2.0]), torch.zeros(2), torch.tensor([0, 0]), 2.0).tolist()
    [1.0, 0.0]
    """
    weights = ratio(log_probs, sampler)
    return torch.where(weights <= cap, weights, 0.0)


def icepop(log_probs: Tensor, sampler: Tensor, sample: Tensor, cap: float) -> Tensor:
    """IcePop: tokens on which sampler and trainer differ much, in either direction, teach nothing.

    Formula: r where 1 / cap <= r <= cap, else 0
    Paper: IcePop, in the report on Ring-1T (arXiv:2510.18855)

    >>> icepop(torch.tensor([0.0, 2.0, -2.0]), torch.zeros(3), torch.tensor([0, 0, 0]), 2.0).tolist()
    [1.0, 0.0, 0.0]
    """
    weights = ratio(log_probs, sampler)
    return torch.where((weights <= cap) & (weights >= 1 / cap), weights, 0.0)


def sequence_mask(log_probs: Tensor, sampler: Tensor, sample: Tensor, cap: float) -> Tensor:
    """Sequence mask: a sample on which sampler and trainer differ much on average teaches nothing.

    Formula: 1 for all tokens of a sample whose geometric mean of r lies in [1 / cap, cap], else 0
    Paper: geometric sequence masking, as the field's trainers offer it

    >>> sequence_mask(torch.tensor([0.0, 3.0, 0.1]), torch.zeros(3), torch.tensor([0, 0, 1]), 2.0).tolist()
    [0.0, 0.0, 1.0]
    """
    gap = log_probs.float() - sampler.float()
    size = int(sample.max()) + 1 if len(sample) else 0
    counts = gap.new_zeros(size).index_add_(0, sample, torch.ones_like(gap))
    means = gap.new_zeros(size).index_add_(0, sample, gap) / counts.clamp(min=1)
    kept = means.exp().clamp(max=torch.finfo(torch.float32).max)
    return ((kept <= cap) & (kept >= 1 / cap)).float()[sample]


def mismatch(log_probs: Tensor, sampler: Tensor) -> dict[str, Tensor]:
    """Per-token numbers (N,) that tell how far trainer and sampler are apart, to be averaged over tokens.

    `rollout_gap` is the difference of the log-probs without its sign, `rollout_kl` the k3 estimate of KL(sampler,
    trainer); `rollout_weight` and `rollout_weight_squared` are r and its square, from whose means the effective sample
    size follows (`effective_share`).

    >>> [value.tolist() for value in mismatch(torch.tensor([-1.0]), torch.tensor([-1.0])).values()]
    [[0.0], [0.0], [1.0], [1.0]]
    """
    weights = ratio(log_probs, sampler)
    gap = (log_probs.float() - sampler.float()).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return {
        "rollout_gap": gap.abs(),
        "rollout_kl": gap.expm1() - gap,
        "rollout_weight": weights,
        "rollout_weight_squared": weights**2,
    }


def effective_share(mean_weight: float, mean_squared_weight: float) -> float:
    """Effective sample size as a share of the tokens: (mean r)^2 / mean r^2; 1 where trainer and sampler agree.

    >>> effective_share(1.0, 1.0), effective_share(1.0, 2.0)
    (1.0, 0.5)
    """
    return mean_weight**2 / mean_squared_weight


Correction = Callable[[Tensor, Tensor, Tensor, float], Tensor]

CORRECTIONS: dict[str, Correction] = {
    "tis": truncated,
    "mis": masked,
    "icepop": icepop,
    "seq_mask": sequence_mask,
}
