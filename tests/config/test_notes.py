"""Notes at the start: keys without effect, and choices with a catch."""

from pathlib import Path

import pytest

from easyr1.config.effects import RULES
from easyr1.config.load import load
from easyr1.config.resolve import Facts, resolve
from easyr1.config.schema import known_keys

ROOT = Path(__file__).parents[2]
FILES = ["data.format_prompt=null", f"worker.reward.reward_function={Path(__file__)}:score"]
CPU = Facts(device="cpu", num_devices=0)
APART = ["worker.hybrid_engine=false", "worker.rollout.n_gpus=1"]
TWO = ["trainer.device=cpu", "trainer.n_gpus_per_node=2"]  # ranks


def notes_of(*argv, facts=CPU):
    config, given = load([*FILES, *argv])
    return resolve(config, given, facts).notes


@pytest.mark.parametrize(
    ("argv", "key"),
    [
        (["algorithm.disable_kl=true", "algorithm.kl_coef=0.1"], "algorithm.kl_coef"),
        (["algorithm.disable_kl=true", "worker.ref.fsdp.torch_dtype=fp32"], "worker.ref.fsdp.torch_dtype"),
        (["algorithm.kl_horizon=100"], "algorithm.kl_horizon"),
        (["algorithm.filter_key=accuracy"], "algorithm.filter_key"),
        (["data.mini_rollout_batch_size=64"], "data.mini_rollout_batch_size"),
        (["algorithm.gamma=0.9"], "algorithm.gamma"),
        (["algorithm.lam=0.9"], "algorithm.lam"),
        (["worker.actor.tau_positive=2"], "worker.actor.tau_positive"),
        (["worker.actor.loss_type=cispo", "worker.actor.clip_ratio_low=0"], "worker.actor.clip_ratio_low"),
        (["worker.actor.loss_type=sapo", "worker.actor.clip_ratio_high=0.3"], "worker.actor.clip_ratio_high"),
        (["worker.actor.loss_type=gmpo", "worker.actor.clip_ratio_dual=4"], "worker.actor.clip_ratio_dual"),
        (["worker.actor.use_torch_compile=true"], "worker.actor.use_torch_compile"),
        (
            ["worker.actor.optim.lr_warmup_ratio=0.1", "worker.actor.optim.lr_warmup_steps=3"],
            "worker.actor.optim.lr_warmup_ratio",
        ),
        (["worker.actor.optim.min_lr_ratio=0.1"], "worker.actor.optim.min_lr_ratio"),
        (["worker.actor.optim.strategy=adamw_bf16"], "worker.actor.optim.strategy"),
        (["worker.critic.optim.strategy=adamw_bf16"], "worker.critic.optim.strategy"),
        (
            ["worker.actor.fsdp.torch_dtype=bf16", "worker.actor.optim.weight_decay=0.1"],
            "worker.actor.optim.weight_decay",
        ),
        (["worker.actor.model.lora.alpha=16"], "worker.actor.model.lora.alpha"),
        (["worker.actor.model.lora.rank=4", "worker.ref.fsdp.torch_dtype=fp32"], "worker.ref.fsdp.torch_dtype"),
        (["trainer.total_epochs=3", "trainer.max_steps=7"], "trainer.total_epochs"),
        (
            ["trainer.find_last_checkpoint=false", "trainer.load_checkpoint_path={tmp_path}/global_step_3"],
            "trainer.find_last_checkpoint",
        ),
        (["trainer.ray_timeline=calls.json"], "trainer.ray_timeline"),
        (
            ["data.filter_overlong_prompts=false", "data.filter_overlong_prompts_workers=2"],
            "data.filter_overlong_prompts_workers",
        ),
        (["data.shuffle=false", "data.seed=3"], "data.seed"),
        (["worker.rollout.gpu_memory_utilization=0.5"], "worker.rollout.gpu_memory_utilization"),
        (["worker.rollout.tensor_parallel_size=1"], "worker.rollout.tensor_parallel_size"),
        (["worker.rollout.dtype=bf16"], "worker.rollout.dtype"),
        (["worker.actor.offload.offload_params=true"], "worker.actor.offload.offload_params"),
        (["worker.rollout.n_gpus=1"], "worker.rollout.n_gpus"),
        ([*APART, "worker.actor.offload.offload_params=true"], "worker.actor.offload.offload_params"),
        (["worker.actor.fsdp.fsdp_size=1"], "worker.actor.fsdp.fsdp_size"),
        (["worker.critic.fsdp.mp_buffer_dtype=bf16"], "worker.critic.fsdp.mp_buffer_dtype"),
        (["worker.actor.fsdp.mp_buffer_dtype=bf16", *TWO], "worker.actor.fsdp.mp_buffer_dtype"),
    ],
)
def test_keys_without_effect_are_reported(argv, key, tmp_path):
    (tmp_path / "global_step_3").mkdir()
    argv = [argument.replace("{tmp_path}", str(tmp_path)) for argument in argv]
    assert [note for note in notes_of(*argv) if note.startswith(f"{key} has no effect: ")]


