"""Groups -> named numbers, under EasyR1's names."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from easyr1.algorithms.corrections import effective_share
from easyr1.algorithms.values import explained_variance
from easyr1.batch import Group, all_samples


def spread(name: str, values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Mean, max and min of `values`."""
    array = np.asarray(values, dtype=np.float64)
    return {f"{name}/mean": float(array.mean()), f"{name}/max": float(array.max()), f"{name}/min": float(array.min())}


def score_means(groups: Sequence[Group]) -> dict[str, float]:
    """Mean of every score over the samples that have it."""
    values: dict[str, list[float]] = {}
    for sample in all_samples(groups):
        for name, value in sample.scores.items():
            values.setdefault(name, []).append(value)
    return {name: float(np.mean(column)) for name, column in values.items()}


def lengths(groups: Sequence[Group], max_prompt: int, max_response: int, prefix: str = "") -> dict[str, float]:
    """Lengths in tokens; `clip_ratio` is the share of answers cut by the limit, and of prompts at their limit."""
    samples = all_samples(groups)
    responses = np.array([len(sample) for sample in samples])
    prompts = np.array([len(group.prompt.ids) for group in groups for _ in group.samples])
    cut = [sample.completion.finish_reason == "length" and len(sample) >= max_response for sample in samples]
    return {
        **spread(f"{prefix}response_length", responses),
        f"{prefix}response_length/clip_ratio": float(np.mean(cut)),
        **spread(f"{prefix}prompt_length", prompts),
        f"{prefix}prompt_length/clip_ratio": float(np.mean(prompts >= max_prompt)),
    }


def training_metrics(groups: Sequence[Group], max_prompt: int, max_response: int) -> dict[str, float]:
    """Everything that a step's groups tell, once rewards and advantages are in place."""
    samples = all_samples(groups)

    def tokens(name: str) -> np.ndarray:
        return np.concatenate([getattr(sample, name) for sample in samples])

    values = {}
    if samples[0].values is not None:
        explained = explained_variance(torch.from_numpy(tokens("values")), torch.from_numpy(tokens("returns")))
        values = spread("critic/values", tokens("values")) | {"critic/vf_explained_var": explained}
    return {
        **values,
        **{f"reward/{name}": value for name, value in score_means(groups).items()},
        **spread("critic/score", [sample.scores["overall"] for sample in samples]),
        **spread("critic/rewards", [float(sample.rewards.sum()) for sample in samples if sample.rewards is not None]),
        **spread("critic/advantages", tokens("advantages")),
        **spread("critic/returns", tokens("returns")),
        **lengths(groups, max_prompt, max_response),
        "rollout/flat_groups": flat_share(groups),
    }


def mismatch_metrics(actor: dict[str, float]) -> dict[str, float]:
    """The same metrics, with how far sampler and trainer are apart under names of their own."""
    if "actor/rollout_weight" not in actor:  # the actor was not trained
        return actor
    weight, squared = actor["actor/rollout_weight"], actor["actor/rollout_weight_squared"]
    found = {
        "rollout/log_prob_gap_mean": actor["actor/rollout_gap"],
        "rollout/log_prob_gap_max": actor["actor/rollout_gap_max"],
        "rollout/kl": actor["actor/rollout_kl"],
        "rollout/effective_share": effective_share(weight, squared),
    }
    return {name: value for name, value in actor.items() if not name.startswith("actor/rollout_")} | found


def flat_share(groups: Sequence[Group]) -> float:
    """Share of groups whose answers all scored alike, which therefore teach nothing."""
    return float(np.mean([len({sample.scores["overall"] for sample in group.samples}) == 1 for group in groups]))


def count_tokens(groups: Iterable[Group]) -> tuple[int, int]:
    """Tokens of all samples (prompt and answer each), and those of the answers alone."""
    pairs = [(len(group.prompt.ids), len(sample)) for group in groups for sample in group.samples]
    return sum(prompt + answer for prompt, answer in pairs), sum(answer for _, answer in pairs)
