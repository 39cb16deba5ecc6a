"""Prompts, answers and engines of one family, all through its own files as a run has them."""

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from easyr1.batch import Completion, Group, Prompt, Sample
from easyr1.data.chat import Chat
from easyr1.data.media import MediaStore
from easyr1.engines.pack import Packer
from easyr1.models.build import wrap
from easyr1.models.positions import Positions, token_types, type_names
from easyr1.models.scored import Scored
from tests import tiny
from tests.families import FAMILIES, Family

PICTURES = ((60, 120), (90, 70), (56, 56))  # (width, height) of other grids, tiles and sizes
STOP = tiny.token_id("<|im_end|>")


@dataclass
class World:
    """A family's folder, and what a run makes of it."""

    family: Family
    folder: Path
    chat: Chat
    media: MediaStore | None

    def prompt(self, text: str, *sizes: tuple[int, int], index: int = 0) -> Prompt:
        """The text behind one placeholder for each picture; text families get no pictures."""
        if self.media is None:
            sizes = ()
        pictures = [self.media.add(tiny.picture(*size, seed=10 * index + n)) for n, size in enumerate(sizes)]  # type: ignore[union-attr]
        ids, rendered = self.chat.encode("<image>" * len(pictures) + text, pictures)
        return Prompt(row=index, ids=ids, media=tuple(one.handle for one in pictures), text=rendered, index=index)

    def prompts(self) -> list[Prompt]:
        """One picture, none, two."""
        return [
            self.prompt("How many red circles are in the image?", PICTURES[0], index=0),
            self.prompt("What is 12 + 34? Solve the problem step by step.", index=1),
            self.prompt("Find x.", PICTURES[1], PICTURES[2], index=2),
        ]

    def groups(self, seed: int = 0) -> list[Group]:
        """Ragged random answers of plain text, with random advantages."""
        rng = np.random.default_rng(seed)
        lengths = ((7, 15, 3), (5,), (20, 2))
        return [
            Group(prompt, [self._sample(rng, length) for length in some])
            for prompt, some in zip(self.prompts(), lengths, strict=True)
        ]

    def _sample(self, rng: np.random.Generator, length: int) -> Sample:
        special = self.chat.tokenizer.added_tokens_decoder.keys()
        ids = rng.choice([number for number in range(400) if number not in special], length)
        sample = Sample(Completion(ids, np.zeros(length, np.float32), "stop", "0-0-0", 0))
        sample.advantages = np.full(length, rng.normal(), np.float32)
        return sample

    def inputs(self, handle: str) -> dict[str, np.ndarray]:
        assert self.media is not None
        return self.media.inputs(handle)

    def model(self, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        """With peaked attention: a random one is nearly blind to mistakes in who sees whom."""
        model = tiny.peak(self.family.build().to(dtype))
        if dtype is torch.float64:
            model.set_experts_implementation("eager")  # grouped products have no float64
        return model

    def lively(self) -> Scored:
        """A wrapped model whose greedy answers are not one token over and over."""
        model = self.model()
        with torch.no_grad():
            model.get_output_embeddings().weight *= 8  # type: ignore[union-attr, operator]
        return wrap(model)

    def packer(self, scored: Scored) -> Packer:
        return Packer(Positions(scored.model), self.inputs, scored.packed, scored.banned)


@functools.cache
def world(name: str) -> World:
    """Saved once for all tests of a process."""
    family = FAMILIES[name]
    folder = family.save(Path(tempfile.mkdtemp(prefix=f"{name}-")))
    chat = Chat.load(str(folder))
    return World(family, folder, chat, chat.media_store())


def plain_inputs(packer: Packer, model: PreTrainedModel, prompt: Prompt, answer: Sequence[int] = ()) -> dict[str, Any]:
    """What transformers' own forward or generate wants of one sequence, positions left to the model."""
    ids = torch.tensor([[*prompt.ids.tolist(), *answer]])
    media = packer.prompt_media(prompt)
    media = {name: one.to(model.dtype) if one.is_floating_point() else one for name, one in media.items()}
    if media:
        media |= dict.fromkeys(type_names(model), token_types(ids, model.config))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **media}
