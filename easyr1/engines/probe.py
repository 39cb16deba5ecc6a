"""A watch over a sampler with weights of its own: now and then trainer and sampler score the same answer."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch

from easyr1.batch import Completion, Group, Prompt, Sample
from easyr1.engines.protocols import Progress, RolloutEngine, Sampling, TrainEngine
from easyr1.errors import SyncError

PROBE_TOKENS = 16
# Mean difference of a token's log-prob. Right engines part by 1e-5 in float32 and by 0.03 in bfloat16 (docs/vllm.md).
TOLERANCE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.15}


class ProbedRollout:
    """A RolloutEngine that compares `engine` with `trainer` before its first answers and after every `every` loads.

    The probe is the first prompt with a picture that it is asked, else the first prompt; what is drawn for it is
    thrown away. `temperature` is that of the trainer's log-probs, `dtype` the less exact one of both engines.
    """

    def __init__(
        self, engine: RolloutEngine, trainer: TrainEngine, temperature: float, dtype: str, every: int = 0
    ) -> None:
        self.engine = engine
        self.trainer = trainer
        self.sampling = Sampling(temperature=temperature, max_tokens=PROBE_TOKENS, ignore_eos=True)
        self.tolerance = TOLERANCE[dtype]
        self.every = every
        self.prompt: Prompt | None = None
        self.loads = 0
        self.is_due = True

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """As the engine does; SyncError where it computes something else than the trainer."""
        if self.prompt is None or not self.prompt.media:
            self.prompt = next(
                (prompt for prompt in prompts if prompt.media), self.prompt or next(iter(prompts), None)
            )
        if self.is_due and self.prompt is not None:
            self.compare(self.prompt)
            self.is_due = False
        return self.engine.generate(prompts, sampling, progress)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """The first load is probed, and every `every`-th one after it."""
        self.engine.load(weights, version)
        if self.every and self.loads % self.every == 0:
            self.is_due = True
        self.loads += 1

    def rest(self) -> None:
        self.engine.rest()

    def compare(self, prompt: Prompt) -> float:
        """The mean difference of a token's log-prob; SyncError with both sums where it is above the tolerance."""
        sampling = replace(self.sampling, seed=self.loads)
        ((answer,),) = self.engine.generate([prompt], sampling)
        ((trained,),) = self.trainer.score([Group(prompt, [Sample(answer)])])
        gap = float(np.abs(answer.log_probs - trained).mean())
        if gap <= self.tolerance:
            return gap
        raise SyncError(
            f"after {self.loads} updates of the sampler's weights the probe (row {prompt.row}) has a log-prob of "
            f"{answer.log_probs.sum():.4f} in the sampler and of {trained.sum():.4f} in the trainer; its "
            f"{len(answer.ids)} tokens differ by {gap:.2g} on average, at most {self.tolerance:g} is allowed. What "
            "was sampled is not what would be trained; set worker.rollout.name=torch, or see docs/vllm.md"
        )
