"""Groups of prompts and answers for tests of models and engines: ragged, with and without pictures."""

from dataclasses import dataclass, field

import numpy as np
import tiny
import torch
from transformers import PreTrainedModel

from easyr1.batch import Completion, Group, Prompt, Sample
from easyr1.engines.pack import Packer
from easyr1.models.build import vision_token_ids, wrap
from easyr1.models.positions import Positions
from easyr1.models.scored import Scored

STOP = tiny.token_id("<|im_end|>")
FIRST_PLAIN_ID = len(tiny.SPECIAL_TOKENS) + 2


@dataclass
class Scene:
    """Processed pictures by handle, and a stream of random ids."""

    kind: str
    seed: int = 0
    pictures: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def media(self, handle: str) -> dict[str, np.ndarray]:
        return self.pictures[handle]

    def ids(self, count: int) -> np.ndarray:
        """Random ids of plain text (no special token)."""
        special = {tiny.token_id(token) for token in tiny.SPECIAL_TOKENS}
        plain = np.array([number for number in range(400) if number not in special])
        return self.rng.choice(plain, count)

    def prompt(self, length: int, *sizes: tuple[int, int], index: int = 0) -> Prompt:
        """`length` text tokens, then each (width, height) picture and three more tokens; text kinds skip pictures."""
        parts, handles = [self.ids(length)], []
        for width, height in sizes if self.kind in tiny.VISION_KINDS else ():
            handle = f"{width}x{height}"
            if handle not in self.pictures:
                picture = tiny.picture(width, height, seed=len(self.pictures))
                processed = tiny.image_processor(self.kind)(images=[picture], return_tensors="np")
                self.pictures[handle] = {name: np.asarray(value) for name, value in processed.items()}
            count = int(self.pictures[handle]["image_grid_thw"].prod()) // 4
            start, pad, end = (tiny.token_id(f"<|{name}|>") for name in ("vision_start", "image_pad", "vision_end"))
            parts += [np.array([start] + [pad] * count + [end]), self.ids(3)]
            handles.append(handle)
        return Prompt(row=index, ids=np.concatenate(parts), media=tuple(handles), index=index)

    def sample(self, length: int) -> Sample:
        ids = self.ids(length)
        return Sample(Completion(ids, np.zeros(length, np.float32), "stop", "0-0-0", 0))

    def groups(self) -> list[Group]:
        """Ragged answers, several groups, one of one answer, a row without picture, a row with two."""
        return [
            Group(self.prompt(12, (56, 84), index=0), [self.sample(length) for length in (7, 15, 3)]),
            Group(self.prompt(25, index=1), [self.sample(5)]),
            Group(self.prompt(9, (84, 84), (56, 56), index=2), [self.sample(length) for length in (20, 2)]),
        ]


def model(kind: str, dtype: torch.dtype = torch.float32, **sizes: int) -> PreTrainedModel:
    """A tiny model with peaked attention: a random one is nearly blind to mistakes in who sees whom."""
    built = tiny.build(kind, **sizes).to(dtype)
    tiny.peak(built)
    return built


def packed(built: PreTrainedModel) -> Scored:
    """With our attention."""
    scored = wrap(built)
    assert scored.packed
    return scored


def padded(built: PreTrainedModel) -> Scored:
    """With the model's own attention on padded rows: the reference for every equality test."""
    return Scored(built, packed=False, banned=vision_token_ids(built.config))


def packer(scored: Scored, scene: Scene) -> Packer:
    return Packer(Positions(scored.model), scene.media, scored.packed, scored.banned)


def live_logits(scored: Scored, kind: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Inputs of the plain model, with a picture where it takes one, and what the trained model says to them."""
    scene = Scene(kind)
    of = packer(scored, scene)
    prompt = scene.prompt(9, (56, 84))
    ids = torch.from_numpy(prompt.ids)[None]
    media = of.prompt_media(prompt)
    if media:
        media["mm_token_type_ids"] = of.positions.token_types(ids)
    scored.model.set_attn_implementation("sdpa")
    with torch.no_grad():
        return {"input_ids": ids, **media}, scored.eval().model(input_ids=ids, **media).logits
