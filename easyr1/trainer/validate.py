"""Validation: answer every row of the validation set and report the mean scores. Changes nothing."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from easyr1.batch import Group, Prompt
from easyr1.data.sources import labels
from easyr1.engines.protocols import Sampling
from easyr1.errors import DataError
from easyr1.tracking.clock import Clock
from easyr1.trainer.collect import Collector
from easyr1.trainer.metrics import lengths, score_means

VALIDATION_EPOCH = -1  # the draws of validation: the same random numbers every time, none of training's


def validate(
    prompts: Sequence[Prompt],
    collector: Collector,
    sampling: Sampling,
    batch_size: int,
    clock: Clock,
    usable: Callable[[Sequence[Prompt]], Sequence[Prompt]] = lambda prompts: prompts,
) -> list[Group]:
    """A scored group for each prompt that is `usable`, in order; `batch_size` -1 answers all at once."""
    placed = usable([replace(prompt, epoch=VALIDATION_EPOCH, index=index) for index, prompt in enumerate(prompts)])
    if not placed:
        raise DataError("data.on_bad_media=skip: no validation row is left whose pictures can be decoded.")
    size = len(placed) if batch_size < 0 else batch_size
    groups = []
    for start in range(0, len(placed), size):
        end = min(start + size, len(placed))
        what = "validation: " if end - start == len(placed) else f"validation {start}-{end} of {len(placed)}: "
        groups += collector.collect(placed[start:end], sampling, clock, what)
    return groups


def validation_metrics(groups: Sequence[Group], max_prompt: int, max_response: int) -> dict[str, float]:
    """`val/reward_score` is the mean of `overall`; each score is `val/<name>_reward`.

    Rows of several sources have them also by source: `val/<label of the source>/<name>_reward`.
    """
    scores = score_means(groups)
    return {
        "val/reward_score": scores["overall"],
        **{f"val/{name}_reward": value for name, value in scores.items()},
        **_by_source(groups),
        **lengths(groups, max_prompt, max_response, "val_"),
    }


def _by_source(groups: Sequence[Group]) -> dict[str, float]:
    """The scores of each source by themselves, where there are several."""
    sources: dict[str, list[Group]] = {}
    for group in groups:
        sources.setdefault(group.prompt.source, []).append(group)
    if len(sources) < 2:
        return {}
    names = labels(list(sources))
    return {
        f"val/{names[source]}/{name}_reward": value
        for source, own in sources.items()
        for name, value in score_means(own).items()
    }
