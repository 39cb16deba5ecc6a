"""Where this process stands among those that compute one model together; alone by default.

Knows process groups, nothing of models. A replica is a set of `sequence` ranks that follow one another and share every
sequence (sequence parallelism); without that, each rank is a replica.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


@dataclass(frozen=True)
class Ranks:
    """The ranks of one model. Its weights lie on `mesh`, (shard) or (replicate, shard); None: this process alone."""

    rank: int = 0
    world: int = 1
    sequence: int = 1
    mesh: DeviceMesh | None = None
    sequence_group: dist.ProcessGroup | None = None  # those that share this rank's sequences; None: it has its own

    @property
    def replica(self) -> int:
        return self.rank // self.sequence

    @property
    def num_replicas(self) -> int:
        return self.world // self.sequence

    def gather(self, value: Any) -> list[Any]:
        """A small value of every rank, by rank. All ranks call it."""
        if self.mesh is None:
            return [value]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value)
        return found

    def gather_peers(self, value: Any) -> list[Any]:
        """A value of each rank that shares this one's sequences, in order. All of them call it."""
        if self.sequence_group is None:
            return [value]
        found: list[Any] = [None] * self.sequence
        dist.all_gather_object(found, value, group=self.sequence_group)
        return found


ALONE = Ranks()


def writes() -> bool:
    """Whether this process writes what the ranks write but once: rank 0, and a process that is alone."""
    return not dist.is_initialized() or dist.get_rank() == 0


def join(device: torch.device, fsdp_size: int = -1, sequence: int = 1) -> Ranks:
    """The ranks of the process group that was initialised; ALONE where there is none. All ranks call it, in one order.

    `fsdp_size` ranks share one copy of the weights (-1: all), which the others repeat; it divides their number, as
    `sequence` does. Models that are spread alike share the process groups.
    """
    if not dist.is_initialized():
        return ALONE
    rank, world = dist.get_rank(), dist.get_world_size()
    shard = world if fsdp_size in (-1, 0) else min(fsdp_size, world)
    if shard == world:
        mesh = _mesh(dist.group.WORLD, device.type, (world,), ("shard",))
    else:
        mesh = _mesh(dist.group.WORLD, device.type, (world // shard, shard), ("replicate", "shard"))
    group = None
    if sequence > 1:
        peers = _mesh(dist.group.WORLD, device.type, (world // sequence, sequence), ("replica", "sequence"))
        group = peers["sequence"].get_group()
    return Ranks(rank, world, sequence, mesh, group)


@cache
def _mesh(everyone: Any, device_type: str, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    """Made once, as long as `everyone`, the group of all ranks, is the same: a mesh makes process groups."""
    return init_device_mesh(device_type, shape, mesh_dim_names=names)
