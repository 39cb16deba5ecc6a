"""One rank: an actor of Ray that holds the rank's engines, computes in one thread and answers pulses in another.

Nothing heavy is imported before the variables of the environment are set.
"""

import faulthandler
import inspect
import logging
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import ray

from easyr1.cluster.environment import threads
from easyr1.cluster.parcel import Beat, Outcome, failed, pack, unpack

# What a rank waits for others is bounded by the driver's watch, which can name the rank that is late.
COLLECTIVE_TIMEOUT = timedelta(days=7)
MEETING_TIMEOUT = timedelta(minutes=10)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Seat:
    """A rank's place, and what it takes over from the driver."""

    rank: int
    world: int
    ranks_per_node: int
    device: str  # "cpu" or "cuda"
    folder: str  # of the run
    environment: Mapping[str, str] = field(repr=False)
    path: tuple[str, ...]  # where the driver's Python looks for modules
    directory: str  # where the driver works

    @property
    def log(self) -> Path:
        return Path(self.folder, "logs", f"rank_{self.rank}.log")


@dataclass(frozen=True)
class Identity:
    """Where a rank runs."""

    rank: int
    node: str
    machine: str  # equal for processes that can send signals to one another
    pid: int
    address: str

    @property
    def name(self) -> str:
        return f"rank {self.rank}"


class Dropped(BaseException):
    """Ends a call whose results nobody waits for any more."""


