"""The command with which a published reproduction went on from its checkpoint, whole: variables, script, arguments."""

import json
import os
import subprocess
import sys

import pytest
import runs
import speakers
import tiny
from commands import ROOT
from example_scripts import VARIABLES, handed_over

PROJECT = "Qwen2.5-VL-3B GRPO Reproduction with EasyR1"
EXPERIMENT = "qwen2_5_vl_3b_geo_grpo_3090_full"
COMMAND = r"""
export WANDB_ENTITY=someone
export WANDB_RUN_ID=abc123
export WANDB_RESUME="must"
RUN_DIR="$PWD/checkpoints/Qwen2.5-VL-3B GRPO Reproduction with EasyR1/qwen2_5_vl_3b_geo_grpo_3090_full"
CKPT="$RUN_DIR/global_step_160"
MODEL_DIR="$PWD/models/Qwen2.5-VL-3B-Instruct"
WANDB_PROJECT_NAME="Qwen2.5-VL-3B GRPO Reproduction with EasyR1"
CUDA_VISIBLE_DEVICES=0,1,2,3 \
MODEL_PATH="$MODEL_DIR" \
N_GPUS=4 \
ROLLOUT_BATCH_SIZE=32 \
GLOBAL_BATCH_SIZE=16 \
MICRO_BATCH_SIZE_UPDATE=1 \
MICRO_BATCH_SIZE_EXPERIENCE=1 \
ROLLOUT_N=4 \
MAX_PROMPT_LENGTH=2048 \
MAX_RESPONSE_LENGTH=512 \
MAX_PIXELS=524288 \
GPU_MEMORY_UTILIZATION=0.5 \
LEARNING_RATE=1e-6 \
KL_COEF=1e-2 \
LORA_RANK=0 \
TOTAL_EPOCHS=15 \
VAL_FREQ=5 \
SAVE_FREQ=5 \
EXPERIMENT_NAME=qwen2_5_vl_3b_geo_grpo_3090_full \
LOGGER="['file','wandb']" \
bash examples/qwen2_5_vl_3b_geo3k_grpo.sh \
    trainer.project_name="'$WANDB_PROJECT_NAME'" \
    trainer.load_checkpoint_path="$CKPT" \
    trainer.max_steps=195
"""
# The same command with small numbers: sizes, steps and devices; where data and model lie is told at its end.
SHRUNK = {
    "global_step_160": "global_step_1",
    "max_steps=195": "max_steps=2",
    "N_GPUS=4": "N_GPUS=1",
    "ROLLOUT_BATCH_SIZE=32": "ROLLOUT_BATCH_SIZE=4",
    "\nGLOBAL_BATCH_SIZE=16": "\nGLOBAL_BATCH_SIZE=2",
    "MAX_PROMPT_LENGTH=2048": "MAX_PROMPT_LENGTH=400",
    "MAX_RESPONSE_LENGTH=512": "MAX_RESPONSE_LENGTH=12",
    "MAX_PIXELS=524288": f"MAX_PIXELS={tiny.MAX_PIXELS}",
}


def shrunk(command: str) -> str:
    for large, small in SHRUNK.items():
        assert large in command
        command = command.replace(large, small)
    return command


def assigned(command: str) -> dict[str, str]:
    """The variables that the command sets for the script."""
    pairs = (line.rstrip("\\ ").split("=", 1) for line in command.splitlines() if "=" in line and line[0].isupper())
    return {name: value.strip('"') for name, value in pairs if name in VARIABLES}


@pytest.mark.slow
def test_a_run_goes_on_in_its_folder_and_in_its_wandb_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "easyr1/examples")
    model = speakers.save("qwen2_5_vl", tmp_path / "models/Qwen2.5-VL-3B-Instruct")
    rows = tiny.write_rows(tmp_path / "rows.parquet", [row | {"answer": "1"} for row in tiny.vision_rows(8)])
    command = shrunk(COMMAND)
    here = [f"data.train_files={rows}", f"data.val_files={rows}", f"data.min_pixels={tiny.MIN_PIXELS}"]
    first = assigned(command) | {"MODEL_PATH": str(model), "LOGGER": "file"}
    before = handed_over("qwen2_5_vl_3b_geo3k_grpo.sh", *here, tmp=tmp_path, **first)
    runs.run([*before, f"trainer.project_name={PROJECT}", "trainer.max_steps=1", "trainer.device=cpu"])
    folder = tmp_path / "checkpoints" / PROJECT / EXPERIMENT
    first_rows = runs.rows(folder)

    python = tmp_path / "bin/python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    environment = {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", "-ec", " ".join([command.rstrip(), *here, "trainer.device=cpu"])],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert runs.rows(folder)[: len(first_rows)] == first_rows
    assert sorted(runs.steps(folder)) == [0, 1, 2]
    config = json.loads((folder / "config.json").read_text())["config"]
    assert config["trainer"]["total_epochs"] == 15 and config["worker"]["rollout"]["n"] == 4
    assert next(tmp_path.glob("wandb/offline-run-*")).name.endswith("-abc123")


def test_the_command_as_it_was_typed(tmp_path):
    """All it sets, in real sizes, reaches the trainer."""
    values = assigned(COMMAND)
    assert values.keys() == VARIABLES.keys()
    arguments = handed_over("qwen2_5_vl_3b_geo3k_grpo.sh", tmp=tmp_path, **values)
    assert len(arguments) - len(handed_over("qwen2_5_vl_3b_geo3k_grpo.sh", tmp=tmp_path)) == len(VARIABLES)
