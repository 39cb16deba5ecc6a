"""The example scripts: which there are, what they hand to the trainer, and how they are shrunk."""

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from commands import ROOT

from easyr1.config.load import load
from easyr1.config.schema import walk

FOLDER = ROOT / "easyr1/examples"
SCRIPTS = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.sh") if path.name != "overrides.sh")

# Shrinking may change these keys and no others: what is tried is the rest.
MODEL = {"worker.actor.model.model_path"}
DATA = {"data.train_files", "data.val_files"}
SIZES = {
    "data.max_prompt_length",
    "data.max_response_length",
    "data.rollout_batch_size",
    "data.mini_rollout_batch_size",
    "data.min_pixels",
    "data.max_pixels",
    "worker.actor.global_batch_size",
    "worker.critic.global_batch_size",
    "worker.reward.reward_function_kwargs",  # dapo's holds the longest answer
}
STEPS = {"trainer.max_steps", "trainer.critic_warmup"}
DEVICES = {
    "trainer.n_gpus_per_node",
    "trainer.device",
    "worker.rollout.tensor_parallel_size",
    "worker.actor.ulysses_size",
}
MAY_SHRINK = MODEL | DATA | SIZES | STEPS | DEVICES


def handed_over(script: str, *more: str, tmp: Path, **environment: str) -> list[str]:
    """What `bash script more...` hands to `easyr1 train`, without running anything."""
    told = tmp / "told"
    stub = tmp / "bin/python3"
    stub.parent.mkdir(exist_ok=True)
    stub.write_text(f"#!/bin/sh\nprintf '%s\\0' \"$@\" > '{told}'\n")
    stub.chmod(0o755)
    path = f"{stub.parent}{os.pathsep}{os.environ['PATH']}"
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    subprocess.run(
        ["bash", str(FOLDER / script), *more], cwd=tmp, env=clean | {"PATH": path} | environment, check=True
    )
    module, *arguments = told.read_text().split("\0")[1:-1]
    assert (module, arguments[0]) == ("easyr1.cli.main", "train")
    return arguments[1:]


@cache
def settings(arguments: tuple[str, ...]) -> dict[str, Any]:
    """Every dotted key with its value."""
    return {key: value for key, _, value in walk(load(arguments)[0])}


def differing(these: list[str], those: list[str]) -> dict[str, Any]:
    """The keys whose values differ between two command lines, with those of the first."""
    there = settings(tuple(those))
    return {key: value for key, value in settings(tuple(these)).items() if value != there[key]}


def model_kind(script: str) -> str:
    """Name of the family of a script's model, as in tests/families.py and tests/tiny.py."""
    for start, kind in KINDS.items():
        if Path(script).name.startswith(start):
            return kind
    raise ValueError(script)


KINDS = {
    "qwen2_5_vl": "qwen2_5_vl",
    "qwen3_vl_30b": "qwen3_vl_moe",
    "qwen3_vl": "qwen3_vl",
    "qwen2_5_7b": "qwen2",
    "qwen3": "qwen3",
    "smollm2": "llama",
}
VARIABLES = {
    "MODEL_PATH": "worker.actor.model.model_path",
    "N_GPUS": "trainer.n_gpus_per_node",
    "ROLLOUT_BATCH_SIZE": "data.rollout_batch_size",
    "GLOBAL_BATCH_SIZE": "worker.actor.global_batch_size",
    "MICRO_BATCH_SIZE_UPDATE": "worker.actor.micro_batch_size_per_device_for_update",
    "MICRO_BATCH_SIZE_EXPERIENCE": "worker.actor.micro_batch_size_per_device_for_experience",
    "ROLLOUT_N": "worker.rollout.n",
    "MAX_PROMPT_LENGTH": "data.max_prompt_length",
    "MAX_RESPONSE_LENGTH": "data.max_response_length",
    "MAX_PIXELS": "data.max_pixels",
    "GPU_MEMORY_UTILIZATION": "worker.rollout.gpu_memory_utilization",
    "LEARNING_RATE": "worker.actor.optim.lr",
    "KL_COEF": "algorithm.kl_coef",
    "LORA_RANK": "worker.actor.model.lora.rank",
    "TOTAL_EPOCHS": "trainer.total_epochs",
    "VAL_FREQ": "trainer.val_freq",
    "SAVE_FREQ": "trainer.save_freq",
    "EXPERIMENT_NAME": "trainer.experiment_name",
    "LOGGER": "trainer.logger",
}
