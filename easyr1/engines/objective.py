"""What an update minimises: a micro-batch's share of the loss over the whole mini-batch, and what to log of it.

Knows neither models nor how a mini-batch was cut: the shares of all cuts add up to the loss.
Shape legend: N answer tokens of a micro-batch, B samples of the mini-batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from easyr1.algorithms.corrections import CORRECTIONS, mismatch
from easyr1.algorithms.kl import PENALTIES
from easyr1.algorithms.losses import LOSSES, Clip, aggregate
from easyr1.algorithms.values import value_clip
from easyr1.batch import Completion, Group, Sample
from easyr1.engines.pack import MicroBatch
from easyr1.models.log_probs import TokenScores


class MiniBatch:
    """What must be counted over all micro-batches: samples by place, and tokens that may be trained on.

    Samples and their lengths are those of one replica, the numbers those of all (of this one until `count` is told).
    """

    def __init__(self, groups: Sequence[Group], banned: torch.Tensor) -> None:
        self.samples: dict[tuple[int, int], Sample] = {
            (index, number): sample
            for index, group in enumerate(groups)
            for number, sample in enumerate(group.samples)
        }
        self.number = {place: number for number, place in enumerate(self.samples)}
        counts = [int((~np.isin(sample.completion.ids, banned.numpy())).sum()) for sample in self.samples.values()]
        self.lengths = torch.tensor(counts)
        self.num_tokens = sum(counts)
        self.num_samples = len(self.samples)
        self.num_banned = sum(len(sample) for sample in self.samples.values()) - self.num_tokens

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.num_tokens, self.num_samples, self.num_banned

    def count(self, replicas: Sequence[tuple[int, ...]]) -> None:
        """Take the sums of what all replicas count."""
        self.num_tokens, self.num_samples, self.num_banned = (sum(column) for column in zip(*replicas, strict=True))


NO_SAMPLE = Sample(Completion(np.zeros(1, np.int64), np.zeros(1, np.float32), "length", "", 0))


class Tokens:
    """The answer tokens of one micro-batch laid end to end, without those that may never be sampled.

    `fillers` are the tokens of no sample of the mini-batch; they are left out, too.
    """

    def __init__(self, batch: MicroBatch, whole: MiniBatch, device: torch.device) -> None:
        self.whole = whole
        self._samples = [whole.samples.get(place, NO_SAMPLE) for place in batch.places]
        numbers = torch.tensor([whole.number.get(place, -1) for place in batch.places], device=device)
        of_token = numbers.repeat_interleave(torch.tensor(batch.lengths, device=device))
        self.has_fillers = any(place not in whole.samples for place in batch.places)
        self.fillers = of_token < 0
        self.kept = batch.allowed & ~self.fillers
        self.sample = of_token[self.kept]  # (N,)

    def flat(self, name: str) -> torch.Tensor:
        """(N,) values of the samples' field `name`, NaN where a sample has none."""
        arrays = [_or_nan(getattr(sample, name), len(sample)) for sample in self._samples]
        return torch.from_numpy(np.concatenate(arrays)).to(self.kept.device)[self.kept]

    def sampler_log_probs(self) -> torch.Tensor:
        """(N,) log-probs that the tokens had when they were sampled."""
        arrays = [sample.completion.log_probs for sample in self._samples]
        return torch.from_numpy(np.concatenate(arrays)).to(self.kept.device)[self.kept]

    def average(self, values: torch.Tensor, mode: str, max_length: int = 0) -> torch.Tensor:
        """This micro-batch's share of the average of `values` (N,) over the mini-batch."""
        return aggregate(
            values,
            self.sample,
            mode,
            num_tokens=self.whole.num_tokens,
            num_samples=self.whole.num_samples,
            lengths=self.whole.lengths,
            max_length=max_length,
        )


