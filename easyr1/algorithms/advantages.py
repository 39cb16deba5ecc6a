"""How much better than expected an answer was: token rewards and groups in, advantages and returns out.

Pure functions, one per estimator. They know neither the configuration nor the policy, and nothing is padded: a list
has one (T_i,) tensor for each of the B samples. What else an estimator needs (values, a greedy baseline) is declared
in `needs.NEEDS` and passed by keyword. Sums are done in float64, results are float32.

Shape legend: B samples, T_i tokens of answer i, G groups.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

STD_EPSILON = 1e-6
SPREAD_TOLERANCE = 1e-6  # relative to the largest score: above float32 rounding, below any difference meant

Estimator = Callable[..., tuple[list[Tensor], list[Tensor]]]


def grpo(rewards: Sequence[Tensor], groups: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Score of each answer, standardised within the answers to the same prompt.

    GRPO, DeepSeekMath (arXiv:2402.03300), section 4.1.2, outcome supervision:
    A_{i,t} = (s_i - mean_g) / (std_g + 1e-6), the same for every token of answer i, with s_i the sum of its rewards.

    Departures: the paper leaves the kind of standard deviation open, here it is the unbiased one (n - 1), with 1e-6
    added; a group whose scores are equal up to rounding gets exactly 0 instead of rounding noise divided by 1e-6.

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
    scores_B = sample_scores(rewards)
    group_of_B, count_G = group_index(groups)
    if (count_G < 2).any():
        raise ValueError(
            f"{int((count_G < 2).sum())} of {len(count_G)} groups have a single answer, but grpo compares the answers "
            "of a group: sample at least 2 per prompt (worker.rollout.n)"
        )
    mean_G = group_sum(scores_B, group_of_B, len(count_G)) / count_G
    centered_B = scores_B - mean_G[group_of_B]
    std_G = (group_sum(centered_B**2, group_of_B, len(count_G)) / (count_G - 1)).sqrt()
    standardised_B = centered_B / (std_G + STD_EPSILON)[group_of_B]
    advantages_B = standardised_B.masked_fill(is_flat(scores_B, group_of_B, len(count_G))[group_of_B], 0.0)
    advantages = [
        advantage.to(torch.float32).expand(len(reward)).clone()
        for advantage, reward in zip(advantages_B, rewards, strict=True)
    ]
    return advantages, [advantage.clone() for advantage in advantages]


def sample_scores(rewards: Sequence[Tensor]) -> Tensor:
    """(B,) float64 sum of the token rewards of each sample.

    >>> sample_scores([torch.tensor([0.5, 1.0]), torch.tensor([])]).tolist()
    [1.5, 0.0]
    """
    if not rewards:
        return torch.zeros(0, dtype=torch.float64)
    return torch.stack([reward.to(torch.float64).sum() for reward in rewards])


def group_index(groups: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) position of each sample's group among the G distinct groups, and (G,) their sizes.

    >>> group_index(torch.tensor([9, 4, 9]))
    (tensor([1, 0, 1]), tensor([1, 2]))
    """
    _, group_of_B, count_G = torch.unique(groups, return_inverse=True, return_counts=True)
    return group_of_B, count_G


def group_sum(values_B: Tensor, group_of_B: Tensor, num_groups: int) -> Tensor:
    """(G,) sum of `values_B` over the samples of each group."""
    return values_B.new_zeros(num_groups).index_add_(0, group_of_B, values_B)


def is_flat(scores_B: Tensor, group_of_B: Tensor, num_groups: int) -> Tensor:
    """(G,) whether the scores of a group are equal up to rounding.

    >>> is_flat(torch.tensor([0.1 + 0.2, 0.3, 0.0, 1.0], dtype=torch.float64), torch.tensor([0, 0, 1, 1]), 2)
    tensor([ True, False])
    """
    empty_G = scores_B.new_zeros(num_groups)
    highest_G = empty_G.scatter_reduce(0, group_of_B, scores_B, "amax", include_self=False)
    lowest_G = empty_G.scatter_reduce(0, group_of_B, scores_B, "amin", include_self=False)
    size_G = torch.maximum(highest_G.abs(), lowest_G.abs()).clamp(min=1.0)
    return highest_G - lowest_G <= SPREAD_TOLERANCE * size_G


ESTIMATORS: dict[str, Estimator] = {
    "grpo": grpo,
}
