"""Answers as records for people to read: rows of generations.jsonl, of validations and of training groups alike.

Knows groups; not where rows are logged, nor how a page shows them.
"""

import base64
import io
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from easyr1.batch import Group, Sample
from easyr1.rewards.parsed import final_answer
from easyr1.tracking.samples import pick_rows

MAX_SIDE = 384  # pixels of a logged picture
MAX_GROUP_PICTURES = 4  # of one training group
NUM_LOGGED_STEPS = 50  # about so many steps of a run have their training groups logged


class Picture(Protocol):
    """A PIL image."""

    def copy(self) -> "Picture": ...

    def thumbnail(self, size: tuple[float, float]) -> None: ...

    def save(self, fp: Any, format: str) -> None: ...


def validation_rows(
    groups: Sequence[Group], count: int, picture: Callable[[str], Picture] | None
) -> list[dict[str, Any]]:
    """The first answers of `count` groups, the same rows at every validation; `picture` None: without pictures."""
    chosen = [groups[index] for index in pick_rows([group.prompt.index for group in groups], count)]
    return [
        _row("val", group, group.samples[0])
        | ({} if picture is None else {"images": [png(picture(handle)) for handle in group.prompt.media]})
        for group in chosen
    ]


def training_rows(
    groups: Sequence[Group], count: int, seed: int, picture: Callable[[str], Picture]
) -> list[dict[str, Any]]:
    """All answers of `count` groups drawn by `seed`, with their advantages; the first of a group has its pictures."""
    rows = []
    for index in pick_rows([group.prompt.group_id for group in groups], count, seed):
        group = groups[index]
        shown = group.prompt.media[:MAX_GROUP_PICTURES]
        images = {"images": [png(picture(handle)) for handle in shown]} if shown else {}
        own = [_row("train", group, sample) | {"advantage": _advantage(sample)} for sample in group.samples]
        own[0] |= images
        rows += own
    return rows


def is_logged_step(step: int, total_steps: int) -> bool:
    """Whether a step's training groups are logged: the first and the last, and about 50 at equal distance between.

    So what they take on the disk has a bound, however long a run is.

    >>> [step for step in range(1, 101) if is_logged_step(step, 100)][:4]
    [1, 2, 4, 6]
    """
    return step in (1, total_steps) or step % max(1, math.ceil(total_steps / NUM_LOGGED_STEPS)) == 0


def png(picture: Picture) -> str:
    """A picture, made smaller where it is large, as the base64 text of a PNG file."""
    small = picture.copy()
    small.thumbnail((MAX_SIDE, MAX_SIDE))
    buffer = io.BytesIO()
    small.save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def _row(split: str, group: Group, sample: Sample) -> dict[str, Any]:
    """`split` first: the report finds the rows that it wants without parsing the others."""
    parsed = final_answer(sample.text)
    return {
        "split": split,
        "row": group.prompt.row,
        "source": group.prompt.source,
        "group": group.prompt.group_id,
        "prompt": group.prompt.text,
        "response": sample.text,
        "ground_truth": group.prompt.ground_truth,
        "scores": sample.scores,
        "truncated": sample.completion.finish_reason == "length",
        **({} if parsed is None else {"parsed": parsed}),
    }


def _advantage(sample: Sample) -> float | None:
    """The mean over its tokens; estimators that compare answers give every token of one the same."""
    return None if sample.advantages is None or not len(sample.advantages) else float(sample.advantages.mean())
