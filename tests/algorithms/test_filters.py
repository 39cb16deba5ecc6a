"""Useful groups and the price of long answers, by hand."""

import pytest

from easyr1.algorithms.filters import is_useful, overlong_penalty
from easyr1.algorithms.values import explained_variance, value_clip


@pytest.mark.parametrize(
    ("scores", "useful"),
    (
        ([1, 0], True),
        ([1, 1], False),
        ([0, 0], False),
        ([0.5, 0.5], False),  # in range, but nothing to compare
        ([0.3, 0.1 + 0.2], False),  # equal up to rounding
        ([0.9, 1.0, 1.0], True),
        ([0.0, 0.02], False),  # mean 0.01 is the bound itself
        ([-2.0, 1.0], False),
        ([1e6, 1e6 + 0.5], False),
        ([0.7], False),
    ),
)
def test_groups(scores, useful):
    assert is_useful(scores, 0.01, 0.99) is useful


@pytest.mark.parametrize(
    ("length", "buffer", "penalty"),
    ((80, 20, 0.0), (81, 20, -0.05), (100, 20, -1.0), (150, 20, -1.0), (100, 0, 0.0), (101, 0, -1.0), (1, 100, -0.01)),
)
def test_overlong(length, buffer, penalty):
    assert overlong_penalty(length, limit=100, buffer=buffer) == pytest.approx(penalty)


def test_a_value_that_moved_too_far_has_no_gradient_towards_more():
    import torch

    values = torch.tensor([0.4, 2.0, -2.0], requires_grad=True)
    losses, metrics = value_clip(values, torch.zeros(3), torch.tensor([1.0, 3.0, 3.0]), clip=0.5)
    assert losses.tolist() == pytest.approx([0.18, 3.125, 12.5])
    (gradient,) = torch.autograd.grad(losses.sum(), values)
    assert gradient.tolist() == pytest.approx([-0.6, 0.0, -5.0])
    assert metrics["vf_clipfrac"].tolist() == [0.0, 1.0, 0.0]
    assert explained_variance(torch.tensor([2.0, 2.0]), torch.tensor([1.0, 3.0])) == 0.0
    assert explained_variance(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0])) == 0.0
