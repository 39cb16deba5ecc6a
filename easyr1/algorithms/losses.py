"""What the policy is pushed towards: per-token losses, and the one function that averages them.

Losses are pure functions on flat tokens: all answer tokens of a batch laid end to end, no padding, no mask. They never
average. `aggregate` averages with denominators counted over the whole mini-batch on all ranks, so the result does not
depend on how the batch is cut: the sums over all cuts are the loss, and the sums of their gradients its gradient.

Shape legend: N answer tokens, B samples.
"""

import math
from typing import Protocol

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0  # exp(20) lies far beyond every clip range, and far below infinity


class LossFn(Protocol):
    """Per-token loss and per-token metrics, from log-probs of the sampled tokens.

    `sample` (N,) tells which sample a token belongs to; a loss that averages within a sample must be given all of its
    tokens. Metrics are detached (N,) tensors, to be averaged like the loss.
    """

    def __call__(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        *,
        clip_low: float,
        clip_high: float,
        clip_dual: float,
        sample: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]: ...


def ppo_clip(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    clip_dual: float,
    sample: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Importance-weighted advantage, flat where the policy has moved far enough.

    PPO (arXiv:1707.06347), equation 7: -min(A r, A clip(r, 1 - clip_low, 1 + clip_high)) with r = pi / pi_old.
    The two separate bounds are DAPO's clip-higher (arXiv:2503.14476), equation 10. Where A < 0 the loss is at most
    -A * clip_dual, dual-clip PPO (arXiv:1912.09729).

    Departure: the log-ratio is cut at +-20 before the exponential, so that no token gives infinity.

    Args:
        log_probs: (N,) of the sampled tokens under the policy being trained.
        old_log_probs: (N,) under the policy at the start of the step.
        advantages: (N,).
        clip_low: how far the ratio may fall below 1; 1 leaves the lower side open.
        clip_high: how far it may rise above 1.
        clip_dual: most that -A is multiplied by where A < 0; infinity turns it off.
        sample: (N,) not used.

    Returns:
        (N,) losses, and detached (N,) metrics: `ppo_kl` (-log r, its mean estimates the move from the old policy),
        `pg_clipfrac_higher` (1 where the ratio's bounds clip) and `pg_clipfrac_lower` (1 where `clip_dual` does).

    >>> loss, metrics = ppo_clip(
    ...     torch.tensor([0.0, 0.0]).log1p(), torch.tensor([0.5, 0.1]).log(), torch.tensor([1.0, -1.0]),
    ...     clip_low=0.2, clip_high=0.28, clip_dual=3.0, sample=torch.tensor([0, 1]))
    >>> [round(x, 4) for x in loss.tolist()], metrics["pg_clipfrac_higher"].tolist()
    ([-1.28, 3.0], [1.0, 0.0])
    """
    log_ratio = log_probs.float() - old_log_probs.float()
    bounded = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    unclipped = -advantages * bounded.exp()
    clipped = -advantages * bounded.clamp(*log_clip_range(clip_low, clip_high)).exp()
    single = torch.maximum(unclipped, clipped)
    floor = -advantages * clip_dual
    is_worse = advantages < 0
    losses = torch.where(is_worse & (single > floor), floor, single)
    metrics = {
        "ppo_kl": -log_ratio,
        "pg_clipfrac_higher": (unclipped < clipped).float(),
        "pg_clipfrac_lower": (is_worse & (single > floor)).float(),
    }
    return losses, {name: metric.detach() for name, metric in metrics.items()}


def log_clip_range(clip_low: float, clip_high: float) -> tuple[float, float]:
    """The bounds of the log-ratio for ratios in [1 - clip_low, 1 + clip_high].

    >>> log_clip_range(1.0, 0.0)
    (-inf, 0.0)
    """
    if not 0 <= clip_low <= 1 or clip_high < 0:
        raise ValueError(f"clip_low {clip_low} must lie in [0, 1] and clip_high {clip_high} must not be negative")
    return (math.log1p(-clip_low) if clip_low < 1 else -math.inf), math.log1p(clip_high)


def token_weights(sample: Tensor, lengths: Tensor, *, num_tokens: float, num_samples: float) -> Tensor:
    """(N,) equal weight for each token of the mini-batch; DAPO (arXiv:2503.14476), equation 12."""
    return torch.full(sample.shape, 1.0 / num_tokens, device=sample.device)


def sample_weights(sample: Tensor, lengths: Tensor, *, num_tokens: float, num_samples: float) -> Tensor:
    """(N,) equal weight for each sample, shared by its tokens; GRPO (arXiv:2402.03300), equation 3."""
    return 1.0 / (lengths.to(sample.device, torch.float32)[sample] * num_samples)


AVERAGES = {"token": token_weights, "seq": sample_weights}


def aggregate(
    values: Tensor,
    sample: Tensor,
    mode: str,
    *,
    num_tokens: float,
    num_samples: float,
    lengths: Tensor,
) -> Tensor:
    """This cut's share of the average over the whole mini-batch: add the shares of all cuts to get the average.

    Args:
        values: (N,) of the tokens of this cut.
        sample: (N,) sample of each token, an index into `lengths`.
        mode: "token", every token counts the same; "seq", every sample counts the same.
        num_tokens: answer tokens of the whole mini-batch, on all ranks.
        num_samples: samples of the whole mini-batch, on all ranks.
        lengths: (B,) full length of each sample, also where this cut holds only a part of it.

    Returns:
        Scalar; an empty cut gives 0 with a gradient of 0.

    >>> values, sample, lengths = torch.tensor([4.0, 0.0, 0.0, 0.0]), torch.tensor([0, 1, 1, 1]), torch.tensor([1, 3])
    >>> [aggregate(values, sample, m, num_tokens=4, num_samples=2, lengths=lengths).item() for m in ("token", "seq")]
    [1.0, 2.0]
    """
    if mode not in AVERAGES:
        raise ValueError(f"unknown averaging mode {mode!r}: choose one of {', '.join(AVERAGES)}")
    if num_tokens <= 0 or num_samples <= 0:
        raise ValueError(f"nothing to average: {num_tokens} tokens of {num_samples} samples in the mini-batch")
    weights = AVERAGES[mode](sample, lengths, num_tokens=num_tokens, num_samples=num_samples)
    return (values * weights).sum()


LOSSES: dict[str, LossFn] = {
    "default": ppo_clip,
}
