"""Prompts -> answered and scored groups; with dynamic sampling, as many useful groups as a step needs.

The one place where sampling and rewards meet. Knows neither advantages nor updates.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol

from easyr1.algorithms.filters import is_useful
from easyr1.batch import Group, Prompt, Sample
from easyr1.data.loader import Loader
from easyr1.engines.protocols import RolloutEngine, Sampling
from easyr1.errors import ConfigError, DataError
from easyr1.tracking.clock import Clock
from easyr1.tracking.progress import Progress

Score = Callable[[Sequence[Group], Callable[[int, int], None]], None]  # fills text and scores of every sample
Draw = Callable[[int], list[Prompt]]  # the next so many prompts


class Media(Protocol):
    """What is asked of the store of pictures."""

    def prefetch(self, handles: Iterable[str]) -> None: ...

    def problem(self, handle: str) -> str | None: ...


@dataclass
class Draws:
    """Training prompts as they are needed, and what becomes of rows whose pictures prove broken.

    Where it skips, such a row is left out and the row drawn next takes its place, so that a step has as many prompts
    as ever. What is drawn follows from the loader's place and the files alone.
    """

    loader: Loader
    media: Media | None  # None: a text model
    skips: bool
    tell: Callable[[str], None]  # once for each broken file
    skipped: int = 0  # rows left out since `next` was called for a new step
    told: set[str] = field(default_factory=set)

    def next(self, count: int | None = None) -> list[Prompt]:
        """The next `count` prompts that can be used (a batch, if None); DataError if no row can be."""
        drawn = self.loader.next(count)
        usable, in_a_row = self.usable(drawn), 0
        self.skipped += len(drawn) - len(usable)
        while len(usable) < len(drawn):
            more = self.loader.next(len(drawn) - len(usable))
            good = self.usable(more)
            self.skipped += len(more) - len(good)
            in_a_row = 0 if good else in_a_row + len(more)
            if in_a_row > 2 * self.loader.draws_per_epoch:  # two orders may lie between two draws of one row
                raise DataError("data.on_bad_media=skip: no row is left whose pictures can be decoded.")
            usable += good
        return usable

    def usable(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Those whose pictures can be decoded; all of them where nothing is skipped."""
        if self.media is None or not self.skips:
            return list(prompts)
        self.media.prefetch(handle for prompt in prompts for handle in prompt.media)
        return [prompt for prompt in prompts if not self._is_broken(prompt)]

    def _is_broken(self, prompt: Prompt) -> bool:
        assert self.media is not None
        problem = next((found for handle in prompt.media if (found := self.media.problem(handle))), None)
        if problem is not None and problem not in self.told:
            self.told.add(problem)
            self.tell(f"left out (data.on_bad_media=skip): {problem}")
        return problem is not None


class Collector:
    """Samples answers and has them scored, in training and validation alike; `quiet` sampling shows no progress."""

    def __init__(
        self,
        rollout: RolloutEngine,
        score: Score,
        progress: Progress,
        quiet: bool = False,
    ) -> None:
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

    def add_baselines(self, groups: Sequence[Group], sampling: Sampling, clock: Clock) -> None:
        """Give each group the score of one greedy answer to its prompt."""
        greedy = replace(sampling, n=1, temperature=0.0)
        answered = self.collect([group.prompt for group in groups], greedy, clock, "greedy baseline: ")
        for group, answer in zip(groups, answered, strict=True):
            group.baseline = answer.samples[0].scores["overall"]


@dataclass(frozen=True)
class Filter:
    """Which groups dynamic sampling keeps, how many prompts it draws at a time, and when it gives up."""

    key: str
    low: float
    high: float
    draw_size: int
    max_tries: int  # 0 or less: no limit

    def keeps(self, group: Group) -> bool:
        """Whether the group is worth training on; ConfigError where its samples lack the score."""
        for sample in group.samples:
            if self.key not in sample.scores:
                raise ConfigError(
                    "algorithm.filter_key",
                    f"the reward function returns no {self.key!r} for row {group.prompt.row}; it returns "
                    f"{', '.join(sample.scores)}",
                )
        return is_useful([sample.scores[self.key] for sample in group.samples], self.low, self.high)


@dataclass
class Gathering:
    """What a step gathered: the groups to train on, and all that were sampled for it."""

    groups: list[Group]
    sampled: list[Group]
    tries: int

    def metrics(self) -> dict[str, float]:
        """How much of the sampling was of use; nothing where every group is kept."""
        kept = len(self.groups)
        return {"rollout/sampled_groups": len(self.sampled), "rollout/kept_groups": kept, "rollout/tries": self.tries}


class DynamicSampler:
    """Draws, samples and scores until a step has enough useful groups; what is over waits for the next step.

    Dynamic sampling of DAPO (arXiv:2503.14476), section 3.2. Groups that wait keep the log-probs and the version of
    the weights that sampled them.
    """

    def __init__(self, collector: Collector, rule: Filter) -> None:
        self.collector = collector
        self.rule = rule
        self.waiting: list[Group] = []

    def gather(self, draw: Draw, needed: int, sampling: Sampling, clock: Clock) -> Gathering:
        """`needed` useful groups; ConfigError with advice when too many tries leave too few."""
        kept, self.waiting = self.waiting, []
        sampled: list[Group] = []
        tries = 0
        with self.collector.progress.phase("useful groups", needed) as tick:
            while len(kept) < needed:
                if 0 < self.rule.max_tries <= tries:
                    raise ConfigError("trainer.max_try_make_batch", self._advice(len(kept), needed, sampled))
                tries += 1
                groups = self.collector.collect(draw(self.rule.draw_size), sampling, clock, f"try {tries}: ")
                sampled += groups
                kept += [group for group in groups if self.rule.keeps(group)]
                tick(min(len(kept), needed), None)
        self.waiting = kept[needed:]
        return Gathering(kept[:needed], sampled, tries)

    def _advice(self, kept: int, needed: int, sampled: Sequence[Group]) -> str:
        rule = self.rule
        means = [sum(one.scores[rule.key] for one in group.samples) / len(group.samples) for group in sampled]
        low, high = sum(mean <= rule.low for mean in means), sum(mean >= rule.high for mean in means)
        return (
            f"after {rule.max_tries} tries {kept} of {needed} groups are useful; of {len(sampled)} sampled ones {low} "
            f"have a mean {rule.key!r} of at most {rule.low:g}, {high} of at least {rule.high:g}, the others have "
            "equal scores. Take easier or harder rows, raise worker.rollout.n, widen algorithm.filter_low and "
            "filter_high, or raise this limit"
        )
