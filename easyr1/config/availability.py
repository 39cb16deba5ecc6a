"""What later versions will have: keys that are known but have nothing behind them yet.

Whoever builds one of these features deletes its line here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from easyr1.config.names import did_you_mean
from easyr1.config.plan import Facts
from easyr1.config.recipes import ESTIMATOR_KEY, RECIPES
from easyr1.config.schema import Config
from easyr1.errors import ConfigError


@dataclass(frozen=True)
class Feature:
    """One feature that is not there yet."""

    key: str
    name: str
    asked: Callable[[Config, int], bool]  # (config, world size)
    cure: str


MISSING: tuple[Feature, ...] = (
    Feature(
        "worker.actor.fsdp.torch_dtype",
        "training of float16 weights",
        lambda c, _: c.worker.actor.fsdp.torch_dtype in ("fp16", "float16"),
        "set bf16, or fp32 with mp_param_dtype=fp16",
    ),
    Feature(
        "worker.critic.fsdp.torch_dtype",
        "training of float16 weights",
        lambda c, _: c.worker.critic.fsdp.torch_dtype in ("fp16", "float16"),
        "set bf16, or fp32 with mp_param_dtype=fp16",
    ),
    Feature(
        "worker.hybrid_engine",
        "training and sampling on separate devices",
        lambda c, _: not c.worker.hybrid_engine,
        "set true",
    ),
)


def missing_features(config: Config, world_size: int) -> list[ConfigError]:
    """One error for each feature that the configuration asks for and that this version lacks."""
    return [
        ConfigError(feature.key, f"{feature.name} is not available in this version; {feature.cure}")
        for feature in MISSING
        if feature.asked(config, world_size)
    ]


def missing_trackers(config: Config, facts: Facts) -> list[ConfigError]:
    """One error for each tracker that is asked for and could not start on this machine."""
    asked = dict.fromkeys(config.trainer.logger)
    return [
        ConfigError("trainer.logger", facts.unready_loggers[name]) for name in asked if name in facts.unready_loggers
    ]


def check_names(config: Config, facts: Facts) -> None:
    """Names that code stands behind, as far as `facts` knows them. Raises ConfigError."""
    actor = config.worker.actor
    _check_name("algorithm.adv_estimator", config.algorithm.adv_estimator, facts.estimators)
    _check_name("algorithm.kl_penalty", config.algorithm.kl_penalty, facts.kl_penalties)
    _check_name("worker.actor.loss_type", actor.loss_type, facts.losses)
    _check_name("worker.actor.optim.strategy", actor.optim.strategy, facts.optimizers)
    _check_name("worker.critic.optim.strategy", config.worker.critic.optim.strategy, facts.optimizers)
    for logger in config.trainer.logger:
        _check_name("trainer.logger", logger, facts.loggers)


def _check_name(key: str, name: str, allowed: Mapping[str, object] | tuple[str, ...] | None) -> None:
    if allowed is None or name in allowed:
        return
    names = ", ".join(sorted(allowed))
    hint = did_you_mean(name, (*allowed, *RECIPES) if key == ESTIMATOR_KEY else allowed)
    raise ConfigError(key, f"unknown name {name!r}; available: {names}{hint}")
