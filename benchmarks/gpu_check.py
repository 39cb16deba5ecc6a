"""For the day there is a GPU: what tests on a CPU cannot show. Ends with status 1 and says what is wrong.

    python benchmarks/gpu_check.py MODEL [FOLDER]

MODEL is a Qwen2.5-VL or Qwen3-VL of the hub or a folder with one; a few minutes for one of 3 billion parameters.
1. varlen attention on the GPU says of packed rows what the padded layout says.
2. vLLM's log-probs are the trainer's before and after its weights are changed and handed over, asleep in between.
3. Twenty steps of the quickstart with vLLM, memory shared by sleeping: the probe after each, reward up.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from easyr1.batch import Group, Prompt, Sample
from easyr1.engines.pack import Budget
from easyr1.engines.protocols import Sampling
from easyr1.engines.rollout_vllm import vllm_rollout
from easyr1.engines.train import TorchTrain
from easyr1.engines.vllm_settings import VllmSettings
from easyr1.models.build import ModelSpec, build, load_model_config, stop_ids

DTYPE, ALLOWED = "bfloat16", 0.15


def groups_of_text(vocabulary: int) -> list[Group]:
    """Ragged prompts without answers yet."""
    random = np.random.default_rng(0)
    return [
        Group(Prompt(row, random.integers(10, min(vocabulary, 1000), 40 + 9 * row), index=row), []) for row in range(4)
    ]


def gap(left: list[list[np.ndarray]], right: list[list[np.ndarray]]) -> float:
    """The mean difference of a token's log-prob."""
    pairs = [(a, b) for one, other in zip(left, right, strict=True) for a, b in zip(one, other, strict=True)]
    return float(np.concatenate([np.abs(a - b) for a, b in pairs]).mean())


def attention_and_weights(model: str, device: str, dtype: str) -> dict[str, float]:
    """Mean differences: packed against padded, sampler against trainer before and after an update."""
    spec = ModelSpec(model, param_dtype=dtype, compute_dtype=dtype, device=device)
    config = load_model_config(spec)
    scored = build(spec)
    assert scored.packed, "the model does not take the packed layout"
    settings = VllmSettings(
        model, dtype, 512, device=device, gpu_memory_utilization=0.4, enforce_eager=device == "cpu"
    )
    sampler = vllm_rollout(settings, config, scored.banned.tolist(), no_pictures, stop_ids(spec, config))
    groups = groups_of_text(config.get_text_config().vocab_size)
    trainer = TorchTrain(scored, no_pictures, 1.0, Budget(tokens=4096))
    found = {}
    for name in ("before", "after"):
        answers = sampler.generate([group.prompt for group in groups], Sampling(n=4, max_tokens=64))
        for group, own in zip(groups, answers, strict=True):
            group.samples = [Sample(answer) for answer in own]
        found[f"sampler and trainer {name} an update"] = gap(
            [[one.completion.log_probs for one in group.samples] for group in groups], trainer.score(groups)
        )
        sampler.rest()
        if name == "before":
            with torch.no_grad():
                for weight in scored.parameters():
                    weight.add_(torch.randn_like(weight), alpha=0.02 * float(weight.std()))
            sampler.load(trainer.weights(), 1)
    packed = trainer.score(groups)
    other = build(replace(spec, packed=False))
    padded = TorchTrain(other, no_pictures, 1.0, Budget(samples=4))
    with torch.no_grad():
        for weight, moved in zip(padded.scored.parameters(), scored.parameters(), strict=True):
            weight.copy_(moved)
    found["packed and padded"] = gap(packed, padded.score(groups))
    return found


def no_pictures(handle: str) -> dict[str, np.ndarray]:
    raise AssertionError(handle)


def twenty_steps(folder: Path) -> tuple[float, float]:
    """The reward of the first and the last five of twenty steps."""
    from easyr1.cli.quickstart import main

    settings = (
        "worker.rollout.name=vllm",
        "worker.rollout.probe_freq=1",
        "trainer.device=cuda",
        "trainer.max_steps=20",
    )
    main([*settings, f"trainer.save_checkpoint_path={folder}"])
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rewards = [row["reward/overall"] for row in rows if "reward/overall" in row]
    return sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5


def main() -> int:
    model, folder = sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else "gpu_check").absolute()
    wrong = 0
    say: Callable[[str], object] = sys.stdout.write
    for name, value in attention_and_weights(model, "cuda", DTYPE).items():
        wrong += value > ALLOWED
        say(f"{verdict(value <= ALLOWED)}: {name} part by {value:.2g} on average, {ALLOWED} is allowed\n")
    first, last = twenty_steps(folder)
    wrong += last <= first
    say(f"{verdict(last > first)}: reward {first:.3f} in the first five steps, {last:.3f} in the last five\n")
    return int(wrong > 0)


def verdict(right: bool) -> str:
    return "right" if right else "WRONG"


if __name__ == "__main__":
    sys.exit(main())
