"""Both sampling engines behind one call, on tiny models: the torch one with a copy of the model, and vLLM's."""

import copy
import functools
import importlib.util
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import scenes
import tiny
import torch
from transformers import PreTrainedModel

from easyr1.engines import rollout_vllm
from easyr1.engines.pack import Budget
from easyr1.engines.protocols import RolloutEngine
from easyr1.engines.rollout_torch import TorchRollout
from easyr1.engines.rollout_vllm import VllmRollout
from easyr1.engines.sync import WeightSync
from easyr1.engines.train import TorchTrain
from easyr1.engines.vllm_settings import Vision, VllmSettings
from easyr1.models.lora import LoraSpec, add_adapters
from easyr1.models.scored import Scored

HAS_VLLM = importlib.util.find_spec("vllm") is not None
ENGINES = (
    "torch",
    pytest.param("vllm", marks=[pytest.mark.slow, pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed")]),
)
STOPS = frozenset(range(100, 112))  # about one token in forty ends an answer, so that lengths are ragged
CACHE_BYTES = 1 << 27

_alive: list[Any] = []
_start = rollout_vllm.start


def _start_and_keep(*arguments: Any, **named: Any) -> Any:
    """vLLM's engines share the groups of their process, and one that ends takes them from the others: none ends."""
    _alive.append(_start(*arguments, **named))
    return _alive[-1]


rollout_vllm.start = _start_and_keep


@dataclass
class Bench:
    """A trained model, pictures for it, and a sampler whose weights are its own."""

    kind: str
    scored: Scored  # the trainer's
    scene: scenes.Scene
    sampler: RolloutEngine
    adapters_apart: bool = False

    def __post_init__(self) -> None:
        self.source = TorchTrain(self.scored, self.scene.media, 1.0, Budget(tokens=300))
        self.weights = WeightSync(self.source, self.sampler, False, adapters_apart=self.adapters_apart)

    def sync(self, version: int = 1) -> None:
        self.source.version = version
        self.weights.push()


def lively(kind: str, **sizes) -> PreTrainedModel:
    """A model whose answers are varied: a steep head on top of peaked attention.

    A tied head is steep on the token it has just seen, and so is left less so.
    """
    built = scenes.model(kind, **sizes)
    with torch.no_grad():
        built.get_output_embeddings().weight *= 3 if sizes.get("tie_word_embeddings") else 12
    return built


def bench(engine: str, kind: str, stops: frozenset[int] = STOPS, lora: LoraSpec | None = None, **sizes) -> Bench:
    """A new trained model, with adapters where `lora` is given, and a sampler with the same weights.

    vLLM engines are built once and used again; they take adapters as such.
    """
    built = lively(kind, **sizes)
    scene = scenes.Scene(kind)
    scored = scenes.packed(built)
    if engine == "torch":
        sampler: Any = TorchRollout(scenes.packed(copy.deepcopy(built)), scene.media, stops)
    else:
        old = _vllm(kind, lora, tuple(sorted(sizes.items())))
        sampler = VllmRollout(old.settings, scene.media, stops, vision=old.vision, llm=old.llm)
    if lora is not None:
        add_adapters(built, lora, torch.float32)
    found = Bench(kind, scored, scene, sampler, adapters_apart=engine == "vllm" and lora is not None)
    found.sync(0)
    return found


@functools.cache
def _vllm(kind: str, lora: LoraSpec | None, sizes: tuple[tuple[str, Any], ...]) -> VllmRollout:
    folder = tiny.save(kind, Path(tempfile.mkdtemp()) / kind, **dict(sizes))
    settings = {} if lora is None else {"lora_rank": lora.rank, "lora_alpha": lora.alpha}
    return vllm_rollout(folder, scenes.Scene(kind), kind, **settings)


def vllm_rollout(folder: Path, scene: scenes.Scene, kind: str, **settings) -> VllmRollout:
    """vLLM with the weights of a folder."""
    sees = kind in tiny.VISION_KINDS
    asked = VllmSettings(
        str(folder),
        **{"dtype": "float32", "max_model_len": 512, "enforce_eager": True}
        | {"engine_kwargs": {"kv_cache_memory_bytes": CACHE_BYTES}}
        | settings,
    )
    banned = scenes.packed(tiny.build(kind)).banned.tolist()
    vision = Vision(tiny.token_id("<|image_pad|>"), 2) if sees else None
    return VllmRollout(asked, scene.media, STOPS, banned, vision)
