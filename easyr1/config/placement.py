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
    asked = trainer.n_gpus_per_node
    wanted = trainer.device if trainer.device != "auto" else facts.device
    visible = facts.num_devices if facts.device != "cpu" else 0
    if wanted != "cuda" and (trainer.device == "cpu" or asked is None or asked == 1 or visible is None):
        return Placement(wanted, trainer.nnodes * (asked or 1), notes=_cpu_notes(config, facts))
    if asked is None:
        return _all_devices(config, facts, visible)
    missing = None
    if visible is not None and visible < asked and not on_cluster(config, facts):
        missing = _too_few("trainer.n_gpus_per_node", asked, visible)
    return Placement("cuda", trainer.nnodes * asked, missing)


def on_cluster(config: Config, facts: Facts) -> bool:
    """Whether other machines than this one may hold ranks."""
    return facts.cluster or config.trainer.nnodes > 1


def _all_devices(config: Config, facts: Facts, visible: int | None) -> Placement:
    """Ranks where trainer.n_gpus_per_node is null and the device is cuda."""
    nodes = config.trainer.nnodes
    if visible == 0 and on_cluster(config, facts):
        message = "null takes as many GPUs of each machine as this one has, and it has none; set their number"
        return Placement("cuda", nodes, ConfigError("trainer.n_gpus_per_node", message))
    if visible == 0:
        return Placement("cuda", nodes, _too_few("trainer.device", 1, 0))
    return Placement("cuda", nodes * (visible or 1))


def _cpu_notes(config: Config, facts: Facts) -> tuple[str, ...]:
    if config.trainer.device == "auto" and facts.device == "cpu" and on_cluster(config, facts):
        return (
            "no GPU is visible on this machine: ranks compute on CPUs; trainer.device=cuda asks for GPUs of others",
        )
    if config.trainer.device == "auto" and facts.device == "cpu":
        return ("no GPU is visible: the run computes on the CPU",)
    return ()


def _too_few(key: str, asked: int, visible: int) -> ConfigError:
    cure = "leave trainer.n_gpus_per_node at null and trainer.device at auto to train on the CPU"
    if visible:
        cure = f"set trainer.n_gpus_per_node to at most {visible}"
    return ConfigError(key, f"asks for {asked} GPU{'s' * (asked > 1)} on each machine, {visible} visible here; {cure}")
