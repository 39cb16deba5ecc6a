"""The records that cross every boundary: ragged, one per prompt and one per answer, never padded.

They hold 1-D numpy arrays (cheap to pickle) and content-hash handles of pictures, never pixels.
Shape legend: P prompt tokens, T answer tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of the data, ready to be answered.

    A prompt drawn by the loader also carries its draw: (epoch, index in the epoch's order, attempt).
    """

    row: int  # number of the row in its data file, from 0
    ids: np.ndarray  # (P,) int64, vision placeholders already expanded
    media: tuple[str, ...] = ()  # handles of its pictures in the order of their placeholders
    text: str = ""  # the rendered prompt as a person reads it, for logs
    ground_truth: Any = None
    columns: Mapping[str, Any] = field(default_factory=dict)  # every other column of the row
    source: str = ""  # the data spec the row came from
    epoch: int = 0
    index: int = 0
    attempt: int = 0

    @property
    def group_id(self) -> str:
        """Name of this draw; all answers of one draw form a group, even where two rows have equal text."""
        return f"{self.epoch}-{self.index}-{self.attempt}"

    def light(self) -> "Prompt":
        """What sampling and training need of it: no text, no answer, no other column of the row."""
        return replace(self, text="", ground_truth=None, columns={})


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer as the sampler gave it; the end-of-sequence token, if drawn, is its last token."""

    ids: np.ndarray  # (T,) int64
    log_probs: np.ndarray  # (T,) float32, of the sampled tokens under the sampler's temperature and bans
    finish_reason: Literal["stop", "length"]
    group_id: str
    weights_version: int  # number of optimizer steps behind the weights that sampled it


@dataclass(slots=True)
class Sample:
    """An answer and all that training learns about it."""

    completion: Completion
    text: str = ""  # the answer, decoded
    scores: dict[str, float] = field(default_factory=dict)  # what the reward file returned
    old_log_probs: np.ndarray | None = None  # (T,)
    ref_log_probs: np.ndarray | None = None  # (T,)
    full_kl: np.ndarray | None = None  # (T,) KL divergence to the reference, where the whole of it is asked for
    values: np.ndarray | None = None  # (T,)
    rewards: np.ndarray | None = None  # (T,) the score at the last token, less KL where it is in the reward
    advantages: np.ndarray | None = None  # (T,)
    returns: np.ndarray | None = None  # (T,)

    def __len__(self) -> int:
        return len(self.completion.ids)

    def light(self) -> "Sample":
        """Its numbers for each token alone: no text, no scores."""
        return replace(self, text="", scores={})


@dataclass(slots=True)
class Group:
    """A prompt and some or all of its answers: the unit of work everywhere."""

    prompt: Prompt
    samples: list[Sample]
    baseline: float | None = None  # the score of a greedy answer, for the estimators that compare with one

    @property
    def num_tokens(self) -> int:
        """Tokens computed when the prompt is shared by its answers: P + sum of T."""
        return len(self.prompt.ids) + sum(len(sample) for sample in self.samples)


class Sums:
    """Named (sum, count) pairs and peaks: metrics that can be joined over micro-batches and ranks."""

    def __init__(self) -> None:
        self.totals: dict[str, tuple[float, float]] = {}
        self.peaks: dict[str, float] = {}

    def add(self, name: str, total: float, count: float = 1.0) -> None:
        old_total, old_count = self.totals.get(name, (0.0, 0.0))
        self.totals[name] = (old_total + float(total), old_count + float(count))

    def peak(self, name: str, value: float) -> None:
        """Keep the largest value given under a name."""
        self.peaks[name] = max(float(value), self.peaks.get(name, float("-inf")))

    def merge(self, other: "Sums") -> None:
        for name, value in other.peaks.items():
            self.peak(name, value)
        for name, (total, count) in other.totals.items():
            self.add(name, total, count)

    def means(self) -> dict[str, float]:
        """Mean of each name, and each peak; a name that nothing was counted under is left out."""
        return {name: total / count for name, (total, count) in self.totals.items() if count} | self.peaks


def merge_sums(parts: Iterable[Sums]) -> Sums:
    """The sum of all parts."""
    merged = Sums()
    for part in parts:
        merged.merge(part)
    return merged


def all_samples(groups: Sequence[Group]) -> list[Sample]:
    """The samples of all groups, in order."""
    return [sample for group in groups for sample in group.samples]
