"""What an update minimises: a micro-batch's share of the loss over the whole mini-batch, and what to log of it.

Knows neither models nor how a mini-batch was cut: the shares of all cuts add up to the loss.
Shape legend: N answer tokens of a micro-batch, B samples of the mini-batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from easyr1.algorithms.kl import PENALTIES
from easyr1.algorithms.losses import LOSSES, aggregate
from easyr1.algorithms.values import value_clip
from easyr1.batch import Group, Sample
from easyr1.engines.pack import MicroBatch


class MiniBatch:
    """What must be counted over all micro-batches: samples by place, and tokens that may be trained on."""

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
        self.num_banned = sum(len(sample) for sample in self.samples.values()) - self.num_tokens


class Tokens:
    """The answer tokens of one micro-batch laid end to end, without those that may never be sampled."""

    def __init__(self, batch: MicroBatch, whole: MiniBatch, device: torch.device) -> None:
        self.whole = whole
        self.kept = batch.allowed
        self._samples = [whole.samples[place] for place in batch.places]
        numbers = torch.tensor([whole.number[place] for place in batch.places], device=device)
        self.sample = numbers.repeat_interleave(torch.tensor(batch.lengths, device=device))[self.kept]  # (N,)

    def flat(self, name: str) -> torch.Tensor:
        """(N,) values of the samples' field `name`, NaN where a sample has none."""
        arrays = [_or_nan(getattr(sample, name), len(sample)) for sample in self._samples]
        return torch.from_numpy(np.concatenate(arrays)).to(self.kept.device)[self.kept]

    def average(self, values: torch.Tensor, mode: str) -> torch.Tensor:
        """This micro-batch's share of the average of `values` (N,) over the mini-batch."""
        return aggregate(
            values,
            self.sample,
            mode,
            num_tokens=self.whole.num_tokens,
            num_samples=len(self.whole.samples),
            lengths=self.whole.lengths,
        )


class Objective(Protocol):
    """A loss on what the root module says of each token."""

    prefix: str  # of its metrics

    def share(
        self, outputs: tuple[torch.Tensor, torch.Tensor], tokens: Tokens, kl_coef: float
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """The root's two outputs (N,) -> this micro-batch's share of the loss, and of each metric."""
        ...


@dataclass(frozen=True)
class PolicyObjective:
    """A policy loss, and with `kl_penalty` a KL term. Takes log-probs and entropies."""

    loss: str = "default"
    average: str = "token"
    clip_low: float = 0.2
    clip_high: float = 0.3
    clip_dual: float = 3.0
    kl_penalty: str | None = None
    prefix: str = "actor"

    def share(
        self, outputs: tuple[torch.Tensor, torch.Tensor], tokens: Tokens, kl_coef: float
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        log_probs, entropy = outputs
        old = tokens.flat("old_log_probs")
        old = torch.where(old.isnan(), log_probs.detach(), old)  # none given: the policy is the one that sampled
        losses, metrics = LOSSES[self.loss](
            log_probs,
            old,
            tokens.flat("advantages"),
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            clip_dual=self.clip_dual,
            sample=tokens.sample,
        )
        share = tokens.average(losses, self.average)
        shares = {"pg_loss": share.detach(), "entropy_loss": tokens.average(-log_probs.detach(), self.average)}
        shares |= {"entropy": tokens.average(entropy, self.average)}
        shares |= {name: tokens.average(metric, self.average) for name, metric in metrics.items()}
        if self.kl_penalty is not None:
            kl = tokens.average(PENALTIES[self.kl_penalty](log_probs, tokens.flat("ref_log_probs")), self.average)
            share = share + kl_coef * kl
            shares["kl_loss"] = kl.detach()
        return share, shares


@dataclass(frozen=True)
class ValueObjective:
    """The clipped value loss of a critic. Takes values; the second output is not used."""

    average: str = "token"
    clip: float = 0.5
    prefix: str = "critic"

    def share(
        self, outputs: tuple[torch.Tensor, torch.Tensor], tokens: Tokens, kl_coef: float
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        values, _ = outputs
        losses, metrics = value_clip(values, tokens.flat("values"), tokens.flat("returns"), clip=self.clip)
        share = tokens.average(losses, self.average)
        return share, {
            "vf_loss": share.detach(),
            "vpred_mean": tokens.average(values.detach(), self.average),
            **{name: tokens.average(metric, self.average) for name, metric in metrics.items()},
        }


def _or_nan(array: np.ndarray | None, length: int) -> np.ndarray:
    return np.full(length, np.nan, np.float32) if array is None else array
