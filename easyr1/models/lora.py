"""Low-rank adapters (arXiv:2106.09685): W + alpha / rank * B A in chosen linear layers of a frozen Hugging Face model.

The one door to peft, which is imported only where a model has adapters. The model keeps its class and its other
modules; a layer with an adapter holds its old self as `base_layer`. Knows neither engines nor the configuration.
"""

import json
import math
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from easyr1.config.names import did_you_mean
from easyr1.errors import CheckpointError, ConfigError, DataError
from easyr1.models.parallel import whole
from easyr1.models.ranks import writes

if TYPE_CHECKING:
    from easyr1.models.scored import Scored

ADAPTER = "default"  # peft's name for the one adapter
NOWHERE = "no such layer"
ALL_LINEAR = "all-linear"
VISION = ".*visual.*"  # stands for tower and projector, whatever a family calls them
PREFIX = "base_model.model."  # of every name in a file of peft
ADAPTER_PARTS = ("lora_A.weight", "lora_B.weight")  # at the ends of tensors' names
ADAPTER_FOLDER = "lora_adapter"  # in an engine's folder of a checkpoint
TENSORS_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"
VARIANTS = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "lora_bias")


@dataclass(frozen=True)
class LoraSpec:
    """Which linear layers get adapters, and what kind. `key` is the section of the configuration that errors name."""

    rank: int
    alpha: int
    target_modules: str = ALL_LINEAR  # or full names or their ends, separated by commas
    exclude_modules: str | None = VISION  # regular expression of whole names
    dropout: float = 0.0  # of an adapter's input, in training mode only
    key: str = "worker.actor.model.lora"


def choose_layers(model: PreTrainedModel, spec: LoraSpec, without: Collection[str] = ()) -> tuple[str, ...]:
    """Full names of the linear layers that get an adapter, none of `without`. Raises ConfigError if none is left.

    The output head is among them only by name, and only where it has weights of its own.
    """
    linear = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    head = model.get_output_embeddings()
    heads = {name for name, module in model.named_modules() if module is head}
    if spec.target_modules == ALL_LINEAR:
        wanted = set(linear) - heads
    else:
        wanted = _named(linear, spec, type(model).__name__)
        if wanted & heads and head.weight is model.get_input_embeddings().weight:  # type: ignore[union-attr]
            raise ConfigError(
                f"{spec.key}.target_modules",
                f"{min(wanted & heads)} shares its weights with the embedding, which an adapter would pull apart; "
                "leave it out",
            )
    excluded = None if spec.exclude_modules is None else re.compile(spec.exclude_modules)
    chosen = tuple(
        name
        for name in linear
        if name in wanted and name not in without and not (excluded and excluded.fullmatch(name))
    )
    if not chosen:
        raise ConfigError(
            f"{spec.key}.target_modules",
            f"{spec.target_modules!r} without {spec.exclude_modules!r} (exclude_modules) "
            f"{'and without the vision tower (freeze_vision_tower) ' if without else ''}leaves no layer; "
            f"{type(model).__name__} has, for example, {', '.join(linear[:2] + linear[-3:-1])}",
        )
    return chosen


def _named(linear: Collection[str], spec: LoraSpec, model: str) -> set[str]:
    """Layers whose full name or its end is one of `target_modules`. Raises ConfigError for a name without a layer."""
    found: set[str] = set()
    for wanted in (part.strip() for part in spec.target_modules.split(",") if part.strip()):
        matches = {name for name in linear if f".{name}".endswith(f".{wanted}")}
        if not matches:
            ends = dict.fromkeys(name.rpartition(".")[2] for name in linear)
            hint = did_you_mean(wanted, [*ends, *linear]) or f"; there are {', '.join(list(ends)[:12])}"
            raise ConfigError(f"{spec.key}.target_modules", f"{wanted!r} names no linear layer of {model}{hint}")
        found |= matches
    return found


