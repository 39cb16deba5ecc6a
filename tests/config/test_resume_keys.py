"""Which settings a run may change when it goes on by itself: every key is decided here, new ones too."""

import pytest

from easyr1.config.load import load, to_mapping
from easyr1.config.resume import MAY_DIFFER, differences
from easyr1.config.schema import known_keys

MODEL_KEYS = """
micro_batch_size_per_device_for_update micro_batch_size_per_device_for_experience padding_free dynamic_batching
ulysses_size model.enable_gradient_checkpointing
"""
ENGINE_KEYS = """
strategy offload.offload_params offload.offload_optimizer fsdp.enable_full_shard fsdp.enable_cpu_offload
fsdp.enable_rank0_init fsdp.use_orig_params fsdp.fsdp_size fsdp.reduce_each_micro_batch
"""
OTHERS = """
data.val_files data.val_batch_size data.filter_overlong_prompts_workers data.on_bad_media worker.hybrid_engine
worker.actor.use_torch_compile worker.rollout.name worker.rollout.gpu_memory_utilization worker.rollout.enforce_eager
worker.rollout.enable_chunked_prefill worker.rollout.tensor_parallel_size worker.rollout.max_model_len
worker.rollout.max_num_batched_tokens worker.rollout.disable_log_stats worker.rollout.disable_tqdm
worker.rollout.engine_kwargs worker.rollout.probe_freq worker.rollout.seed_answers
worker.rollout.val_override_config worker.reward.num_cpus worker.reward.timeout_s
trainer.total_epochs trainer.max_steps trainer.project_name trainer.experiment_name trainer.logger trainer.console
trainer.nnodes trainer.n_gpus_per_node trainer.device trainer.max_try_make_batch trainer.val_freq
trainer.val_before_train trainer.val_only trainer.val_generations_to_log
trainer.save_freq trainer.save_limit trainer.save_model_only
trainer.save_checkpoint_path trainer.load_checkpoint_path trainer.find_last_checkpoint trainer.ray_timeline
trainer.hang_timeout_s
"""


def test_these_keys_may_differ_and_no_others():
    free = set(OTHERS.split())
    free |= {f"worker.{model}.{key}" for model in ("actor", "critic") for key in MODEL_KEYS.split()}
    free |= {f"worker.{model}.{key}" for model in ("actor", "critic", "ref") for key in ENGINE_KEYS.split()}
    assert {key for key in known_keys() if MAY_DIFFER.fullmatch(key)} == free


@pytest.mark.parametrize(
    ("setting", "told"),
    (
        ("worker.actor.optim.lr=0.5", "worker.actor.optim.lr: 1e-06 then, 0.5 now"),
        ("worker.actor.optim.betas=[0.8,0.9]", "worker.actor.optim.betas: [0.9, 0.999] then, [0.8, 0.9] now"),
        (
            "worker.reward.reward_function_kwargs.low=1",
            "worker.reward.reward_function_kwargs: {} then, {'low': 1} now",
        ),
        ("trainer.critic_warmup=3", "trainer.critic_warmup: 0 then, 3 now"),
        ("trainer.max_steps=3", None),
    ),
)
def test_a_changed_key_is_told_with_both_values(setting, told):
    then, now = load([])[0], load([setting])[0]
    assert differences(to_mapping(then), now) == ([told] if told else [])
    assert differences(to_mapping(now), now) == []


def test_a_key_that_came_later_is_passed_over():
    config = load([])[0]
    then = to_mapping(config)
    del then["worker"]["actor"]["optim"]["lr"], then["algorithm"]
    assert differences(then, config) == []
