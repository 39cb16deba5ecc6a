"""Answers in, scores out: decodes each answer, puts the row beside it, asks the reward function, keeps what it says.

Knows neither processes nor files: the worker does.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from easyr1.batch import Group, Prompt, Sample

OWN_NAMES = ("response", "response_length", "ground_truth")

Decode = Callable[[np.ndarray, bool], str]  # (token ids, skip special tokens?) -> text
Progress = Callable[[int, int], None]  # (done, all)


class Worker(Protocol):
    """What scores inputs; RewardWorker is one."""

    def score(
        self, inputs: Sequence[dict[str, Any]], names: Sequence[str], progress: Progress | None = None
    ) -> list[dict[str, float]]: ...


def score(
    groups: Sequence[Group],
    worker: Worker,
    decode: Decode,
    *,
    skip_special_tokens: bool = True,
    progress: Progress | None = None,
) -> None:
    """Fill `text` and `scores` of every sample of `groups`.

    All samples go to the worker at once, so that a batch function sees the whole rollout in one call. A sample has
    exactly the scores that the function returned for it: a key that only some samples have is not made up for others.
    """
    pairs = [(group.prompt, sample) for group in groups for sample in group.samples]
    for _, sample in pairs:
        sample.text = decode(sample.completion.ids, skip_special_tokens)
    inputs = [reward_input(prompt, sample) for prompt, sample in pairs]
    names = [f"row {prompt.row} of {prompt.source}" if prompt.source else f"row {prompt.row}" for prompt, _ in pairs]
    for (_, sample), scores in zip(pairs, worker.score(inputs, names, progress), strict=True):
        sample.scores = scores


def reward_input(prompt: Prompt, sample: Sample) -> dict[str, Any]:
    """What the reward function sees of one answer: our three names first, then the prompt and the row's columns."""
    return (
        {"prompt": prompt.text}
        | dict(prompt.columns)
        | {
            "response": sample.text,
            "response_length": len(sample),
            "ground_truth": prompt.ground_truth,
        }
    )


def hidden_columns_note(columns: Iterable[str]) -> str | None:
    """A note for the start of the run about columns that the reward function cannot see, or None.

    >>> hidden_columns_note(["source", "response"])
    "the reward function does not see the data's column response: these names mean the answer being scored"
    >>> hidden_columns_note(["source"])
    """
    hidden = [name for name in columns if name in OWN_NAMES]
    if not hidden:
        return None
    noun = "column" if len(hidden) == 1 else "columns"
    return (
        f"the reward function does not see the data's {noun} {', '.join(hidden)}: these names mean the answer being "
        "scored"
    )
