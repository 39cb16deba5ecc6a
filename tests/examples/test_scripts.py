"""Every example script hands valid settings over, those that it is known for, and takes others from outside."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT
from example_scripts import SCRIPTS, VARIABLES, differing, handed_over, settings
from rich.console import Console

from easyr1.cli.train import dry_run
from easyr1.config.load import load
from easyr1.errors import ConfigError
from easyr1.examples import videos
from easyr1.examples.arithmetic.rows import write_rows

SHIPPED = ["config=examples/config.yaml"]
BF16 = {"worker.actor.fsdp.torch_dtype": "bf16", "worker.actor.optim.strategy": "adamw_bf16"}
NO_KL = {"algorithm.disable_kl": True}
R1V = {
    "data.format_prompt": "./examples/format_prompt/r1v.jinja",
    "worker.reward.reward_function": "./examples/reward_function/r1v.py:compute_score",
}
IN_REWARD = {"algorithm.use_kl_loss": False, "algorithm.kl_penalty": "kl", "algorithm.kl_coef": 1e-3}
LORA64 = {"worker.actor.model.lora.rank": 64, "worker.actor.optim.lr": 1e-5}


def split(name: str) -> dict[str, str]:
    return {"data.train_files": f"{name}@train", "data.val_files": f"{name}@test"}


def model(name: str, gpus: int) -> dict[str, object]:
    return {"worker.actor.model.model_path": f"Qwen/{name}", "trainer.n_gpus_per_node": gpus}


GEO = split("hiyouga/geometry3k")
VL3, VL7 = "Qwen2.5-VL-3B-Instruct", "Qwen2.5-VL-7B-Instruct"
# All that a script of the original changes in the shipped configuration, but for its name.
KNOWN = {
    "qwen2_5_7b_math_grpo.sh": {"trainer.n_gpus_per_node": 8, "worker.rollout.tensor_parallel_size": 2},
    "qwen3_4b_math_grpo.sh": model("Qwen3-4B", 8) | {"data.max_response_length": 4096},
    "qwen3_4b_math_grpo_lora.sh": model("Qwen3-4B", 1) | LORA64,
    "qwen3_14b_dapo17k_dapo.sh": {
        **model("Qwen3-14B-Base", 8),
        **split("Saigyouji-Yuyuko1000/dapo17k"),
        **BF16,
        **NO_KL,
        "data.format_prompt": "./examples/format_prompt/dapo.jinja",
        "data.max_response_length": 20480,
        "data.mini_rollout_batch_size": 256,
        "worker.actor.ulysses_size": 8,
        "worker.actor.optim.weight_decay": 0.1,
        "worker.actor.optim.lr_warmup_steps": 10,
        "worker.actor.global_batch_size": 32,
        "worker.actor.clip_ratio_high": 0.28,
        "worker.actor.clip_ratio_dual": 10.0,
        "worker.rollout.n": 16,
        "worker.rollout.max_num_batched_tokens": 22528,
        "worker.rollout.val_override_config": {"n": 16, "temperature": 1.0, "top_p": 0.7},
        "worker.rollout.gpu_memory_utilization": 0.8,
        "worker.rollout.tensor_parallel_size": 4,
        "worker.reward.reward_function": "./examples/reward_function/dapo.py:compute_score",
        "worker.reward.reward_function_kwargs": {
            "max_response_length": 20480,
            "overlong_buffer_length": 4096,
            "overlong_penalty_factor": 1.0,
        },
        "algorithm.online_filtering": True,
        "algorithm.filter_key": "accuracy_normalized",
        "trainer.total_epochs": 10,
        "trainer.max_try_make_batch": 10,
    },
    "qwen2_5_vl_3b_geo3k_grpo.sh": GEO | model(VL3, 2),
    "qwen2_5_vl_7b_geo3k_grpo.sh": GEO | model(VL7, 8),
    "qwen2_5_vl_7b_geo3k_swanlab.sh": GEO | model(VL7, 8) | {"trainer.logger": ("console", "swanlab")},
    "qwen2_5_vl_7b_geo3k_dapo.sh": GEO
    | model(VL7, 8)
    | NO_KL
    | {
        "data.mini_rollout_batch_size": 128,
        "worker.actor.clip_ratio_high": 0.28,
        "algorithm.online_filtering": True,
    },
    "qwen2_5_vl_7b_geo3k_gspo.sh": GEO
    | model(VL7, 8)
    | NO_KL
    | {
        "worker.actor.loss_type": "gspo_token",
        "worker.actor.loss_avg_mode": "seq",
        "worker.actor.clip_ratio_low": 3e-4,
        "worker.actor.clip_ratio_high": 4e-4,
    },
    "qwen2_5_vl_7b_geo3k_cispo.sh": GEO
    | model(VL7, 8)
    | {"worker.actor.loss_type": "cispo", "worker.actor.clip_ratio_low": 0.0, "worker.actor.clip_ratio_high": 4.0},
    "qwen2_5_vl_7b_geo3k_sapo.sh": GEO | model(VL7, 8) | NO_KL | {"worker.actor.loss_type": "sapo"},
    "qwen2_5_vl_7b_geo3k_reinforce.sh": GEO
    | model(VL7, 8)
    | IN_REWARD
    | {"algorithm.adv_estimator": "reinforce_plus_plus"},
    "qwen2_5_vl_7b_multi_image.sh": model(VL7, 8)
    | split("hiyouga/journeybench-multi-image-vqa")
    | {"data.rollout_batch_size": 256, "worker.rollout.limit_images": 2},
    "qwen2_5_vl_32b_geo3k_grpo.sh": GEO
    | model("Qwen2.5-VL-32B-Instruct", 8)
    | BF16
    | {"worker.rollout.tensor_parallel_size": 8},
    "qwen3_vl_4b_geo3k_grpo.sh": GEO | model("Qwen3-VL-4B-Instruct", 2),
    "qwen3_vl_4b_geo3k_grpo_lora.sh": GEO | model("Qwen3-VL-4B-Instruct", 2) | LORA64,
    "qwen3_vl_30b_geo3k_grpo.sh": GEO
    | model("Qwen3-VL-30B-A3B-Instruct", 8)
    | BF16
    | {"worker.rollout.tensor_parallel_size": 8},
    "qwen2_5_vl_3b_android_gui_grpo.sh": model(VL3, 2)
    | split("yuehua-s/numbergame")
    | {
        "data.format_prompt": "./examples/format_prompt/android_gui.jinja",
        "data.max_prompt_length": 3072,
        "data.max_response_length": 64,
        "data.rollout_batch_size": 32,
        "data.filter_overlong_prompts": False,
        "worker.actor.global_batch_size": 32,
        "worker.actor.max_grad_norm": 0.1,
        "worker.actor.optim.lr": 1e-5,
        "worker.actor.optim.weight_decay": 0.1,
        "worker.actor.optim.lr_warmup_ratio": 0.05,
        "worker.rollout.n": 8,
        "worker.rollout.temperature": 0.9,
        "worker.rollout.top_p": 0.95,
        "worker.rollout.gpu_memory_utilization": 0.75,
        "worker.reward.reward_function": "./examples/reward_function/android_gui.py:compute_score",
        "algorithm.kl_coef": 0.04,
        "trainer.total_epochs": 3,
        "trainer.val_freq": 2,
    },
    "baselines/qwen2_5_vl_3b_clevr.sh": model(VL3, 2) | split("BUAADreamer/clevr_count_70k") | R1V,
    "baselines/qwen2_5_vl_3b_geoqa8k.sh": model(VL3, 8) | split("leonardPKU/GEOQA_8K_R1V") | R1V,
}
OUR_OWN = {"remax", "rloo", "gae", "video", "lora", "smollm2"}  # words in the names of those beside them
VALUES = {
    "MODEL_PATH": ("/data/my models/VL-3B", "/data/my models/VL-3B"),
    "N_GPUS": ("4", 4),
    "ROLLOUT_BATCH_SIZE": ("32", 32),
    "GLOBAL_BATCH_SIZE": ("16", 16),
    "MICRO_BATCH_SIZE_UPDATE": ("3", 3),
    "MICRO_BATCH_SIZE_EXPERIENCE": ("5", 5),
    "ROLLOUT_N": ("7", 7),
    "MAX_PROMPT_LENGTH": ("1000", 1000),
    "MAX_RESPONSE_LENGTH": ("512", 512),
    "MAX_PIXELS": ("524288", 524288),
    "GPU_MEMORY_UTILIZATION": ("0.5", 0.5),
    "LEARNING_RATE": ("2e-6", 2e-6),
    "KL_COEF": ("2e-2", 0.02),
    "LORA_RANK": ("8", 8),
    "TOTAL_EPOCHS": ("2", 2),
    "VAL_FREQ": ("11", 11),
    "SAVE_FREQ": ("13", 13),
    "EXPERIMENT_NAME": ("another name", "another name"),
    "LOGGER": ('["console","wandb"]', ("console", "wandb")),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working directory with the rows that two of the scripts write first."""
    folder = tmp_path_factory.mktemp("elsewhere")
    write_rows(folder / "arithmetic")
    videos.write_videos(folder / "videos", {"train": 1, "val": 1})
    return folder


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_dry_run_of_each_script(script, folder, monkeypatch):
    monkeypatch.chdir(folder)
    arguments = handed_over(script, tmp=folder)
    config, given = load(arguments)
    assert dry_run(config, given, Console(quiet=True)) == 0
    assert config.trainer.experiment_name == Path(script).stem


