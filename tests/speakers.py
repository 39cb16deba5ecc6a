"""Tiny models that answer: their next token depends on the last one alone, so that rewards differ between answers.

Attention and MLPs add nothing to the stream at first, and the head is made so that "Answer: \\boxed{" follows the
prompt, then one of the answers with equal chances, then "}" and the end. All of it trains like any other model.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import tiny
import torch
import transformers
from families import FAMILIES

LOGIT = 16.0  # of a token that should follow; the others have about 0
SAID = "Answer: \\boxed{%s}"


def save(kind: str, folder: Path, answers: Sequence[str] = ("1", "2")) -> Path:
    """Write a model of `kind` (of tiny.py or families.py) that says one of `answers`, each a single token."""
    if kind in tiny.KINDS:
        tiny.save(kind, folder)
        model = tiny.build(kind)
    else:
        FAMILIES[kind].save(folder)
        model = FAMILIES[kind].build()
    teach(model, [tiny.tokenizer().encode(SAID % answer) for answer in answers])
    model.save_pretrained(folder)
    return folder


def teach(model: transformers.PreTrainedModel, sayings: list[list[int]]) -> None:
    """Change the weights in place: after the prompt the model says one of `sayings`, ids without a repetition."""
    assert all(len(set(saying)) == len(saying) for saying in sayings)
    before = tiny.tokenizer().encode("<|im_start|>assistant\n")[-1]
    chains = [[before, *saying, tiny.token_id("<|im_end|>")] for saying in sayings]
    pairs = {pair for chain in chains for pair in pairwise(chain)}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "visual" not in name and ("o_proj" in name or "down_proj" in name):
                weight.zero_()
        embedded = torch.nn.functional.normalize(model.get_input_embeddings().weight, dim=-1)
        head = model.get_output_embeddings().weight.zero_()
        scale = LOGIT / embedded.shape[-1] ** 0.5  # the last norm makes vectors of length sqrt(hidden size)
        for first, second in pairs:
            head[second] += scale * embedded[first]