def add_adapters(
    model: PreTrainedModel, spec: LoraSpec, dtype: torch.dtype, without: Collection[str] = ()
) -> tuple[str, ...]:
    """Give each chosen layer an adapter with weights of `dtype`, freeze all else; the full names of these layers.

    B is 0, so the model still is its base. A is drawn from torch's generator, whatever peft takes from it.
    """
    from peft import LoraConfig, inject_adapter_in_model

    names = choose_layers(model, spec, without)
    config = LoraConfig(
        r=spec.rank, lora_alpha=spec.alpha, lora_dropout=spec.dropout, target_modules=[NOWHERE], bias="none"
    )
    # peft by itself would match ends of names, and take dense layers of some mixtures of experts for fused experts.
    exactly = {f"{name}.lora_A.weight": torch.empty(0) for name in names}
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "While injecting the PEFT adapters, an inconsistency", RuntimeWarning)
        inject_adapter_in_model(config, model, ADAPTER, state_dict=exactly)
    config.target_modules = list(names)
    layers = adapter_layers(model)
    assert tuple(layers) == names
    for layer in layers.values():
        low, high = layer.lora_A[ADAPTER].to(dtype), layer.lora_B[ADAPTER].to(dtype)
        drawn = torch.empty(low.weight.shape)
        nn.init.kaiming_uniform_(drawn, a=math.sqrt(5))
        with torch.no_grad():
            low.weight.copy_(drawn)
            high.weight.zero_()
    return names