@pytest.mark.parametrize("script", KNOWN)
def test_settings_of_the_original(script, folder):
    changed = differing(handed_over(script, tmp=folder), SHIPPED)
    changed.pop("trainer.experiment_name", None)
    assert changed == KNOWN[script]


def test_no_script_is_left_out_of_these_tests():
    ours = [script for script in SCRIPTS if script not in KNOWN]
    assert set(KNOWN) <= set(SCRIPTS)
    assert {word for word in OUR_OWN if any(word in script for script in ours)} == OUR_OWN
    assert all(any(word in script for word in OUR_OWN) for script in ours)


@pytest.mark.parametrize("script", SCRIPTS)
def test_variables_win_over_the_script_and_arguments_over_both(script, folder):
    set_there = {name: text for name, (text, _) in VALUES.items()}
    found = settings(tuple(handed_over(script, tmp=folder, **set_there)))
    assert {name: found[VARIABLES[name]] for name in VALUES} == {name: value for name, (_, value) in VALUES.items()}
    last = handed_over(script, "worker.rollout.n=9", "data.seed=3", tmp=folder, **set_there)
    assert last[-2:] == ["worker.rollout.n=9", "data.seed=3"]
    assert settings(tuple(last))["worker.rollout.n"] == 9


def test_an_empty_variable_changes_nothing(folder):
    empty = dict.fromkeys(VALUES, "")
    script = "qwen2_5_vl_3b_geo3k_grpo.sh"
    assert handed_over(script, tmp=folder, **empty) == handed_over(script, tmp=folder)


