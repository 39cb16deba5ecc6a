"""Tiny models of every supported family, saved as hub folders have them: weights, tokenizer, template, processor.

Each has hidden size 128 and 2 layers. A vision family has the special tokens, the processor and a tower of its own
kind; `tiny.py` has the parts that they share.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers

from tests import tiny

Config = transformers.PretrainedConfig
QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
LLAVA_GRID = [[56, 56], [56, 112], [112, 56]]
PACKED, PADDED = "shared prefix", "padded"


@dataclass(frozen=True)
class Family:
    """How to build a tiny model of one family, and what is expected of it."""

    name: str
    title: str  # in docs/models.md
    config: Callable[[Any], Config]  # given the tokenizer
    layout: str = PACKED
    reason: str = ""  # a word of why it is padded
    image: str = ""  # what the chat template writes for a picture
    tokens: tuple[str, ...] = ()
    named: tuple[tuple[str, str], ...] = ()
    image_processor: Callable[[], Any] | None = None
    processor: dict[str, Any] = field(default_factory=dict)  # as in processor_config.json
    tower: str = "model.visual."  # how the names of its weights begin

    @property
    def sees(self) -> bool:
        return self.image_processor is not None

    @property
    def tokenizer(self) -> Any:
        return tiny.tokenizer(more=self.tokens, named=self.named)

    def build(self, seed: int = 0) -> transformers.PreTrainedModel:
        """A float32 model with random weights, in eval mode."""
        return tiny.from_config(self.config(self.tokenizer), seed, vision=self.sees)

    def save(self, folder: Path, seed: int = 0) -> Path:
        """Everything that a hub folder of the family has."""
        self.build(seed).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        template = tiny.CHAT_TEMPLATE.replace(QWEN_IMAGE, self.image or QWEN_IMAGE)
        (folder / "chat_template.jinja").write_text(template)
        if self.image_processor is not None:
            self.image_processor().save_pretrained(folder)
        if self.processor:
            (folder / "processor_config.json").write_text(json.dumps(self.processor))
        return folder


def _text(**more: Any) -> dict[str, Any]:
    return tiny.text_numbers(**more)


def _plain(**more: Any) -> dict[str, Any]:
    """Without head_dim, which some configurations do not know."""
    numbers = tiny.text_numbers(**more)
    numbers.pop("head_dim")
    return numbers


def _siglip(**more: Any) -> dict[str, Any]:
    numbers = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    return numbers | {"image_size": 56, "patch_size": 14} | more


def _llama3(_: Any) -> Config:
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return transformers.LlamaConfig(**_text(rope_parameters=rope | {"original_max_position_embeddings": 64}))


def _qwen3_moe(_: Any) -> Config:
    return transformers.Qwen3MoeConfig(**_text(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64))


def _gemma3_text(_: Any) -> Config:
    return transformers.Gemma3TextConfig(**_gemma_numbers())


def _gemma_numbers() -> dict[str, Any]:
    return _text(sliding_window=8, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=32)


def _id(tokenizer: Any, token: str) -> int:
    return int(tokenizer.convert_tokens_to_ids(token))


def _qwen(kind: str) -> Callable[[Any], Config]:
    return lambda _: tiny.vision_config(kind)


def _qwen_ids() -> dict[str, Any]:
    names = {"image": "image_pad", "video": "video_pad", "vision_start": "vision_start", "vision_end": "vision_end"}
    return {f"{name}_token_id": tiny.token_id(f"<|{token}|>") for name, token in names.items()}


def _qwen3_tower(**more: Any) -> dict[str, Any]:
    numbers = {"depth": 2, "num_heads": 2, "spatial_merge_size": 2, "temporal_patch_size": 2, "patch_size": 16}
    sizes = {"hidden_size": 64, "intermediate_size": 128, "out_hidden_size": 128, "num_position_embeddings": 64}
    return numbers | sizes | more


def _qwen3_vl_moe(_: Any) -> Config:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6], "mrope_interleaved": True}
    text = _text(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, rope_parameters=rope)
    tower = _qwen3_tower(deepstack_visual_indexes=[0])
    return transformers.Qwen3VLMoeConfig(
        text_config=text, vision_config=tower, tie_word_embeddings=False, **_qwen_ids()
    )


def _qwen3_5(make: Any, **more: Any) -> Callable[[Any], Config]:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3], "mrope_interleaved": True}
    linear = {f"linear_{name}": 2 for name in ("num_key_heads", "num_value_heads")}
    linear |= {f"linear_{name}": 32 for name in ("key_head_dim", "value_head_dim")}
    layers = {"layer_types": ["linear_attention", "full_attention"]}
    text = _text(rope_parameters=rope | {"partial_rotary_factor": 0.5}, **layers, **linear, **more)
    sizes = {"vision_config": _qwen3_tower(), "tie_word_embeddings": False}
    return lambda _: make(text_config=text, **sizes, **_qwen_ids())


def _gemma3(tokenizer: Any) -> Config:
    return transformers.Gemma3Config(
        text_config=_gemma_numbers(),
        vision_config=_siglip(),
        mm_tokens_per_image=4,
        image_token_index=_id(tokenizer, "<image_soft_token>"),
        boi_token_index=_id(tokenizer, "<start_of_image>"),
        eoi_token_index=_id(tokenizer, "<end_of_image>"),
        tie_word_embeddings=False,
    )


def _internvl(tokenizer: Any) -> Config:
    return transformers.InternVLConfig(
        text_config=_plain() | {"model_type": "qwen2"},
        vision_config=_siglip(image_size=[56, 56], patch_size=[14, 14]),
        image_token_id=_id(tokenizer, "<IMG_CONTEXT>"),
        image_seq_length=4,
        tie_word_embeddings=False,
    )


def _idefics(make: Any) -> Callable[[Any], Config]:
    return lambda tokenizer: make(
        text_config=_text() | {"model_type": "llama"},
        vision_config=_siglip(),
        image_token_id=_id(tokenizer, "<image>"),
        scale_factor=2,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )


def _llava_onevision(tokenizer: Any) -> Config:
    return transformers.LlavaOnevisionConfig(
        text_config=_plain() | {"model_type": "qwen2"},
        vision_config=_siglip(model_type="siglip_vision_model", vision_use_head=False),
        image_token_index=_id(tokenizer, "<image>"),
        video_token_index=_id(tokenizer, "<video>"),
        image_grid_pinpoints=LLAVA_GRID,
        tie_word_embeddings=False,
    )


def _llava_next(tokenizer: Any) -> Config:
    return transformers.LlavaNextConfig(
        text_config=_text() | {"model_type": "mistral", "sliding_window": None},
        vision_config=_siglip(model_type="clip_vision_model", projection_dim=64),
        image_token_index=_id(tokenizer, "<image>"),
        image_grid_pinpoints=LLAVA_GRID,
        vision_feature_layer=-1,
        tie_word_embeddings=False,
    )


def _glm_ids(tokenizer: Any) -> dict[str, Any]:
    marks = ("begin_of_image", "end_of_image", "begin_of_video", "end_of_video", "image", "video")
    names = ("image_start", "image_end", "video_start", "video_end", "image", "video")
    return {f"{name}_token_id": _id(tokenizer, f"<|{mark}|>") for name, mark in zip(names, marks, strict=True)}


def _glm_tower() -> dict[str, Any]:
    numbers = {"depth": 2, "num_heads": 2, "hidden_size": 64, "intermediate_size": 128, "out_hidden_size": 128}
    return numbers | {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "image_size": 56}


def _glm4v(tokenizer: Any) -> Config:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3], "partial_rotary_factor": 0.5}
    return transformers.Glm4vConfig(
        text_config=_plain(rope_parameters=rope),
        vision_config=_glm_tower(),
        tie_word_embeddings=False,
        **_glm_ids(tokenizer),
    )


def _glm4v_moe(tokenizer: Any) -> Config:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3], "partial_rotary_factor": 0.5}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    return transformers.Glm4vMoeConfig(
        text_config=_text(rope_parameters=rope, **experts),
        vision_config=_glm_tower(),
        tie_word_embeddings=False,
        **_glm_ids(tokenizer),
    )


def _glm46v(tokenizer: Any) -> Config:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3], "partial_rotary_factor": 0.5}
    return transformers.Glm46VConfig(
        text_config=_plain(rope_parameters=rope) | {"model_type": "glm4v_text"},
        vision_config=_glm_tower() | {"model_type": "glm4v_vision"},
        tie_word_embeddings=False,
        **_glm_ids(tokenizer),
    )


def _pixtral_tower() -> dict[str, Any]:
    return _siglip(model_type="pixtral", image_size=112, hidden_act="gelu")


def _mistral3(tokenizer: Any) -> Config:
    return transformers.Mistral3Config(
        text_config=_text() | {"model_type": "mistral", "sliding_window": None},
        vision_config=_pixtral_tower(),
        image_token_index=_id(tokenizer, "[IMG]"),
        spatial_merge_size=2,
        tie_word_embeddings=False,
    )


def _pixtral(tokenizer: Any) -> Config:
    return transformers.LlavaConfig(
        text_config=_text() | {"model_type": "mistral", "sliding_window": None},
        vision_config=_pixtral_tower(),
        image_token_index=_id(tokenizer, "[IMG]"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=False,
    )


def _idefics_processor(make: Any) -> Callable[[], Any]:
    return lambda: make(size={"longest_edge": 112}, max_image_size={"longest_edge": 56})


IDEFICS_TILES = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
IDEFICS_TOKENS = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *IDEFICS_TILES)
PIXTRAL_TOKENS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
GLM_MARKS = ("begin_of_image", "end_of_image", "begin_of_video", "end_of_video", "image", "video")
GLM_TOKENS = tuple(f"<|{mark}|>" for mark in GLM_MARKS)
GLM_IMAGE = "<|begin_of_image|><|image|><|end_of_image|>"
GEMMA_NAMES = (("image_token", "<image_soft_token>"), ("boi_token", "<start_of_image>"))
GEMMA_NAMES += (("eoi_token", "<end_of_image>"),)
INTERNVL_NAMES = (("start_image_token", "<img>"), ("end_image_token", "</img>"))
INTERNVL_NAMES += (("context_image_token", "<IMG_CONTEXT>"), ("video_token", "<video>"))


def _tokens(names: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    return tuple(token for _, token in names)


def _glm_image_processor(make: Any = transformers.Glm4vImageProcessorPil) -> Any:
    return make(size={"shortest_edge": 56 * 56, "longest_edge": 2 * 224 * 224})


def _pixtral_image_processor(patch: int) -> Callable[[], Any]:
    return lambda: transformers.PixtralImageProcessorPil(
        size={"longest_edge": 112}, patch_size={"height": patch, "width": patch}
    )


TEXT = (
    Family("qwen2", "Qwen2, Qwen2.5", lambda _: tiny.text_config("qwen2")),
    Family("qwen3", "Qwen3", lambda _: tiny.text_config("qwen3")),
    Family("qwen3_moe", "Qwen3 MoE", _qwen3_moe),
    Family("llama3", "Llama 3", _llama3),
    Family("mistral", "Mistral (sliding window)", lambda _: tiny.text_config("mistral_window")),
    Family("gemma3_text", "Gemma 3, text", _gemma3_text),
    Family("r1_qwen", "DeepSeek-R1 distills of Qwen", lambda _: tiny.text_config("qwen2", rms_norm_eps=1e-5)),
    Family("r1_llama", "DeepSeek-R1 distills of Llama", _llama3),
)
VISION = (
    Family(
        "qwen2_vl",
        "Qwen2-VL",
        _qwen("qwen2_vl"),
        image=QWEN_IMAGE,
        image_processor=lambda: tiny.image_processor("qwen2_vl"),
    ),
    Family(
        "qwen2_5_vl",
        "Qwen2.5-VL",
        _qwen("qwen2_5_vl"),
        image=QWEN_IMAGE,
        image_processor=lambda: tiny.image_processor("qwen2_5_vl"),
    ),
    Family(
        "qwen3_vl",
        "Qwen3-VL",
        _qwen("qwen3_vl"),
        image=QWEN_IMAGE,
        image_processor=lambda: tiny.image_processor("qwen3_vl"),
    ),
    Family(
        "qwen3_vl_moe",
        "Qwen3-VL MoE",
        _qwen3_vl_moe,
        image=QWEN_IMAGE,
        image_processor=lambda: tiny.image_processor("qwen3_vl"),
    ),
    Family(
        "qwen3_5",
        "Qwen3.5",
        _qwen3_5(transformers.Qwen3_5Config),
        PADDED,
        "not plain attention",
        image=QWEN_IMAGE,
        image_processor=lambda: tiny.image_processor("qwen3_vl"),
    ),
    Family(
        "qwen3_5_moe",
        "Qwen3.5 MoE",
        _qwen3_5(
            transformers.Qwen3_5MoeConfig,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
            shared_expert_intermediate_size=64,
        ),
        PADDED,
        "not plain attention",
        image=QWEN_IMAGE,
        image_processor=lambda: tiny.image_processor("qwen3_vl"),
    ),
    Family(
        "gemma3",
        "Gemma 3",
        _gemma3,
        PADDED,
        "attend to later ones",
        image="<start_of_image>",
        tokens=_tokens(GEMMA_NAMES),
        named=GEMMA_NAMES,
        image_processor=lambda: transformers.Gemma3ImageProcessorPil(size={"height": 56, "width": 56}),
        processor={"processor_class": "Gemma3Processor", "image_seq_length": 4},
        tower="model.vision_tower.",
    ),
    Family(
        "internvl",
        "InternVL 3",
        _internvl,
        image="<IMG_CONTEXT>\n",
        tokens=_tokens(INTERNVL_NAMES),
        named=INTERNVL_NAMES,
        image_processor=lambda: transformers.GotOcr2ImageProcessorPil(
            size={"height": 56, "width": 56}, crop_to_patches=True, max_patches=4
        ),
        processor={"processor_class": "InternVLProcessor", "image_seq_length": 4},
        tower="model.vision_tower.",
    ),
    Family(
        "idefics3",
        "Idefics3",
        _idefics(transformers.Idefics3Config),
        image="<image>",
        tokens=IDEFICS_TOKENS,
        image_processor=_idefics_processor(transformers.Idefics3ImageProcessorPil),
        processor={"processor_class": "Idefics3Processor", "image_seq_len": 4},
        tower="model.vision_model.",
    ),
    Family(
        "smolvlm",
        "SmolVLM",
        _idefics(transformers.SmolVLMConfig),
        image="<image>",
        tokens=IDEFICS_TOKENS,
        image_processor=_idefics_processor(transformers.SmolVLMImageProcessorPil),
        processor={"processor_class": "SmolVLMProcessor", "image_seq_len": 4},
        tower="model.vision_model.",
    ),
    Family(
        "llava_onevision",
        "LLaVA-OneVision",
        _llava_onevision,
        image="<image>\n",
        tokens=("<image>", "<video>"),
        image_processor=lambda: transformers.LlavaOnevisionImageProcessorPil(
            size={"height": 56, "width": 56}, image_grid_pinpoints=LLAVA_GRID
        ),
        processor={
            "processor_class": "LlavaOnevisionProcessor",
            "num_image_tokens": 16,
            "vision_feature_select_strategy": "full",
        },
        tower="model.vision_tower.",
    ),
    Family(
        "llava_next",
        "LLaVA-NeXT",
        _llava_next,
        image="<image>\n",
        tokens=("<image>",),
        image_processor=lambda: transformers.LlavaNextImageProcessorPil(
            size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}, image_grid_pinpoints=LLAVA_GRID
        ),
        processor={
            "processor_class": "LlavaNextProcessor",
            "patch_size": 14,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
        tower="model.vision_tower.",
    ),
    Family(
        "glm4v",
        "GLM-4.1V",
        _glm4v,
        image=GLM_IMAGE,
        tokens=GLM_TOKENS,
        image_processor=_glm_image_processor,
        processor={"processor_class": "Glm4vProcessor"},
    ),
    Family(
        "glm4v_moe",
        "GLM-4.5V (MoE)",
        _glm4v_moe,
        image=GLM_IMAGE,
        tokens=GLM_TOKENS,
        image_processor=_glm_image_processor,
        processor={"processor_class": "Glm4vProcessor"},
    ),
    Family(
        "glm46v",
        "GLM-4.6V",
        _glm46v,
        image=GLM_IMAGE,
        tokens=GLM_TOKENS,
        image_processor=lambda: _glm_image_processor(transformers.Glm46VImageProcessorPil),
        processor={"processor_class": "Glm46VProcessor"},
    ),
    Family(
        "mistral3",
        "Mistral Small 3.1",
        _mistral3,
        image="[IMG]",
        tokens=PIXTRAL_TOKENS,
        image_processor=_pixtral_image_processor(28),
        processor={"processor_class": "PixtralProcessor", "patch_size": 14, "spatial_merge_size": 2},
        tower="model.vision_tower.",
    ),
    Family(
        "pixtral",
        "Pixtral",
        _pixtral,
        image="[IMG]",
        tokens=PIXTRAL_TOKENS,
        image_processor=_pixtral_image_processor(14),
        processor={"processor_class": "PixtralProcessor", "patch_size": 14, "spatial_merge_size": 1},
        tower="model.vision_tower.",
    ),
)
FAMILIES = {family.name: family for family in (*TEXT, *VISION)}
