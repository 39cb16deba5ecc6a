"""EasyR1's documented command lines and YAML keep their meaning: they load, and a dry run shows their plan."""

import json
import re
import shlex
from pathlib import Path

import pytest

from easyr1.config.load import from_mapping, load
from easyr1.config.resolve import Facts, resolve
from easyr1.errors import ConfigError

HERE = Path(__file__).parent
DRY_RUN = Facts(device="cpu", num_devices=0, dry_run=True)

GEO3K = "data.train_files=hiyouga/geometry3k@train data.val_files=hiyouga/geometry3k@test "
GEOQA = "data.train_files=leonardPKU/GEOQA_8K_R1V@train data.val_files=leonardPKU/GEOQA_8K_R1V@test "
R1V = (
    "data.format_prompt=./examples/format_prompt/r1v.jinja "
    "worker.reward.reward_function=./examples/reward_function/r1v.py:compute_score "
)
BF16 = "worker.actor.fsdp.torch_dtype=bf16 worker.actor.optim.strategy=adamw_bf16 "
NO_KL = "algorithm.disable_kl=True "
LORA = "worker.actor.model.lora.rank=64 worker.actor.model.lora.alpha=64 worker.actor.optim.lr=1e-5 "


def model(name, gpus=8):
    return f"worker.actor.model.model_path={name} trainer.n_gpus_per_node={gpus} "


VL3B, VL7B = "Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct"

