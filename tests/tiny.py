"""Tiny models, tokenizer, image processor and data sets, built in memory and saved like the real ones.

Every test that needs a model takes it from here. Nothing is downloaded and torchvision is not needed. All models
have hidden size 128, 2 layers, 4 query heads and 2 key-value heads of 32 dimensions, and a vocabulary of 512.
"""

import functools
import json
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
TEXT_KINDS = ("qwen2", "qwen3", "llama", "mistral_window")
VISION_KINDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
KINDS = TEXT_KINDS + VISION_KINDS

SLIDING_WINDOW = 8  # tokens, of kind mistral_window
MIN_PIXELS = 28 * 28 * 4
MAX_PIXELS = 28 * 28 * 64

CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\n' }}
{%- if message['content'] is string %}
{{- message['content'] }}
{%- else %}
{%- for item in message['content'] %}
{%- if item['type'] == 'image' %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif item['type'] == 'video' %}
{{- '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- else %}
{{- item['text'] }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

CORPUS = (
    "What is 12 + 34? The answer is \\boxed{46}.",
    "<think> 3 times 4 equals 12 </think> <answer> 12 </answer>",
    "How many red circles are in the image? There are 5 circles.",
    "system user assistant Find the length of the side x. Which digit is shown?",
    "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 solve the problem step by step",
)


@functools.cache
def tokenizer(
    vocab_size: int = 512, more: tuple[str, ...] = (), named: tuple[tuple[str, str], ...] = ()
) -> transformers.PreTrainedTokenizerFast:
    """Byte-level BPE with Qwen's special tokens; end of sequence is <|im_end|>. Shared: do not change it.

    `more` special tokens come before the fillers, `named` ones are (attribute of the tokenizer, token).

    Splitting is Qwen2Tokenizer's, which AutoTokenizer puts in for model type qwen2 whatever was saved.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    qwen = transformers.Qwen2Tokenizer().backend_tokenizer
    core = Tokenizer(models.BPE())
    core.normalizer, core.pre_tokenizer, core.decoder = qwen.normalizer, qwen.pre_tokenizer, qwen.decoder
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS) - len(more),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(CORPUS * 20, trainer)
    core.add_special_tokens([*SPECIAL_TOKENS, *more])
    core.add_tokens([f"<|filler_{number}|>" for number in range(vocab_size - core.get_vocab_size())])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
        extra_special_tokens=dict(named),
    )


def token_id(token: str) -> int:
    return tokenizer().convert_tokens_to_ids(token)


def image_processor(kind: str, **limits: int) -> transformers.Qwen2VLImageProcessorPil:
    """The processor of a vision kind: patches of 14 pixels (Qwen3-VL: 16), merged 2 by 2."""
    limits = {"min_pixels": MIN_PIXELS, "max_pixels": MAX_PIXELS} | limits
    if kind == "qwen3_vl":
        return transformers.Qwen2VLImageProcessorPil(
            patch_size=16, merge_size=2, temporal_patch_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3, **limits
        )
    return transformers.Qwen2VLImageProcessorPil(patch_size=14, merge_size=2, temporal_patch_size=2, **limits)


def text_numbers(**sizes) -> dict:
    """Keyword arguments common to every text configuration; `sizes` override them."""
    return {
        "vocab_size": len(tokenizer()),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 4096,
        "bos_token_id": token_id("<|endoftext|>"),
        "eos_token_id": token_id("<|im_end|>"),
        "pad_token_id": token_id("<|endoftext|>"),
        "tie_word_embeddings": False,
    } | sizes


def text_config(kind: str, **sizes) -> transformers.PretrainedConfig:
    numbers = text_numbers(**sizes)
    if kind == "qwen2":
        numbers.pop("head_dim")
        return transformers.Qwen2Config(**numbers)
    if kind == "qwen3":
        return transformers.Qwen3Config(**numbers)
    if kind == "llama":
        return transformers.LlamaConfig(**numbers)
    if kind == "mistral_window":
        return transformers.MistralConfig(sliding_window=SLIDING_WINDOW, **numbers)
    raise ValueError(f"no text kind {kind!r}; there are {TEXT_KINDS}")


def vision_config(kind: str, **sizes) -> transformers.PretrainedConfig:
    text = text_numbers(**sizes)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
    vision = {"depth": 2, "num_heads": 2, "spatial_merge_size": 2, "temporal_patch_size": 2}
    common = {
        "tie_word_embeddings": text["tie_word_embeddings"],
        "image_token_id": token_id("<|image_pad|>"),
        "video_token_id": token_id("<|video_pad|>"),
        "vision_start_token_id": token_id("<|vision_start|>"),
        "vision_end_token_id": token_id("<|vision_end|>"),
    }
    hidden = text["hidden_size"]
    if kind == "qwen2_vl":
        text.pop("head_dim")
        vision |= {"patch_size": 14, "embed_dim": 64, "hidden_size": hidden, "mlp_ratio": 2}
        make = transformers.Qwen2VLConfig
    elif kind == "qwen2_5_vl":
        text.pop("head_dim")
        vision |= {"patch_size": 14, "hidden_size": 64, "intermediate_size": 128, "out_hidden_size": hidden}
        vision |= {"window_size": 112, "fullatt_block_indexes": [1], "tokens_per_second": 2}
        make = transformers.Qwen2_5_VLConfig
    elif kind == "qwen3_vl":
        rope |= {"mrope_interleaved": True}
        vision |= {"patch_size": 16, "hidden_size": 64, "intermediate_size": 128, "out_hidden_size": hidden}
        vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
        make = transformers.Qwen3VLConfig
    else:
        raise ValueError(f"no vision kind {kind!r}; there are {VISION_KINDS}")
    return make(text_config=text | {"rope_parameters": rope}, vision_config=vision, **common)


def build(kind: str, seed: int = 0, **sizes) -> transformers.PreTrainedModel:
    """A float32 model of `kind` in eval mode; `sizes` override text sizes, e.g. num_hidden_layers=3.

    The random state of torch is the same after the call as before it.
    """
    config = text_config(kind, **sizes) if kind in TEXT_KINDS else vision_config(kind, **sizes)
    return from_config(config, seed, vision=kind in VISION_KINDS)


def from_config(
    config: transformers.PretrainedConfig, seed: int = 0, vision: bool = False
) -> transformers.PreTrainedModel:
    """A float32 model with random weights, in eval mode; the random state of torch stays as it was."""
    auto = transformers.AutoModelForImageTextToText if vision else transformers.AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto.from_config(config, dtype=torch.float32)
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=token_id("<|endoftext|>"),
        eos_token_id=[token_id("<|im_end|>"), token_id("<|endoftext|>")],
        pad_token_id=token_id("<|endoftext|>"),
    )
    return model.eval()


def peak(model: transformers.PreTrainedModel, factor: float = 8.0) -> transformers.PreTrainedModel:
    """Scale the text model's query and key weights up in place, so that attention is peaked.

    A freshly built tiny model attends almost evenly and is nearly blind to a wrong mask. Models that normalise
    queries and keys (Qwen3) get their norms' weights scaled instead.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "visual" in name or "vision" in name:
                continue
            if any(part in name for part in ("q_norm.", "k_norm.")):
                parameter *= factor**0.5
            elif any(part in name for part in ("q_proj.", "k_proj.")):
                parameter *= factor
    return model


def save(kind: str, folder: str | Path, seed: int = 0, **sizes) -> Path:
    """Write model, tokenizer, chat template, image processor and generation config as a hub folder has them."""
    folder = Path(folder)
    build(kind, seed, **sizes).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    if kind in VISION_KINDS:
        image_processor(kind).save_pretrained(folder)
    return folder


def picture(width: int = 56, height: int = 56, seed: int = 0, mode: str = "RGB") -> Image.Image:
    """A smooth random picture, different for each seed and not symmetric."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, size=(4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def vision_rows(num_rows: int, pictures_per_row: int = 1, seed: int = 0) -> list[dict]:
    """Rows with columns problem, answer, images (PIL) and level; the pictures' sizes differ."""
    rows = []
    for number in range(num_rows):
        pictures = [
            picture(56 + 28 * (number % 3), 56 + 28 * (place % 2), seed=1000 * seed + 10 * number + place)
            for place in range(pictures_per_row)
        ]
        problem = "<image>" * pictures_per_row + f"What is {number} + {number % 7}?"
        answer = str(number + number % 7)
        rows.append({"problem": problem, "answer": answer, "images": pictures, "level": number % 5})
    return rows


def text_rows(num_rows: int) -> list[dict]:
    """Rows with columns problem, answer and level."""
    return [
        {"problem": f"What is {number} + {number % 7}?", "answer": str(number + number % 7), "level": number % 5}
        for number in range(num_rows)
    ]


def write_rows(path: str | Path, rows: list[dict]) -> Path:
    """Write rows to path (.jsonl, .json or .parquet); PIL pictures under the column images become files or bytes.

    jsonl and json name PNG files relative to the data file; parquet holds {"bytes", "path"} records.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    encode = _picture_bytes if path.suffix == ".parquet" else functools.partial(_picture_file, path)
    rows = [_encode_pictures(row, number, encode) for number, row in enumerate(rows)]
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def _encode_pictures(row: dict, number: int, encode) -> dict:
    if not isinstance(row.get("images"), list):
        return row
    pictures = [
        encode(item, f"{number}-{place}.png") if isinstance(item, Image.Image) else item
        for place, item in enumerate(row["images"])
    ]
    return row | {"images": pictures}


def _picture_bytes(image: Image.Image, name: str) -> dict:
    import io

    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": name}


def _picture_file(path: Path, image: Image.Image, name: str) -> str:
    folder = path.parent / f"{path.stem}_images"
    folder.mkdir(exist_ok=True)
    image.save(folder / name)
    return f"{folder.name}/{name}"
