"""Waiting for ranks: results, failures, deaths, and ranks that make no progress. The first failure ends all ranks.

Each rank answers pulses from a thread of its own; what it says grows with everything it does. Knows nothing of what is
computed.
"""

import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
import ray.exceptions

from easyr1.cluster.failure import RankError
from easyr1.cluster.group import Call, Progress
from easyr1.cluster.parcel import Beat, Outcome, unpack
from easyr1.cluster.worker import Identity, machine

START_TIMEOUT_S = 300.0  # for the processes of all ranks, and for each phase of the start; models may take longer
POLL_S = 0.5
SILENT_S = 5.0  # a rank that owes an answer for so long is one that cannot give it
GRACE_S = 3.0  # in which other ranks tell what it was that made the first one fail
END_TIMEOUT_S = 5.0  # until killed processes are gone
LOG_LINES = 20  # of a dead rank, in its error
NETWORK = (
    "ranks on several machines must reach one another by network: GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the "
    "interface (docs/distributed.md)"
)


@dataclass
class Rank:
    """A rank as the driver sees it."""

    actor: Any
    log: Path
    identity: Identity
    near: bool  # whether this process sees that one, and may end it
    beat: Beat = field(default_factory=Beat)
    pulse: "Future[Beat] | None" = None  # asked, not yet answered
    asked: float = 0.0  # when the last pulse was asked
    progressed: float = 0.0  # when what it says last changed

    def __str__(self) -> str:
        one = self.identity
        return f"{one.name} (node {one.node} {one.address}, pid {one.pid})"

    def poll(self, now: float) -> None:
        """Take the answer to the last pulse if it is there, and ask anew."""
        if self.pulse is not None and self.pulse.done():
            if self.pulse.exception() is None:
                beat = self.pulse.result()
                if beat.count != self.beat.count:
                    self.progressed = now
                self.beat = beat
            self.pulse = None
        if self.pulse is None:
            self.pulse, self.asked = self.actor.pulse.remote().future(), now

    @property
    def is_gone(self) -> bool:
        """Whether its process is known to have ended; of other machines only Ray knows."""
        return self.near and not alive(self.identity.pid)

    def silent_s(self, now: float) -> float:
        """How long it owes an answer."""
        return 0.0 if self.pulse is None or self.pulse.done() else now - self.asked


