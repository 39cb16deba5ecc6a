"""Many ranks, each an actor of Ray: calls that go to all of them, and what becomes of the run when one fails.

Knows neither engines nor what is computed. The ranks of a replica follow one another and get the same share.
"""

import logging
import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from easyr1.cluster.environment import travelling
from easyr1.cluster.group import Call, Make, Progress
from easyr1.cluster.parcel import pack
from easyr1.cluster.place import ROOM_TIMEOUT_S, Places, Tell, connected, room
from easyr1.cluster.watch import START_TIMEOUT_S, Rank, Watch
from easyr1.cluster.worker import Seat, Worker
from easyr1.engines.guest import signals_held_back
from easyr1.errors import ConfigError

log = logging.getLogger(__name__)

TOKEN_WAIT_S = 10.0
LEAVE_TIMEOUT_S = 10.0


@dataclass
class RayGroup:
    """The ranks of a run. After a failure they are dead, and every call raises what was raised then."""

    watch: Watch
    sequence: int = 1
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def num_replicas(self) -> int:
        return len(self.watch.ranks) // self.sequence

    def start_all(self, method: str, *arguments: Any) -> Call:
        """As in WorkerGroup; a method that takes `progress` gets it, as from `start_sharded`."""
        return self._start(method, [None] * len(self.watch.ranks), arguments, 1)

    def start_sharded(
        self, method: str, shares: Sequence[Any], *arguments: Any, reports_progress: bool = False
    ) -> Call:
        """As in WorkerGroup, but a method that takes `progress` always gets it: the watch looks at it."""
        if len(shares) != self.num_replicas:
            raise ValueError(f"{len(shares)} shares for {self.num_replicas} replicas")
        parcels = [ray.put(pack(share)) for share in shares]
        given = [parcels[rank // self.sequence] for rank in range(len(self.watch.ranks))]
        return self._start(method, given, arguments, self.sequence)

    def check(self) -> None:
        self.watch.check()

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        return self.start_all(method, *arguments).results()

    def call_sharded(
        self, method: str, shares: Sequence[Any], *arguments: Any, progress: Progress | None = None
    ) -> list[Any]:
        call = self.start_sharded(method, shares, *arguments, reports_progress=progress is not None)
        return call.results(progress)

    def _start(self, method: str, shares: list[Any], arguments: Any, each: int) -> Call:
        """`shares`: one for each rank; `each`: of so many ranks only the first one's result counts."""
        self.watch.check()
        number = next(self.numbers)
        packed = ray.put(pack(arguments))  # once, however many ranks
        try:
            with signals_held_back():  # a call that reached some ranks only would leave them waiting for the others
                refs = [
                    rank.actor.call.options(name=method).remote(number, method, packed, share, index % each == 0)
                    for index, (rank, share) in enumerate(zip(self.watch.ranks, shares, strict=True))
                ]
        except BaseException:
            self.watch.drop(number)
            raise
        return _Remote(self.watch, number, method, refs, each)


@dataclass
class _Remote:
    """A call on its way to all ranks."""

    watch: Watch
    number: int
    method: str
    refs: list[Any]
    each: int

    def results(self, progress: Progress | None = None) -> list[Any]:
        found = self.watch.wait(self.number, self.method, self.refs, self.each, progress)
        return found[:: self.each]


@contextmanager
def open_ray_group(
    make: Make,
    places: Places,
    folder: Path,
    hang_timeout_s: float,
    tell: Tell = lambda _: None,
    *,
    timeline: str | None = None,
    room_timeout_s: float = ROOM_TIMEOUT_S,
) -> Iterator[RayGroup]:
    """Ranks that are joined and hold what `make` built on each of them; they end with the block.

    `folder` is the run's, and must be one folder for all ranks. Raises ConfigError where there is no room for them,
    or no such folder; RankError where one fails. `timeline` is a file for Ray's timeline of all calls.
    """
    with connected(places, tell, timeline), room(places, tell, room_timeout_s) as reserved:
        actors = [_actor(_seat(rank, places, folder), places, reserved) for rank in range(places.world)]
        watch = Watch.over(actors, [_seat(rank, places, folder).log for rank in range(places.world)], hang_timeout_s)
        group = RayGroup(watch, places.sequence)
        try:
            _join(group, folder)
            watch.start_s = max(hang_timeout_s, START_TIMEOUT_S)  # large models take long to read
            (told, *_) = group.call_all("rank.build", ray.cloudpickle.dumps(make))  # pyright: ignore[reportAttributeAccessIssue]
            for message in told:
                log.warning("%s", message)
            watch.start_s = None
            yield group
            if watch.failure is None:
                watch.release(group.start_all("rank.leave"), LEAVE_TIMEOUT_S)
        finally:
            if watch.failure is None:  # else they are dead already
                watch.end_all()


def _seat(rank: int, places: Places, folder: Path) -> Seat:
    return Seat(
        rank=rank,
        world=places.world,
        ranks_per_node=places.neighbours,
        device=places.device,
        folder=str(folder.absolute()),
        environment=travelling(os.environ),
        path=tuple(os.path.abspath(entry) for entry in sys.path),
        directory=os.getcwd(),
        role=places.role,
    )


def _actor(seat: Seat, places: Places, reserved: PlacementGroup) -> Any:
    remote: Any = ray.remote
    kind = remote(concurrency_groups={"pulse": 1})(Worker)
    return kind.options(
        num_cpus=1,
        num_gpus=1 if seat.device == "cuda" else 0,
        max_restarts=0,
        scheduling_strategy=PlacementGroupSchedulingStrategy(
            reserved, placement_group_bundle_index=seat.rank // places.ranks_per_node
        ),
    ).remote(ray.put(seat))  # what it holds of the environment is nobody's to see in a list of actors


def _join(group: RayGroup, folder: Path) -> None:
    """One process group, and one run folder."""
    check_folder(group, folder)
    first: Rank = group.watch.ranks[0]
    address = first.identity.address
    (port, *_) = group.call_all("rank.meet", address)
    group.call_all("rank.join", address, port)


def check_folder(group: RayGroup, folder: Path) -> None:
    """Rank 0 writes a token into the run folder, and every rank reads it. Raises ConfigError naming the node."""
    token = uuid.uuid4().hex
    file = str(folder.absolute() / f".token_{token[:8]}")
    (problem, *_) = group.call_all("rank.write_token", file, token)
    if problem:
        raise ConfigError("trainer.save_checkpoint_path", f"rank 0 cannot write to {folder} ({problem})")
    try:
        found = group.call_all("rank.read_token", file, token, TOKEN_WAIT_S)
    finally:
        Path(file).unlink(missing_ok=True)
    for rank, problem in zip(group.watch.ranks, found, strict=True):
        if problem:
            raise ConfigError(
                "trainer.save_checkpoint_path",
                f"{rank.identity.name} on node {rank.identity.node} ({rank.identity.address}) does not see what "
                f"rank 0 wrote to {folder} ({problem}); all nodes need one shared folder there, such as on NFS",
            )
