"""How much better than expected an answer was: token rewards and groups in, advantages and returns out.

Pure functions, one per estimator. They know neither the configuration nor the policy, and nothing is padded: a list
has one (T_i,) tensor for each of the B samples. What else an estimator needs (values, a greedy baseline, parts of the
score, discounts) is declared in `needs.NEEDS` and passed by keyword; `estimate` checks it. Sums are done in float64,
results are float32. A group from which nothing can be learnt gets exactly 0.

Shape legend: B samples, T_i tokens of answer i.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from easyr1.algorithms.groups import SPREAD_TOLERANCE, Groups
from easyr1.algorithms.needs import NEEDS
from easyr1.algorithms.returns import discounted, float32, gae, reinforce_plus_plus, whitened

STD_EPSILON = 1e-6

Estimates = tuple[list[Tensor], list[Tensor]]
Estimator = Callable[..., Estimates]


def grpo(rewards: Sequence[Tensor], groups: Tensor) -> Estimates:
    """Score of each answer, standardised within the answers to the same prompt.

    Formula: A_i = (s_i - mean_g) / (std_g + 1e-6), the same for every token, with s_i the sum of the answer's rewards
    Paper: GRPO, DeepSeekMath (arXiv:2402.03300), section 4.1.2, outcome supervision
    Departure: the paper leaves the kind of standard deviation open, here it is the unbiased one (n - 1); scores 1, 0,
    0, 0 give 1.5, -0.5, -0.5, -0.5. A group whose scores are equal up to rounding gets exactly 0 instead of rounding
    noise divided by 1e-6.

    Args:
        rewards: B tensors (T_i,), reward of each token.
        groups: (B,) group number of each sample, in any order and of any value.

    Returns:
        Advantages and returns, each B float32 tensors (T_i,); the returns equal the advantages.

    Raises:
        ValueError: a group has only one answer, so there is nothing to compare it with.

    >>> scores = [torch.tensor([0.0, 1.0]), torch.tensor([0.0]), torch.tensor([0.0]), torch.tensor([1.0])]
    >>> advantages, _ = grpo(scores, torch.tensor([7, 7, 7, 7]))
    >>> [[round(x, 4) for x in advantage.tolist()] for advantage in advantages]
    [[0.866, 0.866], [-0.866], [-0.866], [0.866]]
    """
    peers = comparable(groups, "grpo")
    return on_every_token(standardised(sample_scores(rewards), peers), rewards)


def grpo_passk(rewards: Sequence[Tensor], groups: Tensor) -> Estimates:
    """Only the best answer of a group is rewarded, by its lead over the second best: for the best of k, not the mean.

    Formula: A_best = (s_best - s_second) / (std_g + 1e-6); A_i = 0 for all others
    Paper: pass@k objective, leave-one-out (arXiv:2503.19595), divided by the group's std as GRPO does
    Departure: where the best score is reached twice, up to rounding, all get exactly 0.

    Args, Returns, Raises: as `grpo`.

    >>> advantages, _ = grpo_passk([torch.tensor([s]) for s in (1.0, 0.5, 0.0)], torch.tensor([0, 0, 0]))
    >>> [round(advantage.item(), 4) for advantage in advantages]
    [1.0, 0.0, 0.0]
    """
    peers = comparable(groups, "grpo_passk")
    scores_B = sample_scores(rewards)
    is_best_B = scores_B >= peers.highest(scores_B) - peers.tolerance(scores_B)
    second_B = peers.highest(scores_B.masked_fill(is_best_B, -torch.inf))
    wins_B = is_best_B & (peers.sum(is_best_B.double()) == 1)
    lead_B = torch.where(wins_B, scores_B - second_B, 0.0)
    return on_every_token(lead_B / (peers.std(scores_B) + STD_EPSILON), rewards)


def dr_grpo(rewards: Sequence[Tensor], groups: Tensor) -> Estimates:
    """Score of each answer, less the mean of its group; not divided by anything, so that no prompt counts more.

    Formula: A_i = s_i - mean_g
    Paper: Dr. GRPO (arXiv:2503.20783); its averaging is `worker.actor.loss_avg_mode=seq_sum_const`
    Departure: a group of equal scores gets exactly 0.

    Args, Returns, Raises: as `grpo`.

    >>> advantages, _ = dr_grpo([torch.tensor([s]) for s in (1.0, 0.0, 0.0, 0.0)], torch.tensor([0, 0, 0, 0]))
    >>> [advantage.item() for advantage in advantages]
    [0.75, -0.25, -0.25, -0.25]
    """
    peers = comparable(groups, "dr_grpo")
    return on_every_token(centered(sample_scores(rewards), peers), rewards)


def rloo(rewards: Sequence[Tensor], groups: Tensor) -> Estimates:
    """Score of each answer, less the mean score of the others to the same prompt.

    Formula: A_i = s_i - (sum of the other scores of the group) / (n - 1)
    Paper: RLOO (arXiv:2402.14740)
    Departure: a group of equal scores gets exactly 0.

    Args, Returns, Raises: as `grpo`.

    >>> advantages, _ = rloo([torch.tensor([s]) for s in (1.0, 0.0, 0.0, 0.0)], torch.tensor([0, 0, 0, 0]))
    >>> [round(advantage.item(), 4) for advantage in advantages]
    [1.0, -0.3333, -0.3333, -0.3333]
    """
    peers = comparable(groups, "rloo")
    centered_B = centered(sample_scores(rewards), peers)
    return on_every_token(centered_B * peers.size_B / (peers.size_B - 1), rewards)


def opo(rewards: Sequence[Tensor], groups: Tensor) -> Estimates:
    """Score of each answer, less the mean of its group weighted by length: the baseline of least gradient variance.

    Formula: A_i = s_i - (sum of T_j s_j) / (sum of T_j), over the answers j of the group
    Paper: OPO (arXiv:2505.23585), meant for strictly on-policy training
    Departure: a group of equal scores gets exactly 0.

    Args, Returns, Raises: as `grpo`.

    >>> advantages, _ = opo([torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0])], torch.tensor([0, 0]))
    >>> [[round(x, 4) for x in advantage.tolist()] for advantage in advantages]
    [[0.25, 0.25, 0.25], [-0.75]]
    """
    peers = comparable(groups, "opo")
    scores_B = sample_scores(rewards)
    lengths_B = torch.tensor([len(reward) for reward in rewards], dtype=torch.float64)
    baselines_B = peers.sum(lengths_B * scores_B) / peers.sum(lengths_B).clamp(min=1.0)
    return on_every_token((scores_B - baselines_B).masked_fill(peers.is_flat(scores_B), 0.0), rewards)


def gdpo(rewards: Sequence[Tensor], groups: Tensor, *, parts: Mapping[str, Tensor]) -> Estimates:
    """Each part of the score standardised within the group, then summed, then standardised over all samples.

    Formula: a_i = sum over parts k of (s_{k,i} - mean_{k,g}) / (std_{k,g} + 1e-6); A_i = (a_i - mean) / (std + 1e-6)
    Paper: GDPO (arXiv:2601.05242), all parts with the same weight
    Departure: mean and std of the second step are those over samples, as in the paper, not over tokens. A group in
    which every part is equal gets exactly 0.

    Args:
        rewards: B tensors (T_i,), only their lengths count: a KL taken off the reward has no place here.
        groups: as `grpo`.
        parts: name -> (B,) part of each sample's score.

    Returns, Raises: as `grpo`.

    >>> parts = {"right": torch.tensor([1.0, 0.0, 1.0, 0.0]), "short": torch.tensor([1.0, 0.0, 0.0, 1.0])}
    >>> advantages, _ = gdpo([torch.zeros(1)] * 4, torch.tensor([0, 0, 0, 0]), parts=parts)
    >>> [round(advantage.item(), 4) for advantage in advantages]
    [1.2247, -1.2247, 0.0, 0.0]
    """
    peers = comparable(groups, "gdpo")
    standardised_B = torch.stack([standardised(part.double(), peers) for part in parts.values()])
    everyone = Groups(torch.zeros_like(groups))
    advantages_B = standardised(standardised_B.sum(0), everyone)
    return on_every_token(advantages_B.masked_fill((standardised_B == 0).all(0), 0.0), rewards)


def reinforce_plus_plus_baseline(rewards: Sequence[Tensor], groups: Tensor) -> Estimates:
    """Score of each answer, less the mean of its group, whitened over all tokens of the batch.

    Formula: a_i = s_i - mean_g; A = (a - mean(a)) / sqrt(var(a) + 1e-8), mean and var over all tokens
    Paper: REINFORCE++ with baseline (arXiv:2501.03262)
    Departure: a group of equal scores gets exactly 0; centring over tokens would push its answers all in one
    direction. The variance is the unbiased one (N - 1).

    Args, Raises: as `grpo`.

    Returns:
        Advantages, and the advantages before whitening as returns; each B float32 tensors (T_i,).

    >>> advantages, _ = reinforce_plus_plus_baseline(
    ...     [torch.tensor([1.0]), torch.tensor([0.0, 0.0, 0.0])], torch.tensor([0, 0]))
    >>> [[round(x, 4) for x in advantage.tolist()] for advantage in advantages]
    [[1.5], [-0.5, -0.5, -0.5]]
    """
    peers = comparable(groups, "reinforce_plus_plus_baseline")
    scores_B = sample_scores(rewards)
    raw, returns = on_every_token(centered(scores_B, peers), rewards)
    advantages = [
        torch.zeros_like(advantage) if flat else advantage
        for flat, advantage in zip(peers.is_flat(scores_B).tolist(), whitened(raw), strict=True)
    ]
    return float32(advantages), returns


def remax(rewards: Sequence[Tensor], groups: Tensor, *, baselines: Tensor) -> Estimates:
    """Score of each answer, less the score of the greedy answer to the same prompt.

    Formula: A_i = s_i - b_i, the same for every token, with b_i the score of the greedy answer
    Paper: ReMax (arXiv:2310.10505)
    Departure: a difference within rounding is exactly 0.

    Args:
        rewards: B tensors (T_i,), reward of each token.
        groups: (B,) not used.
        baselines: (B,) score of the greedy answer to the sample's prompt.

    Returns:
        Advantages, and the rewards still to come as returns; each B float32 tensors (T_i,).

    >>> advantages, returns = remax([torch.tensor([0.0, 0.8])], torch.tensor([0]), baselines=torch.tensor([0.5]))
    >>> [round(x, 4) for x in advantages[0].tolist()], [round(x, 4) for x in returns[0].tolist()]
    ([0.3, 0.3], [0.8, 0.8])
    """
    scores_B, baselines_B = sample_scores(rewards), baselines.double()
    size_B = torch.maximum(scores_B.abs(), baselines_B.abs()).clamp(min=1.0)
    lead_B = scores_B - baselines_B
    lead_B = lead_B.masked_fill(lead_B.abs() <= SPREAD_TOLERANCE * size_B, 0.0)
    return on_every_token(lead_B, rewards)[0], float32(discounted(rewards, 1.0))


def comparable(groups: Tensor, name: str) -> Groups:
    """The groups, each with at least two answers. Raises ValueError otherwise."""
    peers = Groups(groups)
    alone = int((peers.size_G < 2).sum())
    if alone:
        raise ValueError(
            f"{alone} of {len(peers.size_G)} groups have a single answer, but {name} compares the answers of a group: "
            "sample at least 2 per prompt (worker.rollout.n)"
        )
    return peers


def sample_scores(rewards: Sequence[Tensor]) -> Tensor:
    """(B,) float64 sum of the token rewards of each sample.

    >>> sample_scores([torch.tensor([0.5, 1.0]), torch.tensor([])]).tolist()
    [1.5, 0.0]
    """
    if not rewards:
        return torch.zeros(0, dtype=torch.float64)
    return torch.stack([reward.to(torch.float64).sum() for reward in rewards])


def centered(scores_B: Tensor, peers: Groups) -> Tensor:
    """(B,) distance from the mean of the group; exactly 0 where its scores are equal."""
    return (scores_B - peers.mean(scores_B)).masked_fill(peers.is_flat(scores_B), 0.0)


def standardised(scores_B: Tensor, peers: Groups) -> Tensor:
    """(B,) the same in units of the group's standard deviation."""
    return centered(scores_B, peers) / (peers.std(scores_B) + STD_EPSILON)


