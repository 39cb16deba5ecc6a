"""Answers to the same prompt: sums, means and spread over each group.

Knows neither rewards nor tokens. Every statistic is given once for each sample, as that of its group. Shape legend: B
samples, G groups.
"""

import torch
from torch import Tensor

SPREAD_TOLERANCE = 1e-6  # relative to the largest score: above float32 rounding, below any difference meant


class Groups:
    """Which samples belong together.

    >>> groups = Groups(torch.tensor([9, 4, 9]))
    >>> groups.size_B.tolist(), groups.mean(torch.tensor([1.0, 5.0, 2.0])).tolist()
    ([2, 1, 2], [1.5, 5.0, 1.5])
    """

    def __init__(self, numbers: Tensor) -> None:
        """`numbers`: (B,) group number of each sample, in any order and of any value."""
        _, self.of_B, self.size_G = torch.unique(numbers, return_inverse=True, return_counts=True)
        self.size_B = self.size_G[self.of_B]

    def sum(self, values_B: Tensor) -> Tensor:
        """(B,) sum over the sample's group."""
        return values_B.new_zeros(len(self.size_G)).index_add_(0, self.of_B, values_B)[self.of_B]

    def mean(self, values_B: Tensor) -> Tensor:
        """(B,) mean over the sample's group."""
        return self.sum(values_B) / self.size_B

    def std(self, values_B: Tensor) -> Tensor:
        """(B,) unbiased standard deviation (n - 1) in the sample's group; 0 in a group of one.

        >>> Groups(torch.tensor([0, 0, 0, 1])).std(torch.tensor([1.0, 2.0, 3.0, 7.0])).tolist()
        [1.0, 1.0, 1.0, 0.0]
        """
        squares_B = self.sum((values_B - self.mean(values_B)) ** 2)
        return (squares_B / (self.size_B - 1).clamp(min=1)).sqrt()

    def highest(self, values_B: Tensor) -> Tensor:
        """(B,) largest value in the sample's group."""
        empty_G = values_B.new_zeros(len(self.size_G))
        return empty_G.scatter_reduce(0, self.of_B, values_B, "amax", include_self=False)[self.of_B]

    def tolerance(self, values_B: Tensor) -> Tensor:
        """(B,) differences in the sample's group up to which values count as equal."""
        return SPREAD_TOLERANCE * self.highest(values_B.abs()).clamp(min=1.0)

    def is_flat(self, values_B: Tensor) -> Tensor:
        """(B,) whether the values of the sample's group are equal up to rounding.

        >>> groups = Groups(torch.tensor([0, 0, 1, 1]))
        >>> groups.is_flat(torch.tensor([0.1 + 0.2, 0.3, 0.0, 1.0], dtype=torch.float64)).tolist()
        [True, True, False, False]
        """
        spread_B = self.highest(values_B) + self.highest(-values_B)
        return spread_B <= self.tolerance(values_B)


def all_equal(values: Tensor, size: float = 1.0) -> bool:
    """Whether all values, made of numbers up to `size`, are equal up to rounding; true for none and for one."""
    if not len(values):
        return True
    size = max(1.0, size, float(values.abs().max()))
    return float(values.max() - values.min()) <= SPREAD_TOLERANCE * size
