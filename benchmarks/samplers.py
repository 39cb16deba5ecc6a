"""Tokens a second of both samplers on this machine, in one table: a tiny model, and any text model that is here.

    PYTHONPATH=tests/torchvision_on_cpu TORCHDYNAMO_DISABLE=1 python benchmarks/samplers.py [MODEL_FOLDER ...]

In an environment with vLLM (docs/vllm.md); OMP_NUM_THREADS=1 holds for both. Answers of 64 tokens without an end to
prompts of 96, `n` to each; runs of both are interleaved, medians of CPU seconds count, and the first run does not.
"""

import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from interleaved import medians, say

from easyr1.batch import Prompt
from easyr1.engines.protocols import Sampling
from easyr1.engines.rollout_torch import TorchRollout
from easyr1.engines.rollout_vllm import vllm_rollout
from easyr1.engines.vllm_settings import VllmSettings
from easyr1.models.build import ModelSpec, build

PROMPT, ANSWER = 96, 64
SHAPES = ((1, 1), (4, 8), (8, 8))  # prompts, answers to each


def no_pictures(handle: str) -> dict[str, np.ndarray]:
    raise AssertionError(handle)


def tiny_model(folder: Path) -> Path:
    """The quickstart's model, untrained."""
    from easyr1.examples.quickstart.model import build_model, model_config, save_files
    from easyr1.examples.quickstart.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    config = model_config(tokenizer)
    save_files(folder, tokenizer, config)
    build_model(config, 0).save_pretrained(folder)
    return folder


def measure(folder: Path, dtype: str) -> None:
    scored = build(ModelSpec(str(folder), dtype, dtype), trainable=False)
    vocabulary = scored.model.config.get_text_config().vocab_size
    settings = VllmSettings(str(folder), dtype, PROMPT + ANSWER, enforce_eager=True)
    engines = {
        "torch": TorchRollout(scored, no_pictures, frozenset()),
        "vllm": vllm_rollout(settings, scored.model.config, scored.banned.tolist(), no_pictures, ()),
    }
    random = np.random.default_rng(0)
    for count, answers in SHAPES:
        prompts = [Prompt(row, random.integers(10, vocabulary - 10, PROMPT), index=row) for row in range(count)]
        sampling = Sampling(n=answers, max_tokens=ANSWER, ignore_eos=True)
        seconds = medians({name: partial(engine.generate, prompts, sampling) for name, engine in engines.items()})
        rates = {name: count * answers * ANSWER / value for name, value in seconds.items()}
        say(f"| {folder.name} | {dtype} | {count} x {answers} | {rates['torch']:,.0f} | {rates['vllm']:,.0f} |")


def main() -> None:
    say(f"{torch.get_num_threads()} threads\n\n| model | type | prompts x n | torch, tokens/s | vLLM, tokens/s |")
    say("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        measure(tiny_model(Path(folder) / "quickstart"), "float32")
    for name in sys.argv[1:]:
        for dtype in ("float32", "bfloat16"):
            measure(Path(name), dtype)


if __name__ == "__main__":
    main()
