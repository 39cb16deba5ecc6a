"""The tiny model: a Qwen2.5-VL of 1.5 million parameters, with all that a model folder of the hub holds.

Everything that trains or serves a large Qwen2.5-VL takes it: heads are 32 wide and four, which vLLM on a CPU and
sequence parallelism over four ranks need.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)

from easyr1.examples.quickstart.tokenizer import END_OF_TEXT, END_OF_TURN, IMAGE, VIDEO, VISION_END, VISION_START

PATCH_SIZE, MERGE_SIZE = 14, 2
TOKEN_SIDE = PATCH_SIZE * MERGE_SIZE  # pixels
# Weights this large let a small model learn to see within a hundred steps; with the usual 0.02 it stays blind as long.
INITIALIZER_RANGE = 0.08

TEXT_SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
VISION_SIZES: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_heads": 4,
    "out_hidden_size": TEXT_SIZES["hidden_size"],
    "patch_size": PATCH_SIZE,
    "spatial_merge_size": MERGE_SIZE,
    "window_size": 4 * TOKEN_SIDE,
    "fullatt_block_indexes": [1],
}
HEAD_SECTIONS = [4, 6, 6]  # halves of the 32 dimensions of a head that turn with time, height and width


def model_config(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLConfig:
    """Sizes, and the ids that this tokenizer gives to the tokens that the model must know."""
    ids = tokenizer.get_vocab()
    width: dict[str, Any] = {"initializer_range": INITIALIZER_RANGE}
    text: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": HEAD_SECTIONS},
        "bos_token_id": ids[END_OF_TEXT],
        "eos_token_id": ids[END_OF_TURN],
        "pad_token_id": ids[END_OF_TEXT],
    }
    whole: dict[str, Any] = {
        "image_token_id": ids[IMAGE],
        "video_token_id": ids[VIDEO],
        "vision_start_token_id": ids[VISION_START],
        "vision_end_token_id": ids[VISION_END],
        "tie_word_embeddings": False,
    }
    return Qwen2_5_VLConfig(
        text_config=TEXT_SIZES | text | width, vision_config=VISION_SIZES | width, **whole, **width
    )


def build_model(config: Qwen2_5_VLConfig, seed: int) -> Qwen2_5_VLForConditionalGeneration:
    """The untrained model in float32. Leaves torch's own random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(config)
    text: Any = config.get_text_config()
    model.generation_config = GenerationConfig(
        bos_token_id=text.bos_token_id, eos_token_id=text.eos_token_id, pad_token_id=text.pad_token_id
    )
    return model


def image_processor() -> Qwen2VLImageProcessorPil:
    """Qwen2.5-VL's processor, with budgets that fit small pictures: 4 to 64 tokens, unless a run sets others."""
    return Qwen2VLImageProcessorPil(
        patch_size=PATCH_SIZE,
        merge_size=MERGE_SIZE,
        temporal_patch_size=2,
        min_pixels=4 * TOKEN_SIDE**2,
        max_pixels=64 * TOKEN_SIDE**2,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )


def save_files(folder: Path, tokenizer: PreTrainedTokenizerFast, config: Qwen2_5_VLConfig) -> None:
    """All files of a model folder but the weights, which the model itself saves."""
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    image_processor().save_pretrained(folder)