SCRIPTS = {
    "math_grpo": model("Qwen/Qwen2.5-7B-Instruct"),
    "qwen3_4b": model("Qwen/Qwen3-4B") + "data.max_response_length=4096",
    "qwen3_4b_lora": model("Qwen/Qwen3-4B", 1) + LORA + "worker.rollout.tensor_parallel_size=1",
    "dapo17k": model("Qwen/Qwen3-14B-Base")
    + BF16
    + NO_KL
    + "data.train_files=Saigyouji-Yuyuko1000/dapo17k@train data.val_files=Saigyouji-Yuyuko1000/dapo17k@test "
    "data.max_prompt_length=2048 data.max_response_length=20480 data.rollout_batch_size=512 "
    "data.mini_rollout_batch_size=256 worker.actor.ulysses_size=8 worker.actor.optim.weight_decay=0.1 "
    "worker.actor.optim.lr_warmup_steps=10 worker.actor.global_batch_size=32 worker.actor.clip_ratio_low=0.2 "
    "worker.actor.clip_ratio_high=0.28 worker.actor.clip_ratio_dual=10.0 worker.rollout.n=16 "
    "worker.rollout.max_num_batched_tokens=22528 worker.rollout.gpu_memory_utilization=0.8 "
    """worker.rollout.val_override_config='{"n":16,"temperature":1.0,"top_p":0.7}' """
    "worker.rollout.tensor_parallel_size=4 "
    "worker.reward.reward_function=./examples/reward_function/dapo.py:compute_score "
    """worker.reward.reward_function_kwargs='{"max_response_length":20480,"overlong_buffer_length":4096,"""
    """"overlong_penalty_factor":1.0}' algorithm.online_filtering=True algorithm.filter_key=accuracy_normalized """
    "algorithm.filter_low=0.01 algorithm.filter_high=0.99 trainer.total_epochs=10 trainer.max_try_make_batch=10",
    "vl_3b": GEO3K + model(VL3B, 2),
    "vl_7b": GEO3K + model(VL7B),
    "vl_7b_swanlab": GEO3K + model(VL7B) + "trainer.logger=['console','swanlab']",
    "vl_7b_dapo": GEO3K
    + model(VL7B)
    + NO_KL
    + "data.mini_rollout_batch_size=128 worker.actor.clip_ratio_low=0.2 worker.actor.clip_ratio_high=0.28 "
    "algorithm.online_filtering=True",
    "vl_7b_gspo": GEO3K
    + model(VL7B)
    + NO_KL
    + "worker.actor.loss_type=gspo_token worker.actor.loss_avg_mode=seq worker.actor.clip_ratio_low=3e-4 "
    "worker.actor.clip_ratio_high=4e-4",
    "vl_7b_cispo": GEO3K
    + model(VL7B)
    + "worker.actor.loss_type=cispo worker.actor.clip_ratio_low=0.0 worker.actor.clip_ratio_high=4.0",
    "vl_7b_sapo": GEO3K + model(VL7B) + NO_KL + "worker.actor.loss_type=sapo worker.actor.tau_positive=1.0",
    "vl_7b_reinforce": GEO3K
    + model(VL7B)
    + "algorithm.adv_estimator=reinforce_plus_plus algorithm.use_kl_loss=false algorithm.kl_penalty=kl "
    "algorithm.kl_coef=1.0e-3",
    "multi_image": model(VL7B) + "data.train_files=hiyouga/journeybench-multi-image-vqa@train "
    "data.val_files=hiyouga/journeybench-multi-image-vqa@test data.rollout_batch_size=256 "
    "worker.rollout.limit_images=2",
    "vl_32b": GEO3K + model("Qwen/Qwen2.5-VL-32B-Instruct") + BF16 + "worker.rollout.tensor_parallel_size=8",
    "qwen3_vl_4b": GEO3K + model("Qwen/Qwen3-VL-4B-Instruct", 2),
    "qwen3_vl_4b_lora": GEO3K + model("Qwen/Qwen3-VL-4B-Instruct", 2) + LORA,
    "qwen3_vl_30b": GEO3K + model("Qwen/Qwen3-VL-30B-A3B-Instruct") + BF16 + "worker.rollout.tensor_parallel_size=8",
    "android": model(VL3B, 2) + "data.train_files=yuehua-s/numbergame@train data.val_files=yuehua-s/numbergame@test "
    "data.max_prompt_length=3072 data.max_response_length=64 data.rollout_batch_size=32 "
    "data.filter_overlong_prompts=false worker.actor.global_batch_size=32 worker.actor.max_grad_norm=0.1 "
    "worker.actor.optim.lr=1e-5 worker.actor.optim.weight_decay=0.1 worker.actor.optim.lr_warmup_ratio=0.05 "
    "algorithm.kl_coef=0.04 worker.rollout.n=8 worker.rollout.temperature=0.9 worker.rollout.top_p=0.95 "
    "worker.rollout.tensor_parallel_size=1 worker.rollout.gpu_memory_utilization=0.75 trainer.total_epochs=3 "
    "trainer.val_freq=2",
    "clevr": model(VL3B, 2)
    + R1V
    + "data.train_files=BUAADreamer/clevr_count_70k@train data.val_files=BUAADreamer/clevr_count_70k@test "
    "worker.rollout.tensor_parallel_size=1",
    "geoqa": GEOQA + R1V + model(VL3B) + "worker.rollout.tensor_parallel_size=1 trainer.experiment_name=geoqa8k",
    "geoqa_lora": GEOQA
    + R1V
    + model(VL7B, 2)
    + """worker.actor.model.lora.rank=16 worker.actor.model.lora.target_modules=all-linear
    worker.actor.model.lora.exclude_modules=".*visual.*" worker.actor.model.freeze_vision_tower=true""",
    "geoqa_two_nodes": GEOQA + R1V + model(VL7B) + "worker.rollout.tensor_parallel_size=4 trainer.nnodes=2",
    "own_reward": "worker.reward.reward_function=./my_reward.py:compute_score worker.rollout.n=16 "
    "worker.reward.reward_function_kwargs.format_weight=0.9",
    "geometry3k_on_four_small_gpus": GEO3K
    + model(VL3B, 4)
    + R1V
    + BF16
    + """trainer.logger="['file','wandb']" data.rollout_batch_size=32 worker.actor.global_batch_size=16
    worker.actor.micro_batch_size_per_device_for_experience=1 worker.rollout.n=4 data.max_response_length=512
    data.max_pixels=524288 worker.rollout.gpu_memory_utilization=0.5 worker.rollout.tensor_parallel_size=4
    worker.actor.model.lora.rank=0 trainer.val_generations_to_log=8
    trainer.project_name="'Qwen2.5-VL-3B GRPO Reproduction with EasyR1'"
    trainer.load_checkpoint_path="runs/Qwen2.5-VL-3B GRPO/global_step_160" trainer.max_steps=195""",
}


