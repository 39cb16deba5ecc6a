"""How far the policy is from the reference: per-token estimates, and the coefficient that weighs them.

Penalties are pure functions of the two log-probs of a sampled token; they never average. They serve as a term of the
loss (gradients flow) and as a deduction from the reward (they do not), and know nothing of which it is.

Shape legend: N tokens; any other shape works as well.
"""

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

# Where exp(x) - x - 1 reaches 10; from there on `low_var_kl` goes straight.
KNEE = 2.610868638149876
KNEE_SLOPE = math.exp(KNEE) - 1.0

ADAPTIVE_ERROR_LIMIT = 0.2


def k1(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """The difference of the log-probs: unbiased, high variance, may be negative.

    As a loss its gradient averages to zero over samples of pi, so it pulls nowhere; use it in the reward.

    Formula: d
    Paper: k1 of Schulman, joschu.net/blog/kl-approx.html

    >>> import torch
    >>> k1(torch.tensor([-1.0]), torch.tensor([-1.5]))
    tensor([0.5000])
    """
    return gap(log_probs, ref_log_probs)


def absolute(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """The size of the difference: a pull of constant strength, not an estimate of the KL divergence.

    Formula: |d|

    >>> import torch
    >>> absolute(torch.tensor([-2.0]), torch.tensor([-1.5]))
    tensor([0.5000])
    """
    return gap(log_probs, ref_log_probs).abs()


def k2(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Half the squared difference: low variance, small bias, and its mean gradient is the KL's.

    Formula: d^2 / 2
    Paper: k2 of Schulman, joschu.net/blog/kl-approx.html

    >>> import torch
    >>> k2(torch.tensor([-2.0]), torch.tensor([-1.0]))
    tensor([0.5000])
    """
    return 0.5 * gap(log_probs, ref_log_probs) ** 2


def k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """The estimate of GRPO: unbiased, never negative, low variance.

    Formula: exp(-d) + d - 1
    Paper: k3 of Schulman, joschu.net/blog/kl-approx.html; GRPO (arXiv:2402.03300), equation 4
    Departure: once the policy has made a token 13.6 times less likely than the reference (d = -2.61, estimate 10), the
    curve goes on along its tangent. The exponential alone explodes there; cut off at 10, as others do, it loses its
    gradient exactly where it is needed. Above d = -2.61 nothing is cut.

    >>> import torch
    >>> k3(torch.tensor([-1.0, -9.0]), torch.tensor([-1.5, -1.0]))
    tensor([ 0.1065, 77.9616])
    """
    x = -gap(log_probs, ref_log_probs)
    near = x.clamp(max=KNEE)
    return near.expm1() - near + KNEE_SLOPE * (x - near)


def gap(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """d = log pi - log ref in float32."""
    return log_probs.float() - ref_log_probs.float()


def full(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """The KL divergence itself, from the whole distributions at every token: no noise of sampling, exact gradient.

    Formula: sum over the vocabulary of pi (log pi - log ref)
    Paper: Kullback and Leibler (1951); costs (tokens x vocabulary) numbers

    Args:
        log_probs, ref_log_probs: (N, V), -inf in both at ids that can never be sampled.

    Returns:
        (N,).

    >>> import torch
    >>> policy, reference = torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.25, 0.75, 0.0]])
    >>> full(policy.log(), reference.log())
    tensor([0.1438])
    """
    probs = log_probs.exp()
    return (probs * torch.where(probs > 0, log_probs - ref_log_probs, 0.0)).sum(-1)


PENALTIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": k1,
    "abs": absolute,
    "mse": k2,
    "low_var_kl": k3,
}


class KLCoefficient(Protocol):
    """A number that weighs the KL, and may follow it."""

    coef: float

    def update(self, kl: float, samples: int) -> None:
        """Once a step: `kl` is its mean over the step's samples."""
        ...

    def state(self) -> dict[str, float]:
        """What a checkpoint must hold to go on from here."""
        ...

    def load(self, state: dict[str, float]) -> None: ...


class FixedKL:
    """The coefficient stays as it is; after a resume the configured number wins over the saved one."""

    def __init__(self, coef: float) -> None:
        self.coef = coef

    def update(self, kl: float, samples: int) -> None:
        pass

    def state(self) -> dict[str, float]:
        return {"coef": self.coef}

    def load(self, state: dict[str, float]) -> None:
        pass


class AdaptiveKL:
    """The coefficient rises while the KL is above `kl_target` and falls while it is below; checkpoints hold it.

    Formula: coef <- coef (1 + clip(KL / target - 1, -0.2, 0.2) samples / horizon), once a step
    Paper: Ziegler et al. (arXiv:1909.08593), section 2.2

    >>> coefficient = AdaptiveKL(0.1, target=0.05, horizon=1000)
    >>> coefficient.update(kl=1.0, samples=100)
    >>> round(coefficient.coef, 6)
    0.102
    """

    def __init__(self, coef: float, *, target: float, horizon: float) -> None:
        if target <= 0 or horizon <= 0:
            raise ValueError(f"an adaptive KL needs a target and a horizon above 0, not {target} and {horizon}")
        self.coef = coef
        self.target = target
        self.horizon = horizon

    def update(self, kl: float, samples: int) -> None:
        if not math.isfinite(kl):
            raise ValueError(f"the KL to the reference is {kl}: the policy's or the reference's log-probs are broken")
        error = min(max(kl / self.target - 1.0, -ADAPTIVE_ERROR_LIMIT), ADAPTIVE_ERROR_LIMIT)
        self.coef *= 1.0 + error * samples / self.horizon

    def state(self) -> dict[str, float]:
        return {"coef": self.coef}

    def load(self, state: dict[str, float]) -> None:
        self.coef = state["coef"]


COEFFICIENTS: dict[str, type] = {"fixed": FixedKL, "adaptive": AdaptiveKL}


def kl_coefficient(kl_type: str, coef: float, *, target: float, horizon: float) -> KLCoefficient:
    """The coefficient of `algorithm.kl_type`: "fixed" or "adaptive"."""
    if kl_type == "fixed":
        return FixedKL(coef)
    if kl_type == "adaptive":
        return AdaptiveKL(coef, target=target, horizon=horizon)
    raise ValueError(f"unknown kl_type {kl_type!r}: choose fixed or adaptive")
