"""AdamW and the learning rate as a function of the step, so that a resumed run needs no scheduler state."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from easyr1.errors import CheckpointError
from easyr1.models.parallel import local
from easyr1.models.ranks import ALONE, Ranks

EPS = 1e-8  # added to the root of the second moment
LOW_PRECISION = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class OptimSpec:
    """Numbers of AdamW (arXiv:1711.05101) and of its schedule, whose steps are training steps (rollouts)."""

    strategy: Literal["adamw", "adamw_bf16"] = "adamw"
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 1e-2
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    warmup_steps: int = 0
    min_lr_ratio: float = 0.0
    total_steps: int | None = None  # needed unless the schedule is constant
    max_grad_norm: float = 1.0


def learning_rate(spec: OptimSpec, step: int) -> float:
    """Learning rate of training step `step`, counted from 1.

    The warm-up rises to the peak in `warmup_steps` equal parts and starts above 0, so that no rollout is wasted on it.
    The first step after it has the peak; the fall reaches its end one step after the last, for the same reason.

    >>> [learning_rate(OptimSpec(lr=1.0, warmup_steps=2), step) for step in (1, 2, 3)]
    [0.5, 1.0, 1.0]
    >>> [round(learning_rate(OptimSpec(lr=1.0, schedule="cosine", total_steps=4), step), 3) for step in (1, 3, 4)]
    [1.0, 0.5, 0.146]
    >>> [learning_rate(OptimSpec(lr=1.0, schedule="linear", total_steps=4), step) for step in (1, 3, 4)]
    [1.0, 0.5, 0.25]
    """
    if step <= spec.warmup_steps:
        return spec.lr * step / spec.warmup_steps
    if spec.schedule == "constant":
        return spec.lr
    assert spec.total_steps is not None
    passed = min(1.0, (step - 1 - spec.warmup_steps) / max(1, spec.total_steps - spec.warmup_steps))
    left = 1 - passed if spec.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * passed))
    return spec.lr * (spec.min_lr_ratio + (1 - spec.min_lr_ratio) * left)


def adamw(parameters: Iterable[nn.Parameter], spec: OptimSpec) -> torch.optim.Optimizer:
    """The optimizer of all trainable parameters; only those of 2 or more dimensions decay, not norms and biases."""
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    groups = [
        {"params": [one for one in trainable if one.ndim >= 2], "weight_decay": spec.weight_decay},
        {"params": [one for one in trainable if one.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if spec.strategy == "adamw_bf16":
        return _adamw_bf16(groups, spec)
    return torch.optim.AdamW(groups, lr=spec.lr, betas=spec.betas, eps=EPS)


def _adamw_bf16(groups: list[dict[str, Any]], spec: OptimSpec) -> torch.optim.Optimizer:
    """AdamW whose steps keep what rounding took off the last ones (Kahan summation); plain AdamW for float32.

    The plain loop over parameters, without kernels to compile: the same on every device. Each parameter is a group,
    as the library counts steps by group, and those in which there was no gradient must not count.
    """
    from optimi import AdamW

    groups = [group | {"params": [parameter]} for group in groups for parameter in group["params"]]
    optimizer = AdamW(groups, lr=spec.lr, betas=spec.betas, eps=EPS, kahan_sum=True, triton=False, foreach=False)
    optimizer.register_step_pre_hook(_start_moments)
    optimizer.register_step_post_hook(_take_back_count)
    return optimizer


def _start_moments(optimizer: torch.optim.Optimizer, _args: Any, _keywords: Any) -> None:
    """Make the state of low-precision parameters before their first step, with a float32 second moment.

    In bfloat16 a decay by 0.999 rounds to none at all: the average would only ever grow, and steps shrink with it.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and parameter.dtype in LOW_PRECISION and parameter not in optimizer.state:
                optimizer.state[parameter] = {
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter, dtype=torch.float32),
                    "kahan_comp": torch.zeros_like(parameter),
                }


def _take_back_count(optimizer: torch.optim.Optimizer, _args: Any, _keywords: Any) -> None:
    """Steps count for a parameter only where it had a gradient, as in torch."""
    for group in optimizer.param_groups:
        if group["params"][0].grad is None:
            group["step"] -= 1


