"""The two contracts between the trainer and whatever samples or trains."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from easyr1.batch import Completion, Group, Prompt, Sums

Progress = Callable[..., None]  # (done, all); of sampling also the tokens drawn so far


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn. `temperature` 0 is greedy; `top_p` 1 and `top_k` -1 cut nothing."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 512
    ignore_eos: bool = False
    seed: int = 1


class RolloutEngine(Protocol):
    """Samples answers with the weights it was last given."""

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """For each prompt its `sampling.n` answers, in the order asked."""
        ...

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Take new weights under their in-memory Hugging Face names."""
        ...

    def rest(self) -> None:
        """No answers are wanted until the next `load`: memory may be given back."""
        ...


class TrainEngine(Protocol):
    """Scores answers and updates weights; policy, reference and critic are objects of one class."""

    version: int  # optimizer steps so far

    def score(self, groups: Sequence[Group], progress: Progress | None = None) -> list[list[np.ndarray]]:
        """For each group, for each sample, the (T,) log-probs of its tokens."""
        ...

    def divergence(self, groups: Sequence[Group], progress: Progress | None = None) -> list[list[np.ndarray]]:
        """For each group, for each sample, the (T,) KL divergence of whole distributions to the reference."""
        ...

    def update(
        self, groups: Sequence[Group], lr: float, kl_coef: float = 0.0, progress: Progress | None = None
    ) -> Sums:
        """One optimizer step on one mini-batch; `kl_coef` weighs the objective's KL term, if it has one."""
        ...

    def save(self, folder: Path, model_only: bool = False) -> None:
        """Write weights and, unless `model_only`, optimizer state. CheckpointError if they cannot be written."""
        ...

    def load(self, folder: Path) -> bool:
        """Take up what `save` wrote; False if the optimizer's state was not among it. CheckpointError if it fails."""
        ...
