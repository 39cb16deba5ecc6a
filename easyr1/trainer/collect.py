"""Prompts -> answered and scored groups. The one place where sampling and rewards meet."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from easyr1.batch import Group, Prompt, Sample
from easyr1.engines.protocols import RolloutEngine, Sampling
from easyr1.tracking.clock import Clock
from easyr1.tracking.progress import Progress

Score = Callable[[Sequence[Group], Callable[[int, int], None]], None]  # fills text and scores of every sample


class Collector:
    """Samples answers and has them scored, in training and validation alike; `quiet` sampling shows no progress."""

    def __init__(self, rollout: RolloutEngine, score: Score, progress: Progress, quiet: bool = False) -> None:
        self.rollout = rollout
        self.score = score
        self.progress = progress
        self.quiet = quiet

    def collect(self, prompts: Sequence[Prompt], sampling: Sampling, clock: Clock, what: str = "") -> list[Group]:
        """One group for each prompt, its answers scored. `what` names the occasion in progress lines."""
        total = len(prompts) * sampling.n
        shown = nullcontext() if self.quiet else self.progress.phase(f"{what}sampling", total)
        with clock.phase("gen"), shown as tick:
            answers = self.rollout.generate(prompts, sampling, tick)
        groups = [
            Group(prompt, [Sample(completion) for completion in completions])
            for prompt, completions in zip(prompts, answers, strict=True)
        ]
        with clock.phase("reward"), self.progress.phase(f"{what}scoring", total) as tick:
            self.score(groups, tick)
        return groups