def arguments(script):
    """The arguments as the shell hands them over."""
    return ["config=examples/config.yaml", *shlex.split(script)]


@pytest.fixture(autouse=True)
def checkout(tmp_path, monkeypatch):
    """A working directory with the files that the commands name besides the shipped configuration."""
    monkeypatch.chdir(tmp_path)
    files = {path for script in SCRIPTS.values() for path in re.findall(r"\./[\w/]+\.(?:py|jinja)", script)}
    for path in (*files, "examples/format_prompt/math.jinja", "examples/reward_function/math.py"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (tmp_path / "runs" / "Qwen2.5-VL-3B GRPO" / "global_step_160").mkdir(parents=True)


@pytest.mark.parametrize("name", SCRIPTS)
def test_documented_commands_load_and_plan(name):
    argv = arguments(SCRIPTS[name])
    config, given = load(argv)
    assert len(given) >= len(argv) - 1
    plan = resolve(config, given, DRY_RUN)
    assert plan.world_size == (config.trainer.n_gpus_per_node or 1) * config.trainer.nnodes


def test_a_command_on_a_machine_without_gpus_stops_with_the_reason():
    config, given = load(arguments(SCRIPTS["vl_7b"]))
    with pytest.raises(ConfigError, match="8 GPUs"):
        resolve(config, given, Facts(device="cpu", num_devices=0))


def test_values_survive_the_shell():
    config, _ = load(arguments(SCRIPTS["dapo17k"]))
    assert config.worker.rollout.val_override_config == {"n": 16, "temperature": 1.0, "top_p": 0.7}
    assert config.worker.reward.reward_function_kwargs == {
        "max_response_length": 20480,
        "overlong_buffer_length": 4096,
        "overlong_penalty_factor": 1.0,
    }
    config, _ = load(arguments(SCRIPTS["geometry3k_on_four_small_gpus"]))
    assert config.trainer.project_name == "Qwen2.5-VL-3B GRPO Reproduction with EasyR1"
    assert config.trainer.load_checkpoint_path == "runs/Qwen2.5-VL-3B GRPO/global_step_160"
    assert config.trainer.logger == ("file", "wandb")
    config, _ = load(arguments(SCRIPTS["vl_7b_gspo"]))
    assert (config.worker.actor.clip_ratio_low, config.worker.actor.clip_ratio_high) == (3e-4, 4e-4)


def test_switching_the_kl_off_needs_no_second_key():
    config, given = load(arguments(SCRIPTS["vl_7b_dapo"]))
    assert resolve(config, given, DRY_RUN).kl == "off"


def test_easyr1s_own_yaml_loads_and_sets_only_what_differs():
    tree = json.loads((HERE / "easyr1_defaults.json").read_text())["config.yaml"]
    config, given = from_mapping(tree)
    assert given == {"trainer.logger", "trainer.n_gpus_per_node", "worker.rollout.tensor_parallel_size"}
    assert config.trainer.logger == ("file", "wandb")


@pytest.mark.parametrize(
    ("tree", "today"),
    [
        ({"worker": {"reward": {"score_function": "./math.py:compute_score"}}}, "worker.reward.reward_function"),
        ({"trainer": {"total_episodes": 15}}, "trainer.total_epochs"),
        ({"worker": {"actor": {"ulysses_sequence_parallel_size": 1}}}, "worker.actor.ulysses_size"),
    ],
)
def test_an_old_yaml_is_told_the_new_names(tree, today):
    with pytest.raises(ConfigError, match=f"is now called {today}"):
        from_mapping(tree)
