"""Scores -> token rewards -> advantages, written back to the samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from easyr1.algorithms.advantages import estimate
from easyr1.algorithms.filters import overlong_penalty
from easyr1.algorithms.kl import PENALTIES
from easyr1.algorithms.needs import FULL_KL, NEEDS
from easyr1.batch import Group, Sample, all_samples
from easyr1.errors import RewardError


@dataclass(frozen=True)
class KlInReward:
    """The KL that is taken off each token's reward: which estimate, and how much of it."""

    penalty: str
    coef: float


def assign(
    groups: Sequence[Group], estimator: str, kl: KlInReward | None = None, *, gamma: float = 1.0, lam: float = 1.0
) -> float | None:
    """Fill `rewards`, `advantages` and `returns` of every sample.

    With `kl` every sample needs old and reference log-probs, for an estimator with a critic its values. Returns the KL
    as its mean over samples of their means over tokens (None without `kl`).
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
    needs = NEEDS[estimator]
    advantages, returns = estimate(
        estimator,
        rewards,
        numbers,
        values=[torch.from_numpy(sample.values) for sample in samples] if needs.values else None,
        baselines=torch.tensor([group.baseline for group in groups for _ in group.samples], dtype=torch.float64)
        if needs.greedy_baseline
        else None,
        parts=score_parts(samples) if needs.parts else None,
        gamma=gamma,
        lam=lam,
    )
    for sample, advantage, value in zip(samples, advantages, returns, strict=True):
        sample.advantages, sample.returns = advantage.numpy(), value.numpy()
    if kl is None:
        return None
    return float(np.mean([token_kls.mean() for token_kls in kls if token_kls is not None]))


def token_kl(sample: Sample, penalty: str) -> np.ndarray:
    """(T,) KL estimate of each token, between the policy that sampled and the reference."""
    if penalty == FULL_KL:
        assert sample.full_kl is not None
        return sample.full_kl
    assert sample.old_log_probs is not None and sample.ref_log_probs is not None
    return PENALTIES[penalty](torch.from_numpy(sample.old_log_probs), torch.from_numpy(sample.ref_log_probs)).numpy()


def score_parts(samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """Name -> (B,) of every score but the overall one. Raises RewardError where some samples lack one."""
    names = dict.fromkeys(name for sample in samples for name in sample.scores if name != "overall")
    if not names:
        raise RewardError(
            'the reward function returns nothing but "overall", but the estimator combines the parts of a score: '
            'return each part beside it, for example {"overall": 1.5, "accuracy": 1.0, "format": 0.5}'
        )
    for name in names:
        lacking = sum(name not in sample.scores for sample in samples)
        if lacking:
            raise RewardError(
                f"the reward function leaves out {name!r} for {lacking} of {len(samples)} samples, but the estimator "
                "compares each part of a score: return a number for it every time"
            )
    return {name: torch.tensor([sample.scores[name] for sample in samples], dtype=torch.float64) for name in names}


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
