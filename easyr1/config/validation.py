"""How answers are sampled in validation: worker.rollout with val_override_config laid over it."""

from typing import Any

from easyr1.config.names import did_you_mean
from easyr1.config.ranges import Count, CountOrOff, NotNegative, PositiveShare
from easyr1.config.schema import Config
from easyr1.config.values import convert
from easyr1.errors import ConfigError

_KINDS = {"n": Count, "temperature": NotNegative, "top_p": PositiveShare, "top_k": CountOrOff, "max_tokens": Count}


def val_sampling(config: Config) -> dict[str, Any]:
    """n, temperature, top_p, top_k and max_tokens of validation; null in the override means as in training.

    Raises ConfigError for settings that are unknown or out of range.
    """
    rollout, prefix = config.worker.rollout, "worker.rollout.val_override_config"
    sampling = {
        "n": 1,
        "temperature": rollout.temperature,
        "top_p": rollout.top_p,
        "top_k": rollout.top_k,
        "max_tokens": config.data.max_response_length,
    }
    for name, value in rollout.val_override_config.items():
        if name not in _KINDS:
            hint = did_you_mean(name, _KINDS)
            raise ConfigError(f"{prefix}.{name}", f"unknown setting; allowed: {', '.join(_KINDS)}{hint}")
        if value is not None:
            sampling[name] = convert(f"{prefix}.{name}", value, _KINDS[name])
    return sampling
