"""Devices and ranks: what the configuration asks for against what the machine has."""

from dataclasses import dataclass
from typing import Literal

from easyr1.config.plan import Facts
from easyr1.config.schema import Config
from easyr1.errors import ConfigError


@dataclass(frozen=True)
class Placement:
    """Where a run would go, and why it cannot if it cannot."""

    device: Literal["cpu", "cuda"] | None  # None = not known yet
    world_size: int
    missing: ConfigError | None = None  # what the machine lacks
    notes: tuple[str, ...] = ()


def place(config: Config, facts: Facts) -> Placement:
    """Device and number of ranks; raises nothing, so that a dry run can show what another machine would do.

    Where ranks go to a cluster, this machine tells nothing of the others: Ray looks at them once it is connected.
    """
    trainer = config.trainer
    asked, sampling = trainer.n_gpus_per_node, sampling_ranks(config)
    wanted = trainer.device if trainer.device != "auto" else facts.device
    visible = facts.num_devices if facts.device != "cpu" else 0
    if wanted != "cuda" and (trainer.device == "cpu" or asked is None or asked == 1 or visible is None):
        return Placement(wanted, trainer.nnodes * (asked or 1), notes=_cpu_notes(config, facts))
    if asked is None:
        return _all_devices(config, facts, visible)
    missing = None
    if visible is not None and visible < asked + sampling and not on_cluster(config, facts):
        missing = _too_few("trainer.n_gpus_per_node", asked, visible, sampling)
    return Placement("cuda", trainer.nnodes * asked, missing)


def sampling_ranks(config: Config) -> int:
    """How many ranks do nothing but sample; 0 where those that train do."""
    return 0 if config.worker.hybrid_engine else config.worker.rollout.n_gpus or 0


def on_cluster(config: Config, facts: Facts) -> bool:
    """Whether other machines than this one may hold ranks."""
    return facts.cluster or config.trainer.nnodes > 1


def _all_devices(config: Config, facts: Facts, visible: int | None) -> Placement:
    """Ranks where trainer.n_gpus_per_node is null and the device is cuda: all but those that sample alone."""
    nodes, sampling = config.trainer.nnodes, sampling_ranks(config)
    if visible == 0 and on_cluster(config, facts):
        message = "null takes as many GPUs of each machine as this one has, and it has none; set their number"
        return Placement("cuda", nodes, ConfigError("trainer.n_gpus_per_node", message))
    if visible == 0:
        return Placement("cuda", nodes, _too_few("trainer.device", 1, 0))
    if sampling and on_cluster(config, facts):
        message = "null does not tell which GPUs of a cluster train and which sample (worker.hybrid_engine=false)"
        return Placement("cuda", nodes, ConfigError("trainer.n_gpus_per_node", f"{message}; set their number"))
    if visible is not None and 0 < visible <= sampling:
        return Placement("cuda", nodes, _too_few("worker.rollout.n_gpus", 1, visible, sampling))
    return Placement("cuda", nodes * ((visible or 1 + sampling) - sampling))


def _cpu_notes(config: Config, facts: Facts) -> tuple[str, ...]:
    if config.trainer.device == "auto" and facts.device == "cpu" and on_cluster(config, facts):
        return (
            "no GPU is visible on this machine: ranks compute on CPUs; trainer.device=cuda asks for GPUs of others",
        )
    if config.trainer.device == "auto" and facts.device == "cpu":
        return ("no GPU is visible: the run computes on the CPU",)
    return ()


def _too_few(key: str, asked: int, visible: int, sampling: int = 0) -> ConfigError:
    """`asked` GPUs that train, `sampling` more that sample."""
    cure = "leave trainer.n_gpus_per_node at null and trainer.device at auto to train on the CPU"
    if sampling:
        cure = "lower trainer.n_gpus_per_node or worker.rollout.n_gpus, or set worker.hybrid_engine=true to share them"
        told = f"{asked} GPU{'s' * (asked > 1)} that train and {sampling} that sample, {visible} visible here"
        return ConfigError(key, f"asks for {told}; {cure}")
    if visible:
        cure = f"set trainer.n_gpus_per_node to at most {visible}"
    return ConfigError(key, f"asks for {asked} GPU{'s' * (asked > 1)} on each machine, {visible} visible here; {cure}")
