"""Configuration -> weights -> the root module of an engine; picks the layout that is right for the model.

The door to transformers' model classes. Knows nothing of data, sampling or optimizers.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GenerationConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from easyr1.data.model_files import model_folder
from easyr1.data.processor import picture_keys
from easyr1.errors import ConfigError, first_line
from easyr1.models.attention import TEXT_ATTENTION, VISION_ATTENTION, MaskProbe, Packed, Span, UnsupportedAttention
from easyr1.models.lora import VISION, LoraSpec, adapter_parameters, add_adapters
from easyr1.models.parallel import Sharding, cast_as, fill, hand_on, shard, table
from easyr1.models.ranks import ALONE, Ranks
from easyr1.models.scored import ModelInputs, Scored, Valued
from easyr1.models.sequence import check_heads, check_layout
from easyr1.models.towers import vision_tower, why_not_shared

log = logging.getLogger(__name__)

# Towers whose windows arrive in one call under a name with "flash" in it; each is tested against the stock loop.
WINDOWED_TOWERS = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"})
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LEAK_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-3}
HEAD_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}


@dataclass(frozen=True)
class ModelSpec:
    """What to load and how. `param_dtype` is the type of trained weights, `compute_dtype` that of the matrix products.

    With `lora` the adapters are what is trained; the frozen model needs no more than the type of the products.
    """

    path: str
    param_dtype: str = "float32"
    compute_dtype: str = "float32"
    device: str = "cpu"
    trust_remote_code: bool = False
    override: Mapping[str, Any] | None = None
    packed: bool = True  # False: padded rows in any case
    freeze_vision_tower: bool = False
    gradient_checkpointing: bool = False
    lora: LoraSpec | None = None
    sharding: Sharding = field(default_factory=Sharding)  # over several ranks

    @property
    def stored_dtype(self) -> torch.dtype:
        """Type in which the weights are loaded."""
        return DTYPES[self.param_dtype if self.lora is None else self.compute_dtype]


def build(spec: ModelSpec, trainable: bool = True, ranks: Ranks = ALONE) -> Scored:
    """The model of `spec` as a root module; frozen and in eval mode unless `trainable`; sharded over `ranks`."""
    return _whole(spec, trainable, Scored) if ranks.mesh is None else _spread(spec, trainable, Scored, ranks)


def build_critic(spec: ModelSpec, ranks: Ranks = ALONE) -> Valued:
    """The model of `spec` with a value head, to be trained."""
    critic = _whole(spec, True, Valued) if ranks.mesh is None else _spread(spec, True, Valued, ranks)
    assert isinstance(critic, Valued)
    return critic


def _whole(spec: ModelSpec, trainable: bool, kind: type[Scored]) -> Scored:
    """With its weights, on the device of `spec`."""
    compute = None if spec.compute_dtype == spec.param_dtype else DTYPES[spec.compute_dtype]
    return _finished(wrap(load_model(spec), compute, spec.packed), spec, trainable, kind).to(spec.device)


def _finished(scored: Scored, spec: ModelSpec, trainable: bool, kind: type[Scored]) -> Scored:
    """With adapters and value head where they belong, and a gradient where there is to be one."""
    model = scored.model
    if spec.lora is not None:  # after the proof of the layout, and after the base's own dropout was switched off
        add_adapters(model, spec.lora, DTYPES[spec.param_dtype], without=layers_without_adapters(model, spec))
    scored.train(trainable)
    scored.requires_grad_(trainable and spec.lora is None)
    for parameter in adapter_parameters(model).values():
        parameter.requires_grad_(trainable)
    if trainable and spec.freeze_vision_tower:
        freeze_vision_tower(model)
    if trainable and spec.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if not issubclass(kind, Valued):
        return scored
    critic = kind(model, scored.packed, scored.compute_dtype)
    critic.value_head.to(DTYPES[spec.param_dtype])
    return critic.train()


@dataclass(frozen=True)
class _Found:
    """What rank 0 found out about the model that it read: how it takes rows, and what all its tensors are."""

    packed: bool
    plain_head: bool
    tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]]


def _spread(spec: ModelSpec, trainable: bool, kind: type[Scored], ranks: Ranks) -> Scored:
    """Sharded over `ranks`: rank 0 reads the model into host memory and hands its tensors on one by one, into models
    that were made without any; or each rank reads it, and keeps its part.
    """
    check_heads(load_model_config(spec), ranks.sequence)
    sharding, device = spec.sharding, torch.device(spec.device)
    reads = ranks.rank == 0 or not sharding.rank0_init
    source = _whole(replace(spec, device="cpu"), trainable, kind) if reads else None
    if sharding.rank0_init:
        found = None if source is None else _Found(source.packed, source.plain_head, table(source))
        root = _empty(spec, trainable, kind, ranks.gather(found)[0])
    else:
        assert source is not None
        root = source
        hand_on(adapter_parameters(root.model).values())  # which are drawn, not read
    _share_rows(root, ranks)
    root.compute_dtype, compute = None, DTYPES[spec.compute_dtype]
    is_mixed = any(parameter.dtype != compute for parameter in root.parameters())
    shard(root, ranks, sharding, compute if is_mixed else None)
    if sharding.rank0_init:
        fill(root, source, device, sharding.cpu_offload)
    return root


def _share_rows(root: Scored, ranks: Ranks) -> None:
    """Let the ranks of a replica share its rows, if there are several. Raises ConfigError where they cannot."""
    check_layout(root.packed, type(root.model).__name__, ranks.sequence)
    root.ranks = ranks
    reason = why_not_shared(root.model)
    if ranks.sequence > 1 and ranks.rank == 0 and reason is not None:
        log.warning("each rank computes all pictures of the rows that it shares with others: %s", reason)


def _empty(spec: ModelSpec, trainable: bool, kind: type[Scored], found: _Found) -> Scored:
    """The root module without any numbers (on the meta device), just as the one that rank 0 has."""
    config = load_model_config(spec)
    with torch.device("meta"), _told(spec):
        model = auto_class(config).from_config(
            config, dtype=spec.stored_dtype, trust_remote_code=spec.trust_remote_code
        )
        prepared(model, found.packed)
        scored = Scored(model, found.packed, banned_ids(model.config), plain_head=found.plain_head)
        root = _finished(scored, spec, trainable, kind)
    cast_as(root, found.tensors)
    return root


def prepared(model: PreTrainedModel, packed: bool) -> None:
    """Make a model that another one was proven for compute as that one does."""
    switch_off_dropout(model)
    if packed:
        model.set_attn_implementation(_our_attention(model))


def auto_class(config: Any) -> Any:
    """The Auto class of a configuration: that of vision-language models where it is one."""
    vision = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if vision else AutoModelForCausalLM


def load_model(spec: ModelSpec) -> PreTrainedModel:
    """The Hugging Face model with its weights, as a vision-language model where its configuration says so."""
    config = load_model_config(spec)
    auto = auto_class(config)
    with _told(spec):
        return auto.from_pretrained(
            model_folder(spec.path, weights=True),
            config=config,
            dtype=spec.stored_dtype,
            trust_remote_code=spec.trust_remote_code,
        )


@contextmanager
def _told(spec: ModelSpec) -> Iterator[None]:
    """What transformers raises for missing files and impossible configurations, as a ConfigError with a cure."""
    try:
        yield
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        override = f" with override_config={dict(spec.override)}" if spec.override else ""
        raise ConfigError(
            "worker.actor.model.model_path",
            f"{spec.path!r} cannot be loaded{override} ({first_line(error)}). Give a folder with config.json and "
            "weights, or the name of a hub model that can be reached (HF_ENDPOINT, HF_HUB_OFFLINE); the huggingface "
            "folder of a checkpoint holds no weights",
        ) from error


def load_model_config(spec: ModelSpec) -> Any:
    """The model's configuration; a key of `override_config` that it does not know is refused."""
    with _told(spec):
        config, unused = AutoConfig.from_pretrained(
            model_folder(spec.path),
            trust_remote_code=spec.trust_remote_code,
            return_unused_kwargs=True,
            **(spec.override or {}),
        )
    if unused:
        raise ConfigError(
            "worker.actor.model.override_config",
            f"{type(config).__name__} does not take {', '.join(sorted(unused))}",
        )
    return config


