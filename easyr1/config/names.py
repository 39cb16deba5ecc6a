"""Names that are not keys: typing mistakes, keys of other releases and forks, keys that EasyR1 derives by itself."""

from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher, get_close_matches

from easyr1.config.schema import known_keys
from easyr1.errors import ConfigError

RENAMED: Mapping[str, str] = {
    "algorithm.kl_loss_coef": "algorithm.kl_coef",
    "data.gen_batch_size": "data.mini_rollout_batch_size",
    "data.train_batch_size": "data.rollout_batch_size",
    "trainer.remove_previous_ckpt": "trainer.save_limit",
    "trainer.test_freq": "trainer.val_freq",
    "trainer.total_episodes": "trainer.total_epochs",
    "trainer.total_training_steps": "trainer.max_steps",
    "trainer.val_generations_to_log_to_wandb": "trainer.val_generations_to_log",
    "worker.actor.entropy_coeff": "worker.actor.entropy_coef",
    "worker.actor.kl_loss_coef": "algorithm.kl_coef",
    "worker.actor.kl_loss_type": "algorithm.kl_penalty",
    "worker.actor.model.path": "worker.actor.model.model_path",
    "worker.actor.offload.optimizer_offload": "worker.actor.offload.offload_optimizer",
    "worker.actor.offload.param_offload": "worker.actor.offload.offload_params",
    "worker.actor.ppo_mini_batch_size": "worker.actor.global_batch_size",
    "worker.actor.ulysses_sequence_parallel_size": "worker.actor.ulysses_size",
    "worker.critic.model.path": "worker.critic.model.model_path",
    "worker.critic.ulysses_sequence_parallel_size": "worker.critic.ulysses_size",
    "worker.ref.ulysses_sequence_parallel_size": "worker.actor.ulysses_size",
    "worker.reward.compute_score": "worker.reward.reward_function",
    "worker.reward.score_function": "worker.reward.reward_function",
    "worker.reward.score_function_kwargs": "worker.reward.reward_function_kwargs",
}
"""Key of another release or fork -> the key of today."""

REMOVED: Mapping[str, str] = {
    "data.system_prompt": "put its text into the file of data.format_prompt",
    "worker.actor.clip_ratio": "set worker.actor.clip_ratio_low and worker.actor.clip_ratio_high",
    "worker.reward.reward_type": 'write REWARD_TYPE = "batch" or "sequential" into the reward file',
}
"""Key of another release or fork that has no successor -> what to do."""

DERIVED: Mapping[str, str] = {
    "worker.actor.disable_kl": "algorithm.disable_kl",
    "worker.actor.global_batch_size_per_device": "worker.actor.global_batch_size",
    "worker.actor.kl_coef": "algorithm.kl_coef",
    "worker.actor.kl_penalty": "algorithm.kl_penalty",
    "worker.actor.optim.training_steps": "trainer.max_steps",
    "worker.actor.use_kl_loss": "algorithm.use_kl_loss",
    "worker.critic.global_batch_size_per_device": "worker.critic.global_batch_size",
    "worker.critic.optim.training_steps": "trainer.max_steps",
    "worker.ref.dynamic_batching": "worker.actor.dynamic_batching",
    "worker.ref.micro_batch_size_per_device_for_experience": "worker.actor.micro_batch_size_per_device_for_experience",
    "worker.ref.padding_free": "worker.actor.padding_free",
    "worker.ref.ulysses_size": "worker.actor.ulysses_size",
    "worker.ref.use_torch_compile": "worker.actor.use_torch_compile",
    "worker.reward.reward_function_name": "worker.reward.reward_function",
    "worker.rollout.prompt_length": "data.max_prompt_length",
    "worker.rollout.response_length": "data.max_response_length",
    "worker.rollout.trust_remote_code": "worker.actor.model.trust_remote_code",
}
"""Key that is worked out from another one and would be overwritten -> the key that counts."""


def unknown_key(key: str) -> ConfigError:
    """The error for a key that the schema does not have; it names the key to write instead."""
    if key in DERIVED:
        return ConfigError(key, f"is worked out from {DERIVED[key]}; set that key instead")
    if key in RENAMED:
        return ConfigError(key, f"is now called {RENAMED[key]}")
    if key in REMOVED:
        return ConfigError(key, f"does not exist any more: {REMOVED[key]}")
    near = nearest_key(key)
    hint = f"did you mean {near}?" if near else "all keys stand below data, worker, algorithm or trainer"
    return ConfigError(key, f"unknown key; {hint}")


def nearest_key(key: str) -> str | None:
    """The known key that `key` most probably stands for, or None."""
    last = key.rpartition(".")[2]
    same_last = [known for known in known_keys() if known.rpartition(".")[2] == last]
    if same_last:
        return max(same_last, key=lambda known: SequenceMatcher(None, key, known).ratio())
    near = get_close_matches(key, known_keys(), n=1, cutoff=0.75)
    if near:
        return near[0]
    by_last = {known.rpartition(".")[2]: known for known in known_keys()}
    near = get_close_matches(last, by_last, n=1, cutoff=0.75)
    return by_last[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """'; did you mean 'x'?' for the nearest of `known`, or nothing."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
