"""Groups that wait for the next step, as plain records for a checkpoint and back.

A prompt is its place in the order of rows; numbers are written so that they come back bit by bit.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from easyr1.batch import Completion, Group, Prompt, Sample

At = Callable[[int, int], Prompt]  # (epoch, index) -> the prompt that was drawn there


def to_records(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """JSON-ready records of sampled and scored groups."""
    return [
        {
            "epoch": group.prompt.epoch,
            "index": group.prompt.index,
            "samples": [
                {
                    "ids": sample.completion.ids.tolist(),
                    "log_probs": sample.completion.log_probs.tolist(),
                    "finish_reason": sample.completion.finish_reason,
                    "weights_version": sample.completion.weights_version,
                    "text": sample.text,
                    "scores": sample.scores,
                }
                for sample in group.samples
            ],
        }
        for group in groups
    ]


def from_records(records: Sequence[dict[str, Any]], at: At) -> list[Group]:
    """The groups that `to_records` was given."""
    groups = []
    for record in records:
        prompt = at(record["epoch"], record["index"])
        groups.append(Group(prompt, [_sample(prompt, saved) for saved in record["samples"]]))
    return groups


def _sample(prompt: Prompt, saved: dict[str, Any]) -> Sample:
    completion = Completion(
        ids=np.array(saved["ids"], dtype=np.int64),
        log_probs=np.array(saved["log_probs"], dtype=np.float32),
        finish_reason=saved["finish_reason"],
        group_id=prompt.group_id,
        weights_version=saved["weights_version"],
    )
    return Sample(completion, saved["text"], saved["scores"])
