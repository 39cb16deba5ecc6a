"""What the policy is pushed towards: per-token losses, and the one function that averages them.

Losses are pure functions on flat tokens: all answer tokens of a batch laid end to end, no padding, no mask. They never
average. `aggregate` averages with denominators counted over the whole mini-batch on all ranks, so the result does not
depend on how the batch is cut: the sums over all cuts are the loss, and the sums of their gradients its gradient.

Shape legend: N answer tokens, B samples.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0  # exp(20) lies far beyond every clip range, and far below infinity

Losses = tuple[Tensor, dict[str, Tensor]]


@dataclass(frozen=True)
class Clip:
    """How far the policy may move away from the one that sampled; each loss reads what it knows.

    Raises ValueError for bounds that no ratio can meet.
    """

    low: float = 0.2  # the ratio may fall to 1 - low; 1 leaves that side open
    high: float = 0.3  # and rise to 1 + high
    dual: float = 3.0  # most that -A is multiplied by where A < 0; infinity turns it off
    tau_positive: float = 1.0  # steepness of the soft bound where A >= 0
    tau_negative: float = 1.05  # and where A < 0

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1 or not self.high >= 0:
            raise ValueError(f"clip low {self.low} must lie in [0, 1] and clip high {self.high} must not be negative")
        if not self.dual > 1:
            raise ValueError(f"dual clip {self.dual} must be above 1: a ratio of 1 is no reason to clip")
        if not (self.tau_positive > 0 and self.tau_negative > 0):
            raise ValueError(f"temperatures {self.tau_positive} and {self.tau_negative} must be above 0")

    @property
    def log_range(self) -> tuple[float, float]:
        """The bounds of the log-ratio for ratios in [1 - low, 1 + high].

        >>> Clip(low=1.0, high=0.0).log_range
        (-inf, 0.0)
        """
        return (math.log1p(-self.low) if self.low < 1 else -math.inf), math.log1p(self.high)


class LossFn(Protocol):
    """Per-token loss and per-token metrics, from log-probs of the sampled tokens.

    Args:
        log_probs: (N,) of the sampled tokens under the policy being trained.
        old_log_probs: (N,) under the policy at the start of the step.
        advantages: (N,).
        clip: bounds of the move.
        sample: (N,) which sample a token belongs to, any numbers. A loss that averages within a sample must be given
            all of its tokens.

    Returns:
        (N,) losses, and detached (N,) metrics, to be averaged like the loss: `ppo_kl` (-log r, its mean estimates the
        move from the old policy), `pg_clipfrac_higher` (1 where the ratio's bounds clip) and `pg_clipfrac_lower` (1
        where the dual clip does); the last two only where a loss clips.
    """

    def __call__(
        self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, clip: Clip, sample: Tensor
    ) -> Losses: ...


def ppo_clip(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, clip: Clip, sample: Tensor) -> Losses:
    """Importance-weighted advantage, flat where the policy has moved far enough.

    Formula: -min(A r, A clip(r, 1 - low, 1 + high)) with r = pi / pi_old; where A < 0 at most -A dual
    Paper: PPO (arXiv:1707.06347), equation 7; two bounds: clip-higher of DAPO (arXiv:2503.14476), equation 10; dual
    clip (arXiv:1912.09729)
    Keys: clip_ratio_low, clip_ratio_high, clip_ratio_dual
    Departure: the log-ratio is cut at +-20 before the exponential, so that no token gives infinity.

    Args, Returns: as `LossFn`; `sample` is not used.

    >>> loss, metrics = ppo_clip(
    ...     torch.tensor([0.0, 0.0]).log1p(), torch.tensor([0.5, 0.1]).log(), torch.tensor([1.0, -1.0]),
    ...     clip=Clip(low=0.2, high=0.28, dual=3.0), sample=torch.tensor([0, 1]))
    >>> [round(x, 4) for x in loss.tolist()], metrics["pg_clipfrac_higher"].tolist()
    ([-1.28, 3.0], [1.0, 0.0])
    """
    log_ratio = gap(log_probs, old_log_probs)
    losses, clips = clipped_surrogate(log_ratio, advantages, clip)
    return losses, {"ppo_kl": -log_ratio.detach(), **clips}


def gspo(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, clip: Clip, sample: Tensor) -> Losses:
    """As default, with one ratio for each answer: the geometric mean of the ratios of its tokens.

    Formula: -min(A s, A clip(s, 1 - low, 1 + high)) with s = exp(mean over the answer of log(pi / pi_old))
    Paper: GSPO (arXiv:2507.18071), equation 5; its bounds are 3e-4 and 4e-4, its averaging is `loss_avg_mode=seq`
    Keys: clip_ratio_low, clip_ratio_high, clip_ratio_dual
    Departure: the dual clip, which the paper lacks, holds here too.

    Args, Returns: as `LossFn`.

    >>> loss, _ = gspo(torch.tensor([0.1, -0.1, 0.3]), torch.zeros(3), torch.ones(3),
    ...     clip=Clip(high=0.28), sample=torch.tensor([4, 4, 4]))
    >>> [round(x, 5) for x in loss.tolist()]
    [-1.10517, -1.10517, -1.10517]
    """
    log_ratio = gap(log_probs, old_log_probs)
    losses, clips = clipped_surrogate(sample_mean(log_ratio, sample), advantages, clip)
    return losses, {"ppo_kl": -log_ratio.detach(), **clips}


def gspo_token(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, clip: Clip, sample: Tensor) -> Losses:
    """The ratio of `gspo` in value, with the gradient of each token on that token alone: for advantages per token.

    Formula: as gspo with s_t = sg(s) pi_t / sg(pi_t), sg without gradient
    Paper: GSPO-token (arXiv:2507.18071); where all tokens of an answer have one advantage its gradient is gspo's
    Keys: clip_ratio_low, clip_ratio_high, clip_ratio_dual
    Departure: the dual clip, which the paper lacks, holds here too.

    Args, Returns: as `LossFn`.

    >>> log_probs = torch.zeros(2, requires_grad=True)
    >>> loss, _ = gspo_token(log_probs, torch.tensor([-0.1, 0.1]), torch.tensor([1.0, 2.0]),
    ...     clip=Clip(), sample=torch.tensor([0, 0]))
    >>> torch.autograd.grad(loss.sum(), log_probs)[0].tolist()
    [-1.0, -2.0]
    """
    log_ratio = gap(log_probs, old_log_probs)
    of_sample = sample_mean(log_ratio.detach(), sample)
    losses, clips = clipped_surrogate(of_sample + log_ratio - log_ratio.detach(), advantages, clip)
    return losses, {"ppo_kl": -log_ratio.detach(), **clips}


def cispo(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, clip: Clip, sample: Tensor) -> Losses:
    """REINFORCE with a weight: the ratio, cut from above and without gradient. No token loses its gradient.

    Formula: -sg(min(r, 1 + high)) A log pi, sg without gradient
    Paper: CISPO, MiniMax-M1 (arXiv:2506.13585), whose experiments leave the lower side open
    Keys: clip_ratio_high
    Departure: `clip_ratio_low` is not read. EasyR1's example sets it to 0, which lifts every ratio below 1 to 1. The
    log-ratio is cut at +-20 first.

    Args, Returns: as `LossFn`; `sample` is not used. `pg_clipfrac_higher` tells where the weight is cut.

    >>> log_probs = torch.tensor([-1.0], requires_grad=True)
    >>> loss, _ = cispo(log_probs, torch.tensor([-1.7]), torch.tensor([1.0]), clip=Clip(high=0.28),
    ...     sample=torch.tensor([0]))
    >>> round(torch.autograd.grad(loss.sum(), log_probs)[0].item(), 4)
    -1.28
    """
    log_ratio = gap(log_probs, old_log_probs).detach()
    ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    weights = ratio.clamp(max=1.0 + clip.high)
    losses = -advantages * weights * log_probs.float()
    return losses, {"ppo_kl": -log_ratio, "pg_clipfrac_higher": (ratio > weights).float()}


def sapo(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, clip: Clip, sample: Tensor) -> Losses:
    """A soft bound in place of a clip: the further the ratio is from 1, the weaker the pull, on both sides.

    Formula: -A (4 / tau) sigmoid(tau (r - 1)), tau = tau_positive where A >= 0, else tau_negative
    Paper: SAPO (arXiv:2511.20347)
    Keys: tau_positive, tau_negative
    Departure: the log-ratio is cut at +-20 before the exponential.

    Args, Returns: as `LossFn`; `sample` is not used.

    >>> log_probs = torch.tensor([0.0], requires_grad=True)
    >>> loss, _ = sapo(log_probs, torch.zeros(1), torch.tensor([1.0]), clip=Clip(), sample=torch.tensor([0]))
    >>> loss.item(), torch.autograd.grad(loss.sum(), log_probs)[0].item()
    (-2.0, -1.0)
    """
    log_ratio = gap(log_probs, old_log_probs)
    ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    tau = torch.where(advantages < 0, clip.tau_negative, clip.tau_positive)
    return -advantages * 4.0 / tau * torch.sigmoid(tau * (ratio - 1.0)), {"ppo_kl": -log_ratio.detach()}


def gmpo(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, clip: Clip, sample: Tensor) -> Losses:
    """The geometric mean of an answer's ratios, each clipped on its own before: no single token can dominate.

    Formula: -A exp(mean over the answer of log r_c) with r_c = min(r, 1 + high) where A > 0, else max(r, 1 - low)
    Paper: GMPO (arXiv:2507.20673); its bounds exp(-0.4) and exp(0.4) are low = 0.33 and high = 0.49, its averaging is
    `loss_avg_mode=seq`
    Keys: clip_ratio_low, clip_ratio_high
    Departure: where the tokens of an answer have different advantages, A is their mean. The log-ratio of a token is
    cut at +-20.

    Args, Returns: as `LossFn`.

    >>> loss, metrics = gmpo(torch.tensor([0.5, -0.5, 0.1]), torch.zeros(3), torch.ones(3),
    ...     clip=Clip(high=0.0), sample=torch.tensor([0, 0, 1]))
    >>> [round(x, 4) for x in loss.tolist()], metrics["pg_clipfrac_higher"].tolist()
    ([-0.7788, -0.7788, -1.0], [1.0, 0.0, 1.0])
    """
    log_ratio = gap(log_probs, old_log_probs)
    advantage = sample_mean(advantages.float(), sample)
    bounded = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    low, high = clip.log_range
    kept = torch.where(advantage > 0, bounded.clamp(max=high), bounded.clamp(min=low))
    losses = -advantage * sample_mean(kept, sample).exp()
    is_clipped = (kept != bounded) & (advantage != 0)
    return losses, {"ppo_kl": -log_ratio.detach(), "pg_clipfrac_higher": is_clipped.float()}


def gap(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """(N,) log r = log pi - log pi_old in float32."""
    return log_probs.float() - old_log_probs.float()


def sample_mean(values: Tensor, sample: Tensor) -> Tensor:
    """(N,) for each token the mean over the tokens of its sample.

    >>> sample_mean(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([7, 7, 2])).tolist()
    [2.0, 2.0, 5.0]
    """
    _, of_N, count_S = torch.unique(sample, return_inverse=True, return_counts=True)
    return (values.new_zeros(len(count_S)).index_add(0, of_N, values) / count_S)[of_N]


def clipped_surrogate(log_ratio: Tensor, advantages: Tensor, clip: Clip) -> Losses:
    """PPO's loss with two bounds and the dual clip, and where they hold."""
    bounded = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    unclipped = -advantages * bounded.exp()
    held = -advantages * bounded.clamp(*clip.log_range).exp()
    single = torch.maximum(unclipped, held)
    floor = -advantages * clip.dual
    is_worse = advantages < 0
    losses = torch.where(is_worse & (single > floor), floor, single)
    return losses, {
        "pg_clipfrac_higher": (unclipped < held).float().detach(),
        "pg_clipfrac_lower": (is_worse & (single > floor)).float().detach(),
    }