@pytest.mark.parametrize("name", ["run #3: it's", "a: b", "[x]", "null", "007"])
def test_names_are_taken_as_they_are(folder, name):
    arguments = handed_over(
        "qwen2_5_vl_3b_geo3k_grpo.sh", tmp=folder, EXPERIMENT_NAME=name, MODEL_PATH=f"/data/{name}"
    )
    found = settings(tuple(arguments))
    assert (found["trainer.experiment_name"], found["worker.actor.model.model_path"]) == (name, f"/data/{name}")


@pytest.mark.parametrize("text", ["console,wandb", "['console','wandb']", "[console, wandb]", " ['console', wandb] "])
def test_trackers_in_each_notation(folder, text):
    arguments = handed_over("qwen2_5_vl_3b_geo3k_grpo.sh", tmp=folder, LOGGER=text)
    assert settings(tuple(arguments))["trainer.logger"] == ("console", "wandb")


@pytest.mark.parametrize("name", [name for name in VALUES if name not in ("MODEL_PATH", "EXPERIMENT_NAME", "LOGGER")])
def test_a_wrong_value_is_told_with_the_key(folder, name):
    arguments = handed_over("qwen2_5_vl_3b_geo3k_grpo.sh", tmp=folder, **{name: "many"})
    with pytest.raises(ConfigError, match=VARIABLES[name]):
        load(arguments)


def test_what_depends_on_a_variable_follows_it(folder):
    arguments = handed_over("qwen3_14b_dapo17k_dapo.sh", tmp=folder, MAX_RESPONSE_LENGTH="9000")
    assert settings(tuple(arguments))["worker.reward.reward_function_kwargs"]["max_response_length"] == 9000
    arguments = handed_over("qwen2_5_vl_7b_geo3k_gae.sh", tmp=folder, GLOBAL_BATCH_SIZE="64")
    assert settings(tuple(arguments))["worker.critic.global_batch_size"] == 64


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder_of_call", "script"),
    [
        (ROOT, "examples/baselines/qwen2_5_vl_3b_geoqa8k.sh"),
        ("elsewhere", str(ROOT / "examples/smollm2_135m_arithmetic_grpo.sh")),
    ],
)
def test_a_whole_command(tmp_path, folder_of_call, script):
    (tmp_path / "elsewhere").mkdir()
    python = tmp_path / "bin/python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    environment = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", script, "--dry-run", "trainer.total_epochs=4"],
        cwd=tmp_path / folder_of_call,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "nothing was written" in done.stderr


def test_the_page_of_examples_lists_every_script_and_variable():
    page = (ROOT / "docs/examples.md").read_text()
    assert [script for script in SCRIPTS if page.count(f"\n| `{script}` |") != 1] == []
    assert [name for name, key in VARIABLES.items() if f"| `{name}` | `{key}`" not in page] == []
