"""A model that learns in the loop: its engine, its schedule, and how a step's groups are cut into mini-batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from easyr1.batch import Group, Sums
from easyr1.engines.optimizer import OptimSpec, learning_rate
from easyr1.engines.protocols import TrainEngine
from easyr1.tracking.progress import Tick


@dataclass
class Learner:
    """The actor or the critic. `prompts_per_update` groups make a mini-batch: one optimizer step."""

    name: Literal["actor", "critic"]
    engine: TrainEngine
    optim: OptimSpec
    prompts_per_update: int
    epochs: int = 1

    def learn(self, groups: Sequence[Group], step: int, tick: Tick, kl_coef: float = 0.0) -> Sums:
        """`epochs` passes over the mini-batches of one training step, in order."""
        lr = learning_rate(self.optim, step)
        sums = Sums()
        starts = [start for _ in range(self.epochs) for start in range(0, len(groups), self.prompts_per_update)]
        for done, start in enumerate(starts, start=1):
            sums.merge(self.engine.update(groups[start : start + self.prompts_per_update], lr, kl_coef))
            tick(done, len(starts))
        return sums