@dataclass(frozen=True)
class Whole:
    """What is counted over the whole mini-batch, on all ranks, before anything is computed."""

    num_tokens: float  # answer tokens
    num_samples: float
    lengths: Tensor  # (B,) full length of each sample, also where a cut holds only a part of it
    max_length: int  # most tokens that an answer may have; 0 = not known, only `seq_sum_const` asks for it


def token_weights(sample: Tensor, whole: Whole) -> Tensor:
    """Every token of the mini-batch counts the same, so long answers count more.

    Formula: (sum over tokens) / (number of tokens)
    Paper: DAPO (arXiv:2503.14476), equation 12
    """
    return torch.full(sample.shape, 1.0 / whole.num_tokens, device=sample.device)


def sample_weights(sample: Tensor, whole: Whole) -> Tensor:
    """Every answer counts the same, whatever its length.

    Formula: (sum over answers of the mean over their tokens) / (number of answers)
    Paper: GRPO (arXiv:2402.03300), equation 3
    Departure: the original EasyR1 weighs each micro-batch by its tokens, so that answers of 100 and of 1,000 tokens
    weigh 0.09 and 0.91; here 0.5 and 0.5.
    """
    lengths = whole.lengths.to(sample.device, torch.float32)
    return 1.0 / (lengths[sample] * whole.num_samples)


