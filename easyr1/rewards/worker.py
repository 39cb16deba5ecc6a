"""The trainer's end of the reward process: starts it, sends samples, waits with a time limit, ends it.

The process is a fresh interpreter of its own, started by subprocess and not by multiprocessing, which would run the
parent's main module in it again: that loads torch, and breaks in scripts without a main guard and in notebooks. It
leads a session of its own, so Ctrl-C reaches only the parent, and ending it ends the children it may have.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from easyr1.errors import RewardError
from easyr1.rewards.process import Description, Failure

# Runs before anything of ours can be imported, so it carries the parent's search path along.
BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from easyr1.rewards.process import serve; serve(int(sys.argv[1]), int(sys.argv[2]))"
)
IMPORT_TIMEOUT_S = 600.0  # a file may load a judge model while it is imported
TICK_S = 0.1  # between looks at whether the process still lives
MEANWHILE_S = 1.0  # between calls of `meanwhile`
CLOSE_PATIENCE_S = 2.0
NUM_NAMES_SHOWN = 3


@dataclass(frozen=True)
class RewardSpec:
    """A reward function that was found and checked."""

    path: Path
    function: str
    name: str  # REWARD_NAME, or the file's name
    kind: Literal["batch", "sequential"]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.path}:{self.function}"


class TimedOutError(Exception):
    """No reply within the limit; the process was killed."""


class DiedError(Exception):
    """The process ended by itself; the message says how."""


class RewardProcess:
    """One running reward process; it ends with this object, with `close`, and with this program."""

    def __init__(self, path: Path, function: str) -> None:
        self.connection, theirs = Pipe()
        lifeline, self._our_lifeline_fd = os.pipe()
        self.popen = subprocess.Popen(
            [sys.executable, "-c", BOOT, str(theirs.fileno()), str(lifeline), json.dumps(sys.path)],
            pass_fds=(theirs.fileno(), lifeline),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        os.close(lifeline)
        self._end = weakref.finalize(self, end, self.popen, self.connection, self._our_lifeline_fd, os.getpid())
        self.send((str(path), function))

    def send(self, request: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `receive` tells what happened
            self.connection.send(request)

    def receive(self, timeout_s: float | None, meanwhile: Callable[[], None] = lambda: None) -> Any:
        """The next reply; TimedOutError after `timeout_s`, process killed; DiedError if it ended by itself.

        `meanwhile` is called between looks.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with contextlib.suppress(EOFError, ConnectionResetError):
            while not self.connection.poll(TICK_S):
                if self.popen.poll() is not None:
                    raise DiedError(describe_exit(self.popen.returncode))
                if deadline is not None and time.monotonic() > deadline:
                    self.close(patience_s=0.0)
                    raise TimedOutError
                meanwhile()
            return self.connection.recv()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(CLOSE_PATIENCE_S)
        raise DiedError(describe_exit(self.popen.returncode))

    @property
    def is_closed(self) -> bool:
        return not self._end.alive

    def close(self, patience_s: float = CLOSE_PATIENCE_S) -> None:
        """End the process; it gets `patience_s` to leave by itself. May be called twice."""
        if self._end.detach():
            end(self.popen, self.connection, self._our_lifeline_fd, os.getpid(), patience_s)