def stop_ids(spec: ModelSpec, model_config: Any) -> frozenset[int]:
    """Ids that end an answer: those of the generation configuration, else of the model's."""
    try:
        found = GenerationConfig.from_pretrained(model_folder(spec.path)).eos_token_id
    except OSError:
        found = None
    if found is None:
        found = getattr(model_config.get_text_config(), "eos_token_id", None)
    if found is None:
        raise ConfigError(
            "worker.actor.model.model_path",
            f"{spec.path!r} names no end-of-sequence token; set eos_token_id in its generation_config.json",
        )
    return frozenset([found] if isinstance(found, int) else found)


def wrap(model: PreTrainedModel, compute_dtype: torch.dtype | None = None, packed: bool = True) -> Scored:
    """The root module, with the packed layout where that is wanted and right for this model, else the padded one."""
    switch_off_dropout(model)
    banned = banned_ids(model.config)
    reason = use_packed_attention(model) if packed else None
    if reason:
        log.warning("%s takes the padded layout, which is slower: %s", type(model).__name__, reason)
    packed = packed and not reason
    return Scored(model, packed, banned, compute_dtype, plain_head=packed or _odd_head(Scored(model, False)) is None)


def banned_ids(config: Any) -> list[int]:
    """Ids of the vocabulary that are never sampled."""
    return [token for token in vision_token_ids(config) if token < config.get_text_config().vocab_size]


