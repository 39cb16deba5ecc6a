"""A cluster of Ray and room on it: an existing one or one started on the spot; a bundle of resources for each node."""

import atexit
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from easyr1.errors import ConfigError, first_line

log = logging.getLogger(__name__)

Tell = Callable[[str], None]

ROOM_TIMEOUT_S = 60.0  # for nodes that join late, and for resources that others still hold
PORT_TIMEOUT_S = 5.0
TIMELINE_WAIT_S = 2.0  # processes tell what they did once a second
SHUTDOWN_TIMEOUT_S = 20.0
ROOM_END_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Places:
    """The ranks of a run, or those of one kind. `sequence` ranks that follow one another get the same share.

    With `anywhere` each node's share may lie beside another one's, as engines do that need no machine of their own.
    """

    nodes: int
    ranks_per_node: int
    device: str  # "cpu" or "cuda"
    sequence: int = 1
    role: str = "rank"  # what people call one
    others: int = 0  # ranks of other kinds that will come to the same cluster
    anywhere: bool = False
    key: str = "trainer.n_gpus_per_node"  # that tells how many there are

    @property
    def world(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def neighbours(self) -> int:
        """How many of these ranks share a machine, at the most."""
        return self.world if self.anywhere else self.ranks_per_node

    @property
    def strategy(self) -> str:
        """Of Ray's, for bundles."""
        if self.anywhere:
            return "PACK"
        return "STRICT_SPREAD" if self.nodes > 1 else "STRICT_PACK"

    @property
    def bundle(self) -> dict[str, float]:
        """What a node must have for its ranks."""
        cpus = {"CPU": float(self.ranks_per_node)}
        return {**cpus, "GPU": float(self.ranks_per_node)} if self.device == "cuda" else cpus


@contextmanager
def connected(places: Places, tell: Tell, timeline: str | None = None) -> Iterator[None]:
    """A cluster: the one that RAY_ADDRESS or `ray start` names, or one that lives as long as this block.

    `timeline` is a file for Ray's timeline of all calls.
    """
    if ray.is_initialized():
        yield
        return
    handlers = _handlers()
    try:
        _connect(places, tell)
    finally:
        _restore(handlers)
    try:
        yield
    finally:
        status = _status(sys.exc_info()[1])
        _write_timeline(timeline)
        _shut_down(status)
        _restore(handlers)


def _connect(places: Places, tell: Tell) -> None:
    address = os.environ.get("RAY_ADDRESS", "")
    if address.startswith("ray://"):
        raise ConfigError(
            "trainer.nnodes",
            f"RAY_ADDRESS={address} is an address of the Ray client; start the run on a node of the cluster (or by "
            "`ray job submit`) with RAY_ADDRESS=auto",
        )
    # At WARNING Ray tells that it protects a cluster of its own by a token, at each start.
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    found = address or _noted_here()
    if found and found != "local":
        tell(f"connecting to the Ray cluster at {found}")
        try:
            _check_port(found)
            # Ray takes the token of this machine to the cluster that it noted itself, and to no other.
            _init_within(CONNECT_TIMEOUT_S, address=address or None, **options)
        except (ray.exceptions.RayError, OSError, RuntimeError) as error:
            raise ConfigError(
                "trainer.nnodes",
                f"no Ray cluster answers at {found} ({first_line(error)}); start one with `ray start --head`, or "
                "unset RAY_ADDRESS to let a run on one machine start its own. If the cluster asks for a token, set "
                "RAY_AUTH_MODE=token",
            ) from error
        return
    if places.nodes > 1:
        raise ConfigError(
            "trainer.nnodes",
            f"{places.nodes} nodes need a Ray cluster, and none is found here: run `ray start --head` on this machine "
            "and `ray start --address=THIS_MACHINE:6379` on the others, or set RAY_ADDRESS (docs/distributed.md)",
        )
    tell(f"starting Ray for {places.world + places.others} ranks on this machine")
    cpus = max(places.world + places.others, os.cpu_count() or 1)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=cpus, include_dashboard=False, **options)


def _init_within(limit_s: float, **options: Any) -> None:
    """ray.init, which by itself would try for ever where something else listens. Raises what it raised, or OSError."""
    raised: list[BaseException] = []

    def init() -> None:
        try:
            ray.init(**options)
        except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
            raised.append(error)

    thread = threading.Thread(target=init, daemon=True)
    thread.start()
    thread.join(limit_s)
    if raised:
        raise raised[0]
    if thread.is_alive():
        raise OSError(f"no answer within {limit_s:g} s")


def _noted_here() -> str | None:
    """The address of the cluster that `ray start` noted on this machine, if something listens there.

    It is where `ray.init()` looks, which would wait long for a cluster that has ended without `ray stop`.
    """
    from ray._private.services import canonicalize_bootstrap_address

    address = canonicalize_bootstrap_address(None)  # type: ignore
    if address is None:
        return None
    try:
        _check_port(address)
    except OSError:
        return None
    return address


def _check_port(address: str) -> None:
    """OSError where nothing listens; "auto" is Ray's to look up."""
    host, _, port = address.rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), PORT_TIMEOUT_S).close()