def end(
    popen: subprocess.Popen,
    connection: Connection,
    lifeline_fd: int,
    owner_pid: int,
    patience_s: float = CLOSE_PATIENCE_S,
) -> None:
    """Close the connection, wait, then kill the process and all it started. Does nothing in a forked copy of us."""
    if os.getpid() != owner_pid:
        return
    connection.close()
    try:
        popen.wait(patience_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(popen.pid, signal.SIGKILL)
        popen.wait()
    finally:
        os.close(lifeline_fd)


def describe_exit(returncode: int | None) -> str:
    """How a process ended, in words.

    >>> describe_exit(3)
    'ended by itself with exit code 3'
    """
    if returncode is None:
        return "closed its connection"
    if returncode >= 0:
        return f"ended by itself with exit code {returncode}"
    name = signal.Signals(-returncode).name
    hint = "; SIGKILL often means that the machine ran out of memory" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"


class RewardWorker:
    """Scores samples with the user's reward function in one long-lived process.

    `timeout_s` limits one call of the function: the whole batch for a batch function, one sample for a sequential one;
    None waits forever. `meanwhile` is called about once a second while scores are waited for, and ends the wait by
    raising. After any RewardError, and whatever `meanwhile` raises, the worker is closed.
    """

    def __init__(
        self, spec: RewardSpec, timeout_s: float | None = 300.0, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        self.spec = spec
        self.timeout_s = timeout_s
        self.meanwhile = meanwhile
        self._looked = time.monotonic()  # when `meanwhile` was last called
        self._process = RewardProcess(spec.path, spec.function)
        try:
            reply = receive_description(self._process, str(spec.path))
        except RewardError:
            self.close()
            raise
        if not reply.is_function:
            self.close()
            raise RewardError(f"{spec.path} has no function {spec.function!r} any more; was the file changed?")

    def score(
        self,
        inputs: Sequence[dict[str, Any]],
        names: Sequence[str],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[dict[str, float]]:
        """The scores of each input, in order; `names` say in errors which rows they come from.

        A batch function gets all inputs in one call. A RewardError tells function, sample, row, what happened and the
        cure.
        """
        if not inputs:
            return []
        if self._process.is_closed:
            raise RewardError(f"{self.spec}: the reward process is closed; make a new RewardWorker")
        try:
            return self._score(inputs, names, progress)
        except BaseException:  # also Ctrl-C: replies still on their way would be taken for those of the next call
            self._process.close(patience_s=0.0)
            raise

    def _score(
        self, inputs: Sequence[dict[str, Any]], names: Sequence[str], progress: Callable[[int, int], None] | None
    ) -> list[dict[str, float]]:
        one_by_one = self.spec.kind == "sequential"
        self._process.send((list(inputs), dict(self.spec.kwargs), one_by_one))
        scores: list[dict[str, float]] = []
        while len(scores) < len(inputs):
            running = range(len(scores), len(scores) + 1 if one_by_one else len(inputs))
            reply = self._reply(running, names)
            scores += [reply] if one_by_one else reply
            self._look()  # replies may follow one another too closely for a look between them
            if progress is not None:
                progress(len(scores), len(inputs))
        return scores

    def _reply(self, running: range, names: Sequence[str]) -> Any:
        """The reply for the samples that are `running`."""
        try:
            reply = self._process.receive(self.timeout_s, self._look)
        except TimedOutError:
            reply = Failure(
                f"gave no answer within {self.timeout_s:g} s (worker.reward.timeout_s), so its process was ended; "
                "raise that limit, or look for an endless loop or a regular expression that backtracks"
            )
        except DiedError as died:
            reply = Failure(f"was running when its process {died}; look for os._exit, a crash or too little memory")
        if isinstance(reply, Failure):
            samples = running if reply.index is None else range(reply.index, reply.index + 1)
            raise RewardError(f"{self.spec}, {describe_samples(samples, names)}: {reply.message}")
        return reply

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked >= MEANWHILE_S:
            self._looked = now
            self.meanwhile()

    def close(self) -> None:
        """End the process. May be called twice."""
        self._process.close()

    def __enter__(self) -> "RewardWorker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def receive_description(process: RewardProcess, file: str) -> Description:
    """What the process says about the file that it has imported; RewardError if it could not."""
    try:
        reply = process.receive(IMPORT_TIMEOUT_S)
    except TimedOutError:
        raise RewardError(f"{file}: importing it took more than {IMPORT_TIMEOUT_S:g} s; do less at import") from None
    except DiedError as died:
        raise RewardError(f"{file}: while it was imported the process {died}") from None
    if isinstance(reply, Failure):
        raise RewardError(f"{file} {reply.message}")
    return reply


def describe_samples(samples: range, names: Sequence[str]) -> str:
    """Which samples, and which rows they come from.

    >>> describe_samples(range(2, 3), ["row 0", "row 0", "row 7"])
    'sample 2 (row 7)'
    >>> describe_samples(range(0, 5), ["row 0", "row 0", "row 7", "row 8", "row 9"])
    'samples 0 to 4 (row 0, row 7, row 8, ...)'
    """
    rows = list(dict.fromkeys(names[index] for index in samples))
    shown = ", ".join(rows[:NUM_NAMES_SHOWN]) + (", ..." if len(rows) > NUM_NAMES_SHOWN else "")
    if len(samples) == 1:
        return f"sample {samples[0]} ({shown})"
    return f"samples {samples[0]} to {samples[-1]} ({shown})"
