"""Prompts -> answered and scored groups. The one place where sampling and rewards meet."""

from collections.abc import Callable, Sequence

from easyr1.batch import Group, Prompt, Sample, all_samples
from easyr1.engines.protocols import RolloutEngine, Sampling
from easyr1.errors import ConfigError
from easyr1.tracking.clock import Clock
from easyr1.tracking.progress import Progress

Score = Callable[[Sequence[Group], Callable[[int, int], None]], None]  # fills text and scores of every sample


class Collector:
    """Samples answers and has them scored, for training and for validation alike."""

    def __init__(self, rollout: RolloutEngine, score: Score, progress: Progress) -> None:
        self.rollout = rollout
        self.score = score
        self.progress = progress

    def collect(self, prompts: Sequence[Prompt], sampling: Sampling, clock: Clock, what: str = "") -> list[Group]:
        """One group for each prompt, its answers scored. `what` names the occasion in progress lines."""
        total = len(prompts) * sampling.n
        with clock.phase("gen"), self.progress.phase(f"{what}sampling", total) as tick:
            answers = self.rollout.generate(prompts, sampling, tick)
        groups = [
            Group(prompt, [Sample(completion) for completion in completions])
            for prompt, completions in zip(prompts, answers, strict=True)
        ]
        with clock.phase("reward"), self.progress.phase(f"{what}scoring", total) as tick:
            self.score(groups, tick)
        return groups


def require_score(groups: Sequence[Group], name: str, key: str) -> None:
    """ConfigError if some sample lacks the score `name` that the setting `key` asks for."""
    for sample in all_samples(groups):
        if name not in sample.scores:
            raise ConfigError(key, f"the reward function returns no {name!r}; it returns {', '.join(sample.scores)}")
