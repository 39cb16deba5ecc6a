"""Adapters (LoRA) on their way into vLLM, which keeps the base and is given A and B as files. Imports no vllm."""

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from easyr1.models.lora import ADAPTER_PARTS, write_adapter_files

# Layers whose names vLLM's models of these families share with Hugging Face's; not those of a vision tower.
LAYER = re.compile(r"model\.(language_model\.)?layers\.\d+\.(self_attn\.[qkvo]|mlp\.(gate|up|down))_proj")
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for
MEMORY = Path("/dev/shm")  # a file system in memory, where there is one


def why_merged(layers: Iterable[str], rank: int, engine_kwargs: Mapping[str, Any]) -> str | None:
    """Why adapters of these layers reach vLLM as part of the weights; None where it takes them as adapters."""
    if engine_kwargs.get("enable_lora") is False:
        return "worker.rollout.engine_kwargs.enable_lora is false"
    if rank > RANKS[-1]:
        return f"vLLM takes no rank above {RANKS[-1]}"
    others = sorted(name for name in layers if not LAYER.fullmatch(name))
    return f"vLLM takes none in {others[0]}" if others else None


def room_for(rank: int) -> dict[str, Any]:
    """Arguments of vllm.LLM for one adapter of this rank."""
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": next(one for one in RANKS if one >= rank)}


@dataclass
class Adapters:
    """A and B of all layers as they come, and the files that vLLM reads them from."""

    rank: int
    alpha: float
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    count: int = 0  # versions so far; each has a name of its own, as caches of prompts go by it

    def without(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """The other tensors of a stream; those of adapters are kept."""
        for name, tensor in weights:
            if name.endswith(ADAPTER_PARTS):
                self.tensors[name] = tensor.cpu()
            else:
                yield name, tensor

    @contextmanager
    def files(self) -> Iterator[str]:
        """A folder with what came, as peft writes it; it lasts as long as the block."""
        tensors, self.tensors = self.tensors, {}
        self.count += 1
        layers = {name.removesuffix(f".{part}") for name in tensors for part in ADAPTER_PARTS if name.endswith(part)}
        fields = {"peft_type": "LORA", "r": self.rank, "lora_alpha": self.alpha, "target_modules": sorted(layers)}
        with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
            write_adapter_files(Path(folder), tensors, fields)
            yield folder