@dataclass
class Watch:
    """All ranks, and what went wrong with them."""

    ranks: list[Rank]
    hang_timeout_s: float
    failure: BaseException | None = None
    start_s: float | None = START_TIMEOUT_S  # in place of hang_timeout_s while ranks start
    looked: float = 0.0  # when the ranks were last asked

    @classmethod
    def over(cls, actors: Sequence[Any], logs: Sequence[Path], hang_timeout_s: float) -> "Watch":
        """Waits until the processes of all ranks have started."""
        futures: list[Future[Identity]] = [actor.identity.remote().future() for actor in actors]
        _, late = wait_for(futures, START_TIMEOUT_S)
        if late:
            what = f"{len(late)} of {len(actors)} ranks did not start within {START_TIMEOUT_S:g} s"
            raise RankError(f"{what}; Ray's logs in /tmp/ray/session_latest/logs of their machines may say why")
        for number, future in enumerate(futures):
            if (error := future.exception()) is not None:
                raise RankError(f"rank {number} did not start: {error}; log: {logs[number]}")
        found = [future.result() for future in futures]
        here = machine()
        near = [one.machine == here and alive(one.pid) for one in found]
        return cls([Rank(*one) for one in zip(actors, logs, found, near, strict=True)], hang_timeout_s)

    @property
    def patience_s(self) -> float:
        return self.hang_timeout_s if self.start_s is None else self.start_s

    def check(self) -> None:
        """Raise what went wrong before, or since the last call."""
        self._raise_again()
        if dead := [index for index, rank in enumerate(self.ranks) if rank.is_gone]:
            self._fail(RankError(self._died(dead, "between two calls")))

    def _raise_again(self) -> None:
        if self.failure is not None:
            raise self.failure

    def drop(self, number: int) -> None:
        """Nobody waits for this call any more."""
        for rank in self.ranks:
            rank.actor.drop.remote(number)

    def wait(
        self, number: int, method: str, refs: Sequence[Any], each: int, progress: Progress | None = None
    ) -> list[Any]:
        """The value of each rank. `progress` counts the first of every `each` ranks."""
        self._raise_again()  # who died since the call went out died in it
        futures: list[Future[bytes]] = [ref.future() for ref in refs]
        outcomes: dict[int, Outcome] = {}
        self.looked = time.monotonic()
        for rank in self.ranks:
            rank.progressed = self.looked
        told = (0, 0)
        try:
            while len(outcomes) < len(futures):
                self._collect(method, futures, outcomes, POLL_S)
                self._look(method, outcomes)
                told = self._tell(number, outcomes, each, progress, told)
        except BaseException:
            if self.failure is None:  # a signal: who catches it may want the ranks for something else
                self.drop(number)
            raise
        return [outcomes[index].value for index in range(len(futures))]

    def _look(self, method: str, outcomes: dict[int, Outcome]) -> None:
        """Ask those that still compute, and end the run where one makes no progress."""
        now = time.monotonic()
        running = [rank for index, rank in enumerate(self.ranks) if index not in outcomes]
        for rank in running:
            rank.poll(now)
        if now - self.looked > 2 * SILENT_S:  # this process itself stood still
            for rank in running:
                rank.progressed += now - self.looked
        self.looked = now
        late = [rank for rank in running if now - rank.progressed > self.patience_s]
        # One that waits for others makes no progress; those that it waits for may.
        if late and (len(late) == len(running) or any(rank.silent_s(now) > self.patience_s for rank in late)):
            self._fail(RankError(self._hanging(late, method, now)))

    def _collect(
        self, method: str, futures: Sequence["Future[bytes]"], outcomes: dict[int, Outcome], timeout_s: float
    ) -> None:
        """Take what has come into `outcomes`; ends the run where that is a failure."""
        waiting = [future for index, future in enumerate(futures) if index not in outcomes]
        wait_for(waiting, timeout_s, FIRST_COMPLETED)
        dead = self._take(futures, outcomes)
        failed = [index for index, outcome in outcomes.items() if outcome.trace]
        if not (dead or failed):
            return
        end = time.monotonic() + GRACE_S
        while not dead and len(outcomes) < len(futures) and time.monotonic() < end:
            if any(outcomes[index].for_user for index in failed):
                break
            wait_for([one for index, one in enumerate(futures) if index not in outcomes], 0.2, FIRST_COMPLETED)
            dead = self._take(futures, outcomes)
        if dead:
            self._fail(RankError(self._died(dead, f"in {method}", futures[dead[0]])))
        first = min(failed, key=lambda index: outcomes[index].moment)
        self._fail(outcomes[first].for_user or RankError(self._raised(first, outcomes[first], method)))

    def _take(self, futures: Sequence["Future[bytes]"], outcomes: dict[int, Outcome]) -> list[int]:
        """Unpack what has come; the ranks that died."""
        dead = []
        for index, future in enumerate(futures):
            if index in outcomes:
                continue
            if not future.done():
                # Ray does not see it while a process that the rank has forked holds its connections open.
                if self.ranks[index].is_gone and not future.done():
                    dead.append(index)
            elif future.exception() is not None:
                dead.append(index)
            else:
                outcomes[index] = unpack(future.result())
        return dead

    def _tell(
        self,
        number: int,
        outcomes: dict[int, Outcome],
        each: int,
        progress: Progress | None,
        told: tuple[int, int],
    ) -> tuple[int, int]:
        """Report what replicas have done and have to do, once all of them know, where that has changed."""
        done = all = tokens = 0
        for index in range(0, len(self.ranks), each):
            beat = outcomes[index].beat if index in outcomes else self.ranks[index].beat
            if index not in outcomes and (beat.call != number or not beat.all):
                return told
            done, all, tokens = done + beat.done, all + beat.all, tokens + beat.tokens
        if progress is not None and (done, all) != told:
            progress(done, all, *([tokens] if tokens else []))
        return done, all

    def _raised(self, index: int, outcome: Outcome, method: str) -> str:
        rank = self.ranks[index]
        return f"{rank} failed in {method}\n{outcome.trace.rstrip()}\nlog: {rank.log}"

    def _died(self, dead: Sequence[int], when: str, future: "Future[bytes] | None" = None) -> str:
        names = " and ".join(str(self.ranks[index]) for index in dead)
        rank = self.ranks[dead[0]]
        error = future.exception() if future is not None and future.done() else None
        ray_says = f"Ray says: {' '.join(str(error).split())}\n" if error is not None else ""
        return (
            f"{names} died {when}: killed from outside (perhaps for memory: see the system's log) or crashed\n"
            f"{ray_says}the last lines of its log, {rank.log}:\n{_last_lines(rank)}"
        )

    def _hanging(self, late: Sequence[Rank], method: str, now: float) -> str:
        """The ranks that do not even answer are the cause where there are any: the others may be waiting for them."""
        silent = [rank for rank in late if rank.silent_s(now) > min(self.patience_s / 2, SILENT_S)]
        named = silent or late
        names = " and ".join(str(rank) for rank in named)
        what = "no answer" if silent else f"{late[0].identity.name} stands at\n{self._stack(late[0])}"
        limit = f"{self.patience_s:g} s" if self.start_s else f"trainer.hang_timeout_s={self.hang_timeout_s:g} s"
        hint = f"\n{NETWORK}" if method == "rank.join" else ""
        return (
            f"{names} hang{'s' * (len(named) == 1)} in {method}: no progress for {limit}, {what}{hint}\n"
            f"log: {named[0].log}"
        )

    def _stack(self, rank: Rank) -> str:
        try:
            return str(rank.actor.stack.remote().future().result(timeout=2)).rstrip()
        except (ray.exceptions.RayError, TimeoutError):  # only a help
            return "(unknown)"

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self.end_all()
        raise error

    def release(self, leaving: Call, timeout_s: float) -> None:
        """Let ranks end by themselves, if they do so soon; all that counted was done."""
        self.hang_timeout_s = timeout_s
        with suppress(RankError):
            leaving.results()
            for rank in self.ranks:
                rank.actor.__ray_terminate__.remote()
            self._await_end()

    def end_all(self) -> None:
        """Kill all ranks and wait, not for long, until they are gone."""
        for pid in self._near():
            kill(pid)
        thread = threading.Thread(target=self._kill_by_ray, daemon=True)  # a cluster that is gone may not answer
        thread.start()
        thread.join(END_TIMEOUT_S)
        self._await_end()

    def _kill_by_ray(self) -> None:
        """On other machines; Ray kills a process there that does not end by itself within about 5 s."""
        for rank in self.ranks:
            ray.kill(rank.actor)

    def _await_end(self) -> None:
        end = time.monotonic() + END_TIMEOUT_S
        while any(alive(pid) for pid in self._near()) and time.monotonic() < end:
            time.sleep(0.02)

    def _near(self) -> list[int]:
        """The processes of ranks on this machine."""
        return [rank.identity.pid for rank in self.ranks if rank.near]


def kill(pid: int) -> None:
    """Kill a process and those it started, its group; what is gone already, or leads none, is passed over."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent to take note does not."""
    try:
        if Path("/proc/self/stat").exists():
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        os.kill(pid, 0)
    except (ProcessLookupError, FileNotFoundError):
        return False
    except PermissionError:  # the number belongs to another user's process by now
        return False
    return True


def _last_lines(rank: Rank) -> str:
    """The end of what the rank wrote, without what earlier runs did."""
    try:
        text = rank.log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"({error})"
    lines = text.rpartition(f", pid {rank.identity.pid}\n")[2].splitlines()
    return "\n".join(lines[-LOG_LINES:]) or "(none)"