class Heard(logging.Handler):
    """Remembers warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class Worker:
    """The actor. Calls come one at a time; `pulse`, `stack` and `drop` answer meanwhile.

    An engine may have `droppable`, names of its methods that need no other rank: they may end at any of their reports
    of progress, on some ranks and not on others.
    """

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.engines: dict[str, Any] = {"rank": self}
        self.beat = Beat()
        self.thread = 0
        self.dropped = 0  # the last call that nobody waits for
        self.may_drop = False
        self.store: Any = None
        take_over(seat)

    def identity(self) -> Identity:
        address = ray.util.get_node_ip_address()
        return Identity(self.seat.rank, socket.gethostname(), machine(), os.getpid(), address)

    def call(self, number: int, method: str, arguments: bytes, share: bytes | None, wanted: bool) -> bytes:
        """A packed Outcome, with the value where it is wanted; raises nothing."""
        self.thread = threading.get_ident()
        self._happened(call=number, method=method, done=0, all=0, tokens=0)
        try:
            engine, _, name = method.partition(".")
            given = unpack(arguments) if share is None else (unpack(share), *unpack(arguments))
            function = getattr(self.engines[engine], name)
            self.may_drop = name in getattr(self.engines[engine], "droppable", ())
            # Also where nobody wants to see it: whoever makes progress does not hang.
            reports = "progress" in inspect.signature(function).parameters
            value = function(*given, **{"progress": self._tick} if reports else {})
            return pack(Outcome(value if wanted else None, self.beat))
        except Dropped as dropped:
            return pack(failed(dropped, self.beat))
        except BaseException as error:
            log.error("%s failed", method, exc_info=error)
            return pack(failed(error, self.beat))
        finally:
            self._happened(method="")

    @ray.method(concurrency_group="pulse", enable_task_events=False)
    def pulse(self) -> Beat:
        return self.beat

    @ray.method(concurrency_group="pulse")
    def drop(self, number: int) -> None:
        """Nobody waits for this call any more."""
        self.dropped = number

    @ray.method(concurrency_group="pulse")
    def stack(self) -> str:
        """Where the computing thread is."""
        frame = sys._current_frames().get(self.thread)
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    def meet(self, address: str) -> int:
        """Rank 0 opens the meeting place of all ranks. Returns its port, which the system picked; 0 on the others."""
        if self.seat.rank:
            return 0
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        self.store = TCPStore(address, 0, self.seat.world, True, MEETING_TIMEOUT, wait_for_workers=False)
        return self.store.port

    def join(self, address: str, port: int) -> None:
        """Join the process group; all ranks call it."""
        import torch
        import torch.distributed as dist
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        seat = self.seat
        if self.store is None:
            self.store = TCPStore(address, port, seat.world, False, MEETING_TIMEOUT, wait_for_workers=False)
        backend = "gloo"
        if seat.device == "cuda":
            # Ray shows a rank its own GPU only, unless it was told not to.
            torch.cuda.set_device(0 if torch.cuda.device_count() == 1 else int(ray.get_gpu_ids()[0]))
            backend = "cpu:gloo,cuda:nccl"
        dist.init_process_group(
            backend, store=self.store, rank=seat.rank, world_size=seat.world, timeout=COLLECTIVE_TIMEOUT
        )

    def build(self, make: bytes) -> list[str]:
        """Build the engines. Returns what this package warned of meanwhile, which the log holds, too."""
        heard = Heard()
        logging.getLogger("easyr1").addHandler(heard)
        try:
            self.engines.update(pickle.loads(make)())
        finally:
            logging.getLogger("easyr1").removeHandler(heard)
        return heard.messages

    def leave(self) -> None:
        """Close what wants to be closed."""
        import torch.distributed as dist

        for name, engine in self.engines.items():
            if name != "rank" and hasattr(engine, "close"):
                engine.close()
        if dist.is_initialized():
            dist.destroy_process_group()

    def write_token(self, file: str, token: str) -> str:
        """Rank 0 writes the token, so that whoever sees the file sees all of it. Returns what went wrong, or ""."""
        if self.seat.rank:
            return ""
        path = Path(file)
        new = path.with_name(f"{path.name}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(new, "w", encoding="utf-8") as written:
                written.write(token)
                written.flush()
                os.fsync(written.fileno())
            os.replace(new, path)
        except OSError as error:
            return str(error)
        return ""

    def read_token(self, file: str, token: str, wait_s: float) -> str:
        """What keeps this rank from reading the token, or ""; network folders show new files a moment later."""
        end = time.monotonic() + wait_s
        while True:
            try:
                found = Path(file).read_text(encoding="utf-8")
                return "" if found == token else f"{file} holds something else"
            except OSError as error:
                if time.monotonic() > end:
                    return str(error)
            time.sleep(0.1)

    def _tick(self, done: int, all: int, tokens: int = 0) -> None:
        self._happened(done=done, all=all, tokens=tokens)
        if self.may_drop and self.dropped == self.beat.call:
            raise Dropped

    def _happened(self, **changes: Any) -> None:
        self.beat = Beat(**{**vars(self.beat), **changes, "count": self.beat.count + 1})


def take_over(seat: Seat) -> None:
    """Environment, paths, signals and output of this process, before anything heavy is imported."""
    os.environ.update(seat.environment)
    if "OMP_NUM_THREADS" not in seat.environment:  # Ray sets 1
        os.environ["OMP_NUM_THREADS"] = str(threads(seat.ranks_per_node))
    sys.path.extend(entry for entry in seat.path if entry not in sys.path)
    if os.path.isdir(seat.directory):
        os.chdir(seat.directory)
    leave_terminal()
    redirect(seat.log)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", force=True)
    sys.stderr.write(f"rank {seat.rank} of {seat.world} on {socket.gethostname()}, pid {os.getpid()}\n")
    faulthandler.enable(2)


def leave_terminal() -> None:
    """Ctrl-C and SIGTERM are for the driver, which lets ranks end what they are at."""
    with suppress(OSError):  # where it leads a session, and so a group, already
        os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def redirect(log: Path) -> None:
    """Send all output, that of libraries in C too, to the rank's log; leave it to Ray where that cannot be opened."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:  # said when the token cannot be read
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    sys.stdout, sys.stderr = _text(1), _text(2)


def _text(descriptor: int) -> TextIO:
    """A stream of lines."""
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)


def machine() -> str:
    """Equal in processes of one machine (and container), which can send signals to one another."""
    parts = [socket.gethostname()]
    boot = Path("/proc/sys/kernel/random/boot_id")
    parts.append(boot.read_text().strip() if boot.exists() else "")
    parts.append(os.readlink("/proc/self/ns/pid") if os.path.exists("/proc/self/ns/pid") else "")
    return " ".join(parts)