def _handlers() -> dict[int, Any]:
    """Ray puts a handler of its own on SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}


def _restore(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None:  # None: not Python's
            signal.signal(number, handler)


def _write_timeline(file: str | None) -> None:
    if file is None:
        return
    path = Path(file).expanduser().absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        time.sleep(TIMELINE_WAIT_S)
        ray.timeline(str(path))
    except (OSError, ray.exceptions.RayError) as error:
        log.warning("trainer.ray_timeline: %s was not written (%s)", path, error)


def _shut_down(status: int) -> None:
    """Leave the cluster; a process that cannot be killed may keep Ray waiting, but not us."""
    if not _within(ray.shutdown, SHUTDOWN_TIMEOUT_S):
        log.warning("Ray does not end; processes of it may be left on this machine")
        atexit.register(_leave, status)  # called before what Ray registered, which would wait again


def _within(work: Callable[[], object], limit_s: float) -> bool:
    """Whether `work` has ended in time; what it raises is told in the log. A cluster that is gone may not answer."""

    def quietly() -> None:
        try:
            work()
        except (ray.exceptions.RayError, OSError, RuntimeError) as error:
            log.warning("Ray: %s", first_line(error))

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(limit_s)
    return not thread.is_alive()


def _status(error: BaseException | None) -> int:
    """What the command is going to end with."""
    if isinstance(error, ConfigError):
        return 2
    return getattr(error, "exit_status", int(error is not None))


def _leave(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


@contextmanager
def room(places: Places, tell: Tell, timeout_s: float = ROOM_TIMEOUT_S) -> Iterator[PlacementGroup]:
    """Resources for all ranks, those of a node together. Raises ConfigError if they are not there in time."""
    _check_totals(places, tell, timeout_s)
    group = placement_group([places.bundle] * places.nodes, strategy=places.strategy)
    try:
        _await(group, places, tell, timeout_s)
        yield group
    finally:
        _within(lambda: remove_placement_group(group), ROOM_END_TIMEOUT_S)


def _check_totals(places: Places, tell: Tell, timeout_s: float) -> None:
    """Enough nodes that have what their ranks need, and enough for the others that will come. Where several nodes are
    needed, some may still be joining.
    """
    end = time.monotonic() + (timeout_s if places.nodes > 1 or places.others else 0)
    told = False
    while _fitting(places) < places.nodes or _total(places) < places.world + places.others:
        if time.monotonic() >= end:
            raise ConfigError(_key(places), f"{_asked(places)}, but {_there()}; {_cure(places)}")
        if not told:
            tell(f"waiting for nodes: {_asked(places)}, {_there()}")
            told = True
        time.sleep(0.5)


def _await(group: PlacementGroup, places: Places, tell: Tell, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    told = False
    while not group.wait(timeout_seconds=1):
        if time.monotonic() >= end:
            free = ", ".join(f"{amount:g} {name}" for name, amount in _free().items()) or "nothing"
            raise ConfigError(
                _key(places),
                f"{_asked(places)}; the cluster has them, but others use them: {free} free after {timeout_s:g} s; "
                "wait for the others to end (`ray status` shows them), or ask for less",
            )
        if not told:
            tell("waiting for resources that others use on the cluster")
            told = True


def _fitting(places: Places) -> int:
    """How many nodes have what their ranks need; with `anywhere`, for how many bundles there is something."""
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fits = [min(int(node.get(name, 0) // much) for name, much in places.bundle.items()) for node in resources]
    return sum(count if places.anywhere else count > 0 for count in fits)


def _total(places: Places) -> int:
    """How many ranks of any kind the nodes have something for, one by one."""
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return min(sum(int(node.get(name, 0)) for node in resources) for name in places.bundle)


def _key(places: Places) -> str:
    return places.key if places.nodes == 1 or places.anywhere else "trainer.nnodes"


def _asked(places: Places) -> str:
    parts = " and ".join(f"{much:g} {name}{'s' * (much != 1)}" for name, much in places.bundle.items())
    nodes = "1 node" if places.nodes == 1 else f"each of {places.nodes} nodes"
    if places.anywhere:
        nodes = f"a node, {places.nodes} times"
    unit = "GPU" if places.device == "cuda" else "CPU"
    others = f", worker.rollout.n_gpus={places.others} for {places.others} {unit} more" if places.others else ""
    return f"{places.world} {places.role}s ask for {parts} on {nodes}{others}"


def _there() -> str:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    each = "; ".join(
        f"{node['NodeManagerAddress']}: {node['Resources'].get('CPU', 0):g} CPUs, "
        f"{node['Resources'].get('GPU', 0):g} GPUs"
        for node in nodes
    )
    return f"the Ray cluster has {len(nodes)} node{'s' * (len(nodes) != 1)} ({each})"


def _free() -> dict[str, float]:
    return {name: much for name, much in ray.available_resources().items() if name in ("CPU", "GPU")}


def _cure(places: Places) -> str:
    start = f"ask for fewer {places.role}s"
    if places.nodes > 1:
        start = "start more nodes with `ray start --address=HEAD:6379`"
    return f"{start}, or give nodes more with `ray start --num-cpus` and `--num-gpus`"
