"""What may be written in a configuration: every key with its type, range, default and documentation.

The only place that knows defaults. Nothing here says whether values make sense together (`resolve` does).
The text under each field is its documentation: `describe` makes examples/config.yaml and docs/config.md of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar, get_type_hints

from easyr1.config.actor import (
    ActorConfig,
    CriticConfig,
    FsdpConfig,
    LoraConfig,
    ModelConfig,
    OffloadConfig,
    OptimConfig,
    RefConfig,
)
from easyr1.config.algorithm import AlgorithmConfig
from easyr1.config.data import DataConfig
from easyr1.config.trainer import TrainerConfig
from easyr1.config.worker import RewardConfig, RolloutConfig, WorkerConfig

__all__ = [
    "DEPARTURES",
    "ActorConfig",
    "AlgorithmConfig",
    "Config",
    "CriticConfig",
    "DataConfig",
    "FsdpConfig",
    "LoraConfig",
    "ModelConfig",
    "OffloadConfig",
    "OptimConfig",
    "RefConfig",
    "RewardConfig",
    "RolloutConfig",
    "TrainerConfig",
    "WorkerConfig",
    "known_keys",
    "set_leaves",
    "walk",
]

Section = TypeVar("Section")

DEPARTURES: Mapping[str, str] = {
    "trainer.logger": "console and file, so that a first run needs no account",
    "trainer.n_gpus_per_node": "what the machine has",
    "worker.rollout.tensor_parallel_size": "1, so that one GPU is enough",
    "worker.rollout.name": "auto, as there is more than one sampler",
    "worker.rollout.dtype": "as the policy computes: bfloat16 on GPUs, float32 on a CPU",
    "worker.actor.fsdp.mp_param_dtype": "bfloat16 on GPUs as in EasyR1, but float32 on a CPU",
    "worker.ref.fsdp.mp_param_dtype": "bfloat16 on GPUs as in EasyR1, but float32 on a CPU",
    "worker.critic.fsdp.mp_param_dtype": "bfloat16 on GPUs as in EasyR1, but float32 on a CPU",
    "worker.critic.model.trust_remote_code": "false everywhere",
    "worker.critic.padding_free": "true, as the actor's",
}
"""Keys whose default differs from EasyR1's (its examples/config.yaml, else its dataclasses), and why."""


@dataclass(frozen=True)
class Config:
    """A whole run."""

    data: DataConfig = field(default_factory=DataConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)


def walk(section: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every leaf key below `section` in order: (dotted key, its type with range, its value)."""
    hints = get_type_hints(type(section), include_extras=True)
    for entry in fields(section):
        value = getattr(section, entry.name)
        if is_dataclass(value):
            yield from walk(value, f"{prefix}{entry.name}.")
        else:
            yield prefix + entry.name, hints[entry.name], value


@cache
def known_keys() -> Mapping[str, tuple[Any, Any]]:
    """Dotted leaf key -> (its type with range, its default)."""
    return {key: (kind, default) for key, kind, default in walk(Config())}


def set_leaves(section: Section, leaves: Mapping[str, Any], prefix: str = "") -> Section:
    """A copy of `section` with the values of `leaves` (dotted key -> value of the right type) in place."""
    changes = {}
    for entry in fields(section):  # type: ignore[arg-type]
        key, value = prefix + entry.name, getattr(section, entry.name)
        if is_dataclass(value):
            changes[entry.name] = set_leaves(value, leaves, f"{key}.")
        elif key in leaves:
            changes[entry.name] = leaves[key]
    return replace(section, **changes)  # type: ignore[type-var]