def test_keys_with_effect_are_not_reported():
    argv = ["algorithm.use_kl_loss=false", "algorithm.kl_type=adaptive", "algorithm.kl_horizon=10"]
    argv += ["trainer.total_epochs=3", "worker.actor.loss_type=cispo", "worker.actor.clip_ratio_high=4"]
    argv += ["trainer.find_last_checkpoint=false", "data.filter_overlong_prompts_workers=2"]
    argv += ["worker.actor.optim.lr_warmup_ratio=0.1", "data.seed=3", "worker.actor.fsdp.torch_dtype=bf16"]
    argv += ["worker.actor.optim.strategy=adamw_bf16", "worker.critic.optim.strategy=adamw"]
    argv += ["worker.actor.optim.lr_scheduler_type=linear", "worker.actor.optim.min_lr_ratio=0.1"]
    argv += ["worker.actor.optim.lr=0.1", "worker.actor.optim.weight_decay=0.1"]
    assert not [note for note in notes_of(*argv) if "no effect" in note]


def test_the_samplers_precision_counts_where_it_has_a_copy_of_its_own():
    for places in (TWO, APART):
        argv = ["worker.rollout.dtype=bf16", "trainer.hang_timeout_s=9", *places]
        assert not [note for note in notes_of(*argv) if "no effect" in note]


def test_defaults_and_the_shipped_file_are_not_reported():
    assert not [note for note in notes_of(f"config={ROOT / 'examples' / 'config.yaml'}") if "no effect" in note]


def test_critic_keys_are_idle_where_the_estimator_has_none():
    class Needs:
        min_n, values, greedy_baseline, parts = 2, False, False, False

    facts = Facts(device="cpu", estimators={"grpo": Needs()})
    notes = notes_of("worker.critic.optim.lr=1e-5", "trainer.critic_warmup=3", facts=facts)
    assert "worker.critic.optim.lr has no effect: grpo has no critic" in notes
    assert "trainer.critic_warmup has no effect: grpo has no critic" in notes


def test_coarse_weights_are_told_with_their_cure():
    class Needs:
        min_n, values, greedy_baseline, parts = 1, True, False, False

    bf16 = ["worker.actor.fsdp.torch_dtype=bf16", "worker.critic.fsdp.torch_dtype=bf16"]
    kept = [f"worker.{model}.optim.strategy=adamw_bf16" for model in ("actor", "critic")]
    facts = Facts(device="cpu", estimators={"grpo": Needs()})
    batch = "worker.critic.global_batch_size=128"
    for argv, models in ((bf16, ["actor", "critic"]), (bf16 + kept[:1], ["critic"]), (bf16 + kept, []), ([], [])):
        told = [note for note in notes_of(batch, *argv, facts=facts) if "loses updates below about 0.4 %" in note]
        assert len(told) == len(models)
        for note, model in zip(told, models, strict=True):
            assert f"worker.{model}.optim.strategy=adamw_bf16" in note


def test_a_rate_too_small_for_large_bfloat16_weights_is_told():
    bf16 = ["worker.actor.fsdp.torch_dtype=bf16", "worker.actor.optim.strategy=adamw_bf16"]
    assert [note for note in notes_of(*bf16, "worker.actor.optim.lr=1e-6") if "move weights above about 0.13" in note]
    for argv in ([*bf16, "worker.actor.optim.lr=1e-5"], ["worker.actor.optim.lr=1e-6"]):
        assert not [note for note in notes_of(*argv) if "move weights above" in note]


def test_rules_name_keys_that_exist():
    for covered in (key for rule in RULES for key in rule.keys):
        assert any(known == covered or known.startswith(f"{covered}.") for known in known_keys()), covered


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("worker.rollout.top_p=0.95", "whole distribution"),
        ("algorithm.kl_penalty=kl", "no gradient on average"),
        ("algorithm.kl_coef=0", "only measures"),
        ("worker.actor.fsdp.mp_param_dtype=fp16", "loss scaling"),
        ("worker.actor.fsdp.torch_dtype=bf16", "worker.actor.optim.strategy=adamw_bf16 keeps them"),
        ("trainer.save_model_only=true", "optimizer anew"),
        ("worker.actor.model.model_path=me/global_step_5", "trainer.load_checkpoint_path"),
    ],
)
def test_choices_with_a_catch_are_noted(argument, words):
    assert any(words in note for note in notes_of(argument))
    assert not any(words in note for note in notes_of())