def adapter_layers(model: PreTrainedModel) -> dict[str, Any]:
    """Full name -> peft's layer, of every layer with an adapter."""
    if not hasattr(model, "peft_config"):
        return {}
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def adapter_parameters(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """Name -> weight, of all A and B."""
    return {
        f"{layer_name}.{name}": parameter
        for layer_name, layer in adapter_layers(model).items()
        for name, parameter in layer.named_parameters()
        if not name.startswith("base_layer.")
    }


@contextmanager
def adapters_off(model: PreTrainedModel) -> Iterator[None]:
    """The model is its base inside; what has a gradient does not change, which sharded weights would not bear."""
    layers = adapter_layers(model).values()
    trained = {parameter: parameter.requires_grad for parameter in adapter_parameters(model).values()}
    _switch(layers, False, trained)
    try:
        yield
    finally:
        _switch(layers, True, trained)


def _switch(layers: Collection[Any], enabled: bool, trained: dict[nn.Parameter, bool]) -> None:
    for layer in layers:
        layer.enable_adapters(enabled)
    for parameter, requires_grad in trained.items():
        parameter.requires_grad_(requires_grad)


def merged_tensors(model: PreTrainedModel, merge: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors under the names of a model without adapters, tied ones under each name; the model is not changed.

    Without `merge` they are those of the base. Of a sharded model all ranks ask at once, and no more than one layer is
    whole at a time.
    """
    layers, own = adapter_layers(model), adapter_parameters(model)
    for name, tensor in model.state_dict().items():
        layer, _, part = name.partition(".base_layer.")
        if part:
            merged = merge and part == "weight"
            yield f"{layer}.{part}", _merged(whole(tensor), layers[layer]) if merged else whole(tensor)
        elif name not in own:
            yield name, whole(tensor)


def adapter_tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """A and B of each adapter, whole, under "LAYER.lora_A.weight" and "LAYER.lora_B.weight"; all ranks ask at once."""
    for name, layer in adapter_layers(model).items():
        for part in ADAPTER_PARTS:
            yield f"{name}.{part}", whole(getattr(layer, part.removesuffix(".weight"))[ADAPTER].weight).detach()


@torch.no_grad()
def _merged(weight: torch.Tensor, layer: Any) -> torch.Tensor:
    low, high = whole(layer.lora_A[ADAPTER].weight), whole(layer.lora_B[ADAPTER].weight)
    delta = layer.scaling[ADAPTER] * (high.float() @ low.float())
    return (weight + delta.to(weight.device)).to(weight.dtype)


def saved_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """What a checkpoint holds, under the model's names, each tensor once: adapters where there are any, else all."""
    names = adapter_parameters(model).keys() or model.state_dict().keys()
    own = chain(model.named_parameters(), model.named_buffers())  # a tied tensor comes once, under its first name
    return {name: tensor.detach() for name, tensor in own if name in names}


def describe(scored: "Scored") -> tuple[str, list[str]] | None:
    """One sentence about the adapters, and the full names of their layers; None without any."""
    layers = list(adapter_layers(scored.model))
    if not layers:
        return None
    kinds = dict.fromkeys(re.sub(r"\.\d+(?=\.)", ".*", name) for name in layers)
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in scored.parameters()]
    trained = sum(size for size, requires_grad in sizes if requires_grad)
    sentence = (
        f"{len(layers)} layers get adapters of rank {_config(scored.model).r}: {', '.join(kinds)}; {trained:,} "
        f"trainable weights of {sum(size for size, _ in sizes):,}"
    )
    return sentence, layers


def _config(model: PreTrainedModel) -> Any:
    return model.peft_config[ADAPTER]  # type: ignore[index]


def write_adapter(scored: "Scored", folder: Path, base_path: str) -> None:
    """The adapters as peft publishes them, to be laid over the model of `base_path`. All ranks call it, one writes."""
    tensors = {name: tensor.cpu() for name, tensor in adapter_tensors(scored.model)}
    if not writes():
        return
    modules = [name for name, _ in scored.model.named_modules()]
    fields = _config(scored.model).to_dict() | {
        "base_model_name_or_path": base_path,
        "target_modules": _shortest(adapter_layers(scored.model), modules),
        "task_type": "CAUSAL_LM",
        "inference_mode": True,
    }
    write_adapter_files(folder, tensors, fields)


def write_adapter_files(folder: Path, tensors: Mapping[str, torch.Tensor], fields: Mapping[str, Any]) -> None:
    """What peft reads: tensors as `adapter_tensors` names them, and the fields of its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    named = {f"{PREFIX}{name}": tensor.contiguous() for name, tensor in tensors.items()}
    try:
        save_file(named, folder / TENSORS_FILE, metadata={"format": "pt"})
    except SafetensorError as error:
        raise CheckpointError(f"{folder / TENSORS_FILE} cannot be written: {error}") from error
    (folder / CONFIG_FILE).write_text(json.dumps(fields, indent=2, sort_keys=True, default=str) + "\n")
    (folder / TENSORS_FILE).chmod((folder / CONFIG_FILE).stat().st_mode)  # which was written for its owner alone


def _shortest(chosen: Collection[str], modules: Collection[str]) -> list[str]:
    """Ends of names that mean the chosen layers and no other module; their full names where there are none such."""
    ends = {name.rpartition(".")[2] for name in chosen}
    meant = {name for name in modules if name.rpartition(".")[2] in ends}
    return sorted(ends if meant == set(chosen) else chosen)


def merged_from(base: PreTrainedModel, folder: Path) -> dict[str, torch.Tensor]:
    """The state dict of `base` with the written adapter of `folder` added: W + alpha / rank * B A, out of place.

    Raises DataError where a file is missing or the adapter belongs to another model.
    """
    for file in (TENSORS_FILE, CONFIG_FILE):
        if not (folder / file).is_file():
            raise DataError(f"{folder} holds no {file}, so it is no adapter")
    config = json.loads((folder / CONFIG_FILE).read_text())
    if variants := [name for name in VARIANTS if config.get(name)]:
        raise DataError(f"{folder / CONFIG_FILE}: adapters with {', '.join(variants)} cannot be merged here")
    tensors, state = load_file(folder / TENSORS_FILE), base.state_dict()
    for key in [key for key in tensors if ".lora_B." not in key]:
        name = key.removeprefix(PREFIX).replace(".lora_A.weight", ".weight")
        low, high = tensors[key].float(), tensors.get(key.replace(".lora_A.", ".lora_B."), torch.empty(0, 0)).float()
        weight = state.get(name)
        if weight is None or high.shape[-1:] != low.shape[:1] or weight.shape != (high.shape[0], low.shape[1]):
            raise DataError(f"{folder / TENSORS_FILE}: {key} fits no layer of {type(base).__name__}")
        delta = (config["lora_alpha"] / config["r"]) * (high @ low)
        state[name] = (weight + delta.to(weight.device)).to(weight.dtype)
    return state
