"""Scores -> token rewards -> advantages, written back to the samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from easyr1.algorithms.advantages import ESTIMATORS
from easyr1.algorithms.filters import overlong_penalty
from easyr1.algorithms.kl import PENALTIES
from easyr1.batch import Group, Sample, all_samples


@dataclass(frozen=True)
class KlInReward:
    """The KL that is taken off each token's reward: which estimate, and how much of it."""

    penalty: str
    coef: float


def assign(groups: Sequence[Group], estimator: str, kl: KlInReward | None = None) -> float | None:
    """Fill `rewards`, `advantages` and `returns` of every sample.

    With `kl` every sample needs old and reference log-probs. Returns the KL as its mean over samples of their means
    over tokens (None without `kl`).
    """
    samples = all_samples(groups)
    kls = [None if kl is None else token_kl(sample, kl.penalty) for sample in samples]
    for sample, token_kls in zip(samples, kls, strict=True):
        rewards = np.zeros(len(sample), dtype=np.float32)
        rewards[-1] = sample.scores["overall"]
        if kl is not None and token_kls is not None:
            rewards -= kl.coef * token_kls
        sample.rewards = rewards
    numbers = torch.tensor([number for number, group in enumerate(groups) for _ in group.samples])
    rewards = [torch.from_numpy(sample.rewards) for sample in samples]
    advantages, returns = ESTIMATORS[estimator](rewards, numbers)
    for sample, advantage, value in zip(samples, advantages, returns, strict=True):
        sample.advantages, sample.returns = advantage.numpy(), value.numpy()
    if kl is None:
        return None
    return float(np.mean([token_kls.mean() for token_kls in kls if token_kls is not None]))


def token_kl(sample: Sample, penalty: str) -> np.ndarray:
    """(T,) KL estimate of each token, between the policy that sampled and the reference."""
    assert sample.old_log_probs is not None and sample.ref_log_probs is not None
    return PENALTIES[penalty](torch.from_numpy(sample.old_log_probs), torch.from_numpy(sample.ref_log_probs)).numpy()


def without_truncated(groups: Sequence[Group]) -> list[Group]:
    """The groups without answers that were cut at the length limit; a group may be left with none."""
    return [
        Group(group.prompt, [sample for sample in group.samples if sample.completion.finish_reason != "length"])
        for group in groups
    ]


def punish_overlong(groups: Sequence[Group], limit: int, buffer: int, factor: float) -> None:
    """Take what answers pay for nearing the length limit off their `overall` score, and note it as `overlong`."""
    for sample in all_samples(groups):
        sample.scores["overlong"] = factor * overlong_penalty(len(sample), limit, buffer)
        sample.scores["overall"] += sample.scores["overlong"]