def clip_gradients(
    parameters: Iterable[nn.Parameter], max_norm: float, loss: float, ranks: Ranks = ALONE
) -> tuple[float, bool]:
    """Scale gradients down to `max_norm`; their norm, and whether it and each rank's `loss` are finite. All ranks call
    it and get the same. A clamp can hide a broken number of the loss from the gradient, hence the look at both.

    The sums of squares are added in one order, so that all ranks scale alike to the last bit.
    """
    gradients = [local(one.grad) for one in parameters if one.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    found = ranks.gather((math.isfinite(loss), float(norm)))
    sharing = found if ranks.mesh is None else found[: ranks.mesh.shape[-1]]  # of several copies of the weights, one
    total = math.sqrt(sum(own * own for _, own in sharing))
    norm = torch.tensor(total, dtype=norm.dtype, device=norm.device)
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.device))
    return total, math.isfinite(total) and all(finite for finite, _ in found)


def state_to(optimizer: torch.optim.Optimizer, device: torch.device | None) -> None:
    """Move an optimizer's moments to `device`, or with None back to where their parameters are."""
    for parameter, moments in optimizer.state.items():
        for name, value in moments.items():
            if isinstance(value, torch.Tensor) and name != "step":
                moments[name] = value.to(device or parameter.device)


def state_tensors(optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> dict[str, torch.Tensor]:
    """The optimizer's state as tensors under "<parameter>/<moment>"."""
    found = {
        f"{names[parameter]}/{moment}": tensor.detach()
        for parameter, moments in optimizer.state.items()
        for moment, tensor in moments.items()
        if tensor is not None
    }
    for group in optimizer.param_groups:
        if _counts_steps(group) and group["params"][0] in optimizer.state:
            found[f"{names[group['params'][0]]}/step"] = group["step"].clone()
    return found


def load_state_tensors(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Put back what `state_tensors` gave; a parameter that had no state yet (no gradient so far) has none again.

    Raises CheckpointError where the state is that of another strategy, or of weights of another precision.
    """
    moments_of: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        name, moment = key.rsplit("/", 1)
        moments_of.setdefault(name, {})[moment] = tensor
    optimizer.state.clear()
    for group in optimizer.param_groups:
        if _counts_steps(group):
            group["setup"] = False  # no step taken, unless one is found below
        for parameter in group["params"]:
            moments = moments_of.get(names[parameter])
            if moments:
                _check_fits(group, parameter, names[parameter], moments)
                _load_moments(optimizer, group, parameter, moments)


def _counts_steps(group: Mapping[str, Any]) -> bool:
    """Whether steps are counted in the group (adamw_bf16), which then has one parameter, and not with the moments."""
    return "setup" in group


def _check_fits(
    group: Mapping[str, Any], parameter: torch.Tensor, name: str, moments: Mapping[str, torch.Tensor]
) -> None:
    if moments["step"].is_floating_point() == _counts_steps(group):
        raise CheckpointError(
            f"the saved optimizer state of {name} belongs to another optim.strategy; resume with the strategy of the "
            "old run, or from a checkpoint without optimizer state"
        )
    saved = moments["exp_avg"].dtype if "exp_avg" in moments else parameter.dtype
    if saved != parameter.dtype:
        raise CheckpointError(
            f"the saved optimizer state of {name} is {saved}, its weights are {parameter.dtype}; resume with the "
            "fsdp.torch_dtype of the old run, or from a checkpoint without optimizer state"
        )


def _load_moments(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    parameter: torch.Tensor,
    moments: Mapping[str, torch.Tensor],
) -> None:
    found: dict[str, torch.Tensor | None] = {
        moment: tensor if moment == "step" else tensor.to(parameter.device) for moment, tensor in moments.items()
    }
    if _counts_steps(group):
        group["step"], group["setup"] = moments["step"].clone(), True
        del found["step"]
        found.setdefault("kahan_comp", None)  # without the key the library would start anew
    optimizer.state[parameter] = found