def on_every_token(advantages_B: Tensor, rewards: Sequence[Tensor]) -> Estimates:
    """One number for each sample -> the same for each of its tokens, as advantages and as returns."""
    tokens = [one.expand(len(reward)) for one, reward in zip(advantages_B, rewards, strict=True)]
    return float32(tokens), float32(tokens)


ESTIMATORS: dict[str, Estimator] = {
    "grpo": grpo,
    "grpo_passk": grpo_passk,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "opo": opo,
    "gdpo": gdpo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "remax": remax,
    "gae": gae,
}

MISSING = {
    "values": "the critic's values of every token",
    "baselines": "the score of a greedy answer for every sample",
    "parts": 'parts of the score: let the reward function return numbers beside "overall"',
}


def estimate(
    name: str,
    rewards: Sequence[Tensor],
    groups: Tensor,
    *,
    values: Sequence[Tensor] | None = None,
    baselines: Tensor | None = None,
    parts: Mapping[str, Tensor] | None = None,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> Estimates:
    """Advantages and returns of the estimator `name`, which is given what it declares in `NEEDS` and nothing else.

    Args:
        name: a key of `ESTIMATORS`.
        rewards: B tensors (T_i,), reward of each token.
        groups: (B,) group number of each sample.
        values: B tensors (T_i,), the critic's.
        baselines: (B,) score of the greedy answer to the sample's prompt.
        parts: name -> (B,) part of each sample's score.
        gamma, lam: discount, and lambda of `gae`.

    Raises:
        ValueError: the name is unknown, an input is missing, not finite or of another size, or a group is too small.

    >>> estimate("remax", [torch.tensor([1.0])], torch.tensor([0]), baselines=torch.tensor([0.25]))
    ([tensor([0.7500])], [tensor([1.])])
    """
    if name not in ESTIMATORS:
        raise ValueError(f"unknown estimator {name!r}: choose one of {', '.join(ESTIMATORS)}")
    offered: dict[str, Any] = {"values": values, "baselines": baselines, "parts": parts, "gamma": gamma, "lam": lam}
    inputs = {key: offered[key] for key in NEEDS[name].inputs}
    for key, value in inputs.items():
        if value is None or (key == "parts" and not value):
            raise ValueError(f"{name} needs {MISSING[key]}")
    check_tokens("rewards", rewards, rewards)
    check_samples("groups", groups, rewards)
    if "values" in inputs:
        check_tokens("values", inputs["values"], rewards)
    if "baselines" in inputs:
        check_samples("baselines", inputs["baselines"], rewards)
    for part, numbers in inputs.get("parts", {}).items():
        check_samples(part, numbers, rewards)
    return ESTIMATORS[name](rewards, groups, **inputs)


def check_tokens(name: str, tensors: Sequence[Tensor], rewards: Sequence[Tensor]) -> None:
    """A finite number for each token of each sample, or ValueError."""
    if [tuple(tensor.shape) for tensor in tensors] != [(len(reward),) for reward in rewards]:
        raise ValueError(f"{name} must hold one number for each token of each of the {len(rewards)} samples")
    broken = [index for index, tensor in enumerate(tensors) if not bool(tensor.isfinite().all())]
    if broken:
        raise ValueError(f"{name} of {len(broken)} of {len(rewards)} samples are not finite, first sample {broken[0]}")


def check_samples(name: str, numbers: Tensor, rewards: Sequence[Tensor]) -> None:
    """A finite number for each sample, or ValueError."""
    if tuple(numbers.shape) != (len(rewards),) or not bool(numbers.isfinite().all()):
        raise ValueError(f"{name} must hold one finite number for each of the {len(rewards)} samples")
