"""What an evaluation takes of a training configuration. Imports no torch."""

from math import gcd

from easyr1.config.placement import place
from easyr1.config.plan import Facts, Plan
from easyr1.config.resolve import resolve, val_sampling
from easyr1.config.schema import Config, set_leaves


def without_training(config: Config, facts: Facts) -> Config:
    """The configuration with all that only training asks for at values that ask for nothing."""
    apart, engine = not config.worker.hybrid_engine, config.worker.rollout.tensor_parallel_size
    config = set_leaves(config, {"worker.hybrid_engine": True})  # the ranks that hold the weights sample
    ranks = place(config, facts).world_size
    if apart:  # the size divided another number of ranks
        engine = gcd(engine, ranks)
    return set_leaves(
        config,
        {
            "data.train_files": "examples/data/digits.parquet",  # never read
            "data.train_weights": None,
            "data.rollout_batch_size": ranks,
            "data.mini_rollout_batch_size": None,
            "algorithm.adv_estimator": "grpo",
            "algorithm.recipe": None,
            "algorithm.disable_kl": True,
            "algorithm.online_filtering": False,
            "worker.actor.global_batch_size": ranks,
            "worker.actor.micro_batch_size_per_device_for_update": 1,
            "worker.actor.ulysses_size": 1,
            "worker.actor.loss_type": "default",
            "worker.actor.optim.strategy": "adamw",
            "worker.rollout.tensor_parallel_size": engine,
            "worker.rollout.n": 2,  # the least that grpo takes
            "worker.rollout.temperature": config.worker.rollout.temperature or 1.0,
            "worker.rollout.top_p": 1.0,
            "worker.rollout.top_k": -1,
            "trainer.max_steps": 1,
            "trainer.critic_warmup": 0,
            "trainer.save_model_only": False,
            "trainer.val_only": True,
            "trainer.logger": ("console",),
        },
    )


def plan_evaluation(config: Config, facts: Facts) -> Plan:
    """Where and with which sampler it runs. ConfigError for settings that cannot be."""
    val_sampling(config)
    return resolve(without_training(config, facts), frozenset(), facts)