def constant_weights(sample: Tensor, whole: Whole) -> Tensor:
    """Every token of every mini-batch counts the same: the sum, divided by what does not depend on the answers.

    Formula: (sum over tokens) / (number of answers x data.max_response_length)
    Paper: Dr. GRPO (arXiv:2503.20783)
    Departure: metrics are averaged over tokens as in token, since a mean is what they mean.
    """
    if whole.max_length <= 0:
        raise ValueError(f"seq_sum_const needs the greatest length of an answer, not {whole.max_length}")
    return torch.full(sample.shape, 1.0 / (whole.num_samples * whole.max_length), device=sample.device)


AVERAGES = {"token": token_weights, "seq": sample_weights, "seq_sum_const": constant_weights}


def aggregate(
    values: Tensor,
    sample: Tensor,
    mode: str,
    *,
    num_tokens: float,
    num_samples: float,
    lengths: Tensor,
    max_length: int = 0,
) -> Tensor:
    """This cut's share of the average over the whole mini-batch: add the shares of all cuts to get the average.

    Args:
        values: (N,) of the tokens of this cut.
        sample: (N,) sample of each token, an index into `lengths`.
        mode: a key of `AVERAGES`.
        num_tokens, num_samples, lengths, max_length: see `Whole`.

    Returns:
        Scalar; an empty cut gives 0 with a gradient of 0.

    >>> values, sample, lengths = torch.tensor([4.0, 0.0, 0.0, 0.0]), torch.tensor([0, 1, 1, 1]), torch.tensor([1, 3])
    >>> [aggregate(values, sample, mode, num_tokens=4, num_samples=2, lengths=lengths, max_length=8).item()
    ...     for mode in ("token", "seq", "seq_sum_const")]
    [1.0, 2.0, 0.25]
    """
    if mode not in AVERAGES:
        raise ValueError(f"unknown averaging mode {mode!r}: choose one of {', '.join(AVERAGES)}")
    if num_tokens <= 0 or num_samples <= 0:
        raise ValueError(f"nothing to average: {num_tokens} tokens of {num_samples} samples in the mini-batch")
    weights = AVERAGES[mode](sample, Whole(num_tokens, num_samples, lengths, max_length))
    return (values * weights).sum()


LOSSES: dict[str, LossFn] = {
    "default": ppo_clip,
    "gspo": gspo,
    "gspo_token": gspo_token,
    "cispo": cispo,
    "sapo": sapo,
    "gmpo": gmpo,
}