def vision_token_ids(config: Any) -> frozenset[int]:
    """Ids that stand for pictures or mark where they begin and end; they are never sampled."""
    return frozenset(picture_keys(config).values())


def switch_off_dropout(model: nn.Module) -> None:
    """Scores and updates must see one and the same function, also in training mode (which checkpointing needs)."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if getattr(module, "attention_dropout", 0.0):
            module.attention_dropout = 0.0  # type: ignore[assignment]


def freeze_vision_tower(model: PreTrainedModel) -> None:
    """No gradient for the vision tower, its merger included where it belongs to the tower."""
    tower = vision_tower(model)
    if tower is None:
        raise ConfigError("worker.actor.model.freeze_vision_tower", f"{type(model).__name__} has no vision tower")
    tower.requires_grad_(False)


def layers_without_adapters(model: PreTrainedModel, spec: ModelSpec) -> set[str]:
    """Full names of layers that `lora` must leave alone, whatever they are called: a frozen tower; by default all that
    lies beside the text model, as the tower and its projector do.
    """
    tower, text, head = vision_tower(model), model.get_decoder(), model.get_output_embeddings()
    assert spec.lora is not None
    kept: set[nn.Module] = set()
    if tower is not None and spec.lora.exclude_modules == VISION:
        inside = set(text.modules()) - set(tower.modules())
        kept = set(tower.modules()) if text in (model, model.base_model) else set(model.modules()) - inside - {head}
    elif tower is not None and spec.freeze_vision_tower:
        kept = set(tower.modules())
    return {name for name, module in model.named_modules() if module in kept}


def use_packed_attention(model: PreTrainedModel) -> str | None:
    """Switch the model to our attention and prove it right; otherwise switch back and return the reason."""
    stock = {name: getattr(model.config, name)._attn_implementation for name in model.config.sub_configs}
    stock[""] = model.config._attn_implementation
    try:
        model.set_attn_implementation(_our_attention(model))
        reason = _why_not_packed(model)
    except (UnsupportedAttention, ValueError) as error:
        reason = first_line(error)
    if reason:
        model.set_attn_implementation(stock)
    return reason


def _our_attention(model: PreTrainedModel) -> dict[str, str]:
    """Which attention each part of the model takes in the packed layout."""
    wanted = {"": TEXT_ATTENTION, "text_config": TEXT_ATTENTION}
    if model.config.model_type in WINDOWED_TOWERS:
        wanted["vision_config"] = VISION_ATTENTION
    elif "vision_config" in model.config.sub_configs:
        wanted["vision_config"] = model.config.vision_config._attn_implementation
    return wanted


@dataclass(frozen=True)
class _Witness(Packed):
    """Notes which layers called our attention."""

    layers: set[int] = field(default_factory=set)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        self.layers.add(layer)
        return super().attend(layer, query, key, value, scale, window)


@torch.no_grad()
def _why_not_packed(model: PreTrainedModel) -> str | None:
    """One small forward: does every layer call us, is every mask causal, is the head a plain one? A reason if not."""
    layout = _Witness((Span(0, 5, (3, 2)),))
    MaskProbe.take()
    odd_head = _odd_head(Scored(model, packed=True), layout)
    layers = model.config.get_text_config().num_hidden_layers
    if layout.layers != set(range(layers)):
        return f"{layers - len(layout.layers)} of its {layers} layers are not plain attention"
    if any(_looks_ahead(mask) for mask in MaskProbe.take()):
        return "some of its tokens attend to later ones"
    return odd_head or _leak(Scored(model, packed=True))


@torch.no_grad()
def _leak(scored: Scored) -> str | None:
    """Do the tokens of one answer change the next one's log-probs, as those of a scan beside the attention do?"""
    config, device = scored.model.config, scored.model.device
    pictures, size = vision_token_ids(config), config.get_text_config().vocab_size
    plain = [token for token in range(3, 24 + len(pictures)) if token % size not in pictures]

    def second(first: list[int]) -> torch.Tensor:
        ids = torch.tensor([[*plain[:5], *first, *plain[11:13]]], device=device) % size
        places = torch.tensor([[[0, 1, 2, 3, 4, 5, 6, 7, 5, 6]]], device=device)
        chosen = torch.tensor([8, 9], device=device)
        return scored(ModelInputs(ids, places, chosen, layout=Packed((Span(0, 5, (3, 2)),))))

    gap = float((second(plain[5:8]) - second(plain[8:11])).abs().max())
    return None if gap <= LEAK_TOLERANCE[scored.model.dtype] else "its layers carry one answer's tokens into the next"