@dataclass(frozen=True)
class Share:
    """What one micro-batch adds to a mini-batch: its part of the loss and of each metric, and largest values."""

    loss: torch.Tensor
    parts: Mapping[str, torch.Tensor]
    peaks: Mapping[str, torch.Tensor] = field(default_factory=dict)


class Objective(Protocol):
    """A loss on what the root module says of each token."""

    @property
    def prefix(self) -> str:
        """First part of the names of its metrics."""
        ...

    def share(self, scores: TokenScores, tokens: Tokens, kl_coef: float) -> Share:
        """What the root says of the N tokens -> what this micro-batch adds."""
        ...


@dataclass(frozen=True)
class PolicyObjective:
    """A policy loss, with `kl_penalty` a KL term, with `entropy_coef` an entropy bonus. Takes log-probs and entropies.

    `correction` weighs each token's loss by how the trainer's log-probs differ from the sampler's, see
    `algorithms.corrections`.
    """

    loss: str = "default"
    average: str = "token"
    max_response_length: int = 0  # what seq_sum_const divides by
    clip: Clip = field(default_factory=Clip)
    kl_penalty: str | None = None
    entropy_coef: float = 0.0
    correction: str | None = None
    correction_cap: float = 2.0
    prefix: str = "actor"

    def share(self, scores: TokenScores, tokens: Tokens, kl_coef: float) -> Share:
        log_probs, entropy, full_kl = scores
        old = tokens.flat("old_log_probs")
        old = torch.where(old.isnan(), log_probs.detach(), old)  # none given: the policy is the one that sampled
        losses, metrics = LOSSES[self.loss](
            log_probs, old, tokens.flat("advantages"), clip=self.clip, sample=tokens.sample
        )
        sampler = tokens.sampler_log_probs()
        if self.correction is not None:
            weights = CORRECTIONS[self.correction](old, sampler, tokens.sample, self.correction_cap)
            losses = losses * weights
            metrics = metrics | {"correction_weight": weights}
        share = self._average(losses, tokens)
        measure = "seq" if self.average == "seq" else "token"  # a constant divisor is for the loss, it gives no mean
        shares = {"pg_loss": share.detach(), "entropy_loss": tokens.average(-log_probs.detach(), measure)}
        shares |= {"entropy": tokens.average(entropy.detach(), measure)}
        shares |= {name: tokens.average(metric, measure) for name, metric in metrics.items()}
        shares |= {name: tokens.average(value, "token") for name, value in mismatch(old, sampler).items()}
        if self.entropy_coef:
            share = share - self.entropy_coef * self._average(entropy, tokens)
        if self.kl_penalty is not None:
            estimate = PENALTIES.get(self.kl_penalty)
            kl = estimate(log_probs, tokens.flat("ref_log_probs")) if estimate is not None else full_kl
            share = share + kl_coef * self._average(kl, tokens)
            shares["kl_loss"] = tokens.average(kl.detach(), measure)
        gap = (old - sampler).abs().max() if len(old) else old.new_zeros(())
        return Share(share, shares, {"rollout_gap_max": gap})

    def _average(self, values: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        return tokens.average(values, self.average, self.max_response_length)


@dataclass(frozen=True)
class ValueObjective:
    """The clipped value loss of a critic. Takes values."""

    average: str = "token"
    clip: float = 0.5
    prefix: str = "critic"

    def share(self, scores: TokenScores, tokens: Tokens, kl_coef: float) -> Share:
        values = scores.log_probs
        losses, metrics = value_clip(values, tokens.flat("values"), tokens.flat("returns"), clip=self.clip)
        share = tokens.average(losses, self.average)
        parts = {
            "vf_loss": share.detach(),
            "vpred_mean": tokens.average(values.detach(), self.average),
            **{name: tokens.average(metric, self.average) for name, metric in metrics.items()},
        }
        return Share(share, parts)


def _or_nan(array: np.ndarray | None, length: int) -> np.ndarray:
    return np.full(length, np.nan, np.float32) if array is None else array
