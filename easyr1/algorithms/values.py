"""How a critic learns: the loss of its values against the returns. Pure functions on flat tokens.

Shape legend: N answer tokens laid end to end.
"""

import torch
from torch import Tensor


def value_clip(
    values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Half the squared error, where a value may move only `clip` away from the old one.

    The clipped value loss of PPO implementations (arXiv:2005.12729, section 3): max((v - R)^2, (v_clipped - R)^2) / 2.

    Returns:
        (N,) losses, and the detached metric `vf_clipfrac`, 1 where the clipped error is the larger one.

    >>> losses, metrics = value_clip(torch.tensor([2.0, 0.2]), torch.zeros(2), torch.tensor([3.0, 0.0]), clip=0.5)
    >>> [round(x, 4) for x in losses.tolist()], metrics["vf_clipfrac"].tolist()
    ([3.125, 0.02], [1.0, 0.0])
    """
    near = old_values + (values - old_values).clamp(-clip, clip)
    plain, clipped = (values - returns) ** 2, (near - returns) ** 2
    return 0.5 * torch.maximum(plain, clipped), {"vf_clipfrac": (clipped > plain).float().detach()}


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - Var(returns - values) / Var(returns): 1 for a perfect critic, 0 for one that knows only the mean.

    0 where the returns do not vary.

    >>> explained_variance(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.0]))
    1.0
    """
    spread = returns.double().var(unbiased=False)
    if spread == 0:
        return 0.0
    return float(1 - (returns.double() - values.double()).var(unbiased=False) / spread)
