"""AdamW and the learning rate as a function of the step, so that a resumed run needs no scheduler state."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn


@dataclass(frozen=True)
class OptimSpec:
    """Numbers of AdamW (arXiv:1711.05101) and of its schedule, whose steps are training steps (rollouts)."""

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 1e-2
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: int = 0
    min_lr_ratio: float = 0.0
    total_steps: int | None = None  # needed by the cosine only
    max_grad_norm: float = 1.0


def learning_rate(spec: OptimSpec, step: int) -> float:
    """Learning rate of training step `step`, counted from 1.

    The warm-up rises to the peak in `warmup_steps` equal parts and starts above 0, so that no rollout is wasted on it.

    >>> [learning_rate(OptimSpec(lr=1.0, warmup_steps=2), step) for step in (1, 2, 3)]
    [0.5, 1.0, 1.0]
    >>> [round(learning_rate(OptimSpec(lr=1.0, schedule="cosine", total_steps=4), step), 3) for step in (1, 3, 4)]
    [1.0, 0.5, 0.146]
    """
    if step <= spec.warmup_steps:
        return spec.lr * step / spec.warmup_steps
    if spec.schedule == "constant":
        return spec.lr
    assert spec.total_steps is not None
    passed = (step - 1 - spec.warmup_steps) / max(1, spec.total_steps - spec.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, passed)))
    return spec.lr * (spec.min_lr_ratio + (1 - spec.min_lr_ratio) * cosine)


def adamw(parameters: Iterable[nn.Parameter], spec: OptimSpec) -> torch.optim.AdamW:
    """One group of all trainable parameters."""
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    return torch.optim.AdamW(trainable, lr=spec.lr, betas=spec.betas, weight_decay=spec.weight_decay)


def state_tensors(optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> dict[str, torch.Tensor]:
    """The optimizer's state as tensors under "<parameter>/<moment>"."""
    return {
        f"{names[parameter]}/{moment}": tensor.detach()
        for parameter, moments in optimizer.state.items()
        for moment, tensor in moments.items()
    }


def load_state_tensors(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Put back what `state_tensors` gave; a parameter that had no state yet (no gradient so far) has none again."""
    moments_of: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        name, moment = key.rsplit("/", 1)
        moments_of.setdefault(name, {})[moment] = tensor
    optimizer.state.clear()
    for parameter, name in names.items():
        if name in moments_of:
            optimizer.state[parameter] = {
                moment: tensor if moment == "step" else tensor.to(parameter.device)
                for moment, tensor in moments_of[name].items()
            }