@torch.no_grad()
def _odd_head(scored: Scored, layout: Packed | None = None) -> str | None:
    """The small forward, with picture tokens where the model knows them. A reason if its head is not a plain one."""
    model, device = scored.model, scored.model.device
    pictures = vision_token_ids(model.config)
    size = model.config.get_text_config().vocab_size
    ids = [token for token in range(3, 24 + len(pictures)) if token % size not in pictures][:10]
    image = getattr(model.config, "image_token_id", None)
    if image is not None and image < size:
        ids[1:4] = [image] * 3
    inputs = ModelInputs(
        ids=torch.tensor([ids], device=device) % size,
        positions=torch.tensor([[[0, 1, 2, 3, 4, 5, 6, 7, 5, 6]]], device=device),
        chosen=torch.arange(10, device=device),
        layout=layout,
        attention_mask=None if layout else torch.ones(1, 10, dtype=torch.long, device=device),
    )
    ours = scored(inputs)
    scored.plain_head = False
    gap = float((ours - scored(inputs)).abs().max())  # type: ignore[operator]
    return (
        None if gap <= HEAD_TOLERANCE[model.dtype] else f"its head is not a plain one (log-probs differ by {gap:.2g})"
    )


def _looks_ahead(mask_function: Any) -> bool:
    """Whether a mask function of transformers lets one of ten queries see a later key."""
    zero = torch.tensor(0)
    return any(
        bool(mask_function(zero, zero, torch.tensor(query), torch.tensor(key)))
        for query in range(10)
        for key in range(query + 1, 10)
    )


def local_folder(path: str) -> Path | None:
    """The folder of a model that lies on this machine, or None for a hub name."""
    folder = Path(path).expanduser()
    return folder if folder.is_dir() else None
