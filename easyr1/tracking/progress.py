"""What a long phase is doing, told while it lasts: a bar on a terminal, now and then a line elsewhere.

Knows (done, total, tokens) of a named phase, not what is counted.
"""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich import progress as rich_progress
from rich.console import Console

from easyr1.tracking.screen import say, say_row
from easyr1.tracking.wording import duration

FIRST_WORD_S = 2.0  # a kind of phase that was never seen before speaks so early
LONGEST_SILENCE_S = 300.0


class Tick(Protocol):
    """How far a phase is; total None keeps the one given before, `tokens` are those sampled so far."""

    def __call__(self, done: int, total: int | None = None, /, tokens: int | None = None) -> None: ...


class Progress:
    """Shows phases on the console; nothing of a phase stays on a terminal once it is over.

    Where output is no terminal (a file, a pipe, CI), a phase that lasts prints a line after `interval_s` seconds,
    then ever more rarely, even while nothing is done: silence would look like a hang. The first phase of its kind
    speaks after two seconds. So a start tells what it waits for, and days of steps do not fill the file.
    """

    def __init__(self, console: Console, interval_s: float = 15.0, as_json: bool = False) -> None:
        """`as_json` prints rows even on a quiet console."""
        self._console = console
        self._interval_s = interval_s
        self._as_json = as_json
        self._bars: rich_progress.Progress | None = None
        self._num_open = 0
        self._seen: set[str] = set()

    @contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[Tick]:
        """A callback (done, total) for the phase inside the `with`; phases may nest, inner ones show below."""
        if self._console.quiet and not self._as_json:
            yield lambda done, total=None, tokens=None: None
        elif self._console.is_terminal:
            with self._bar(name, total) as tick:
                yield tick
        else:
            with self._lines(name, total) as tick:
                yield tick

    @contextmanager
    def _bar(self, name: str, total: int | None) -> Iterator[Tick]:
        bars = self._bars or _new_bars(self._console)
        if self._bars is None:
            self._bars = bars
            bars.start()
        state = Heartbeat(name, total)
        task: rich_progress.TaskID = bars.add_task(name, total=total, count="", speed="")
        self._num_open += 1

        def tick(done: int, total: int | None = None, tokens: int | None = None) -> None:
            state.update(done, total, tokens)
            count = f"{done}/{state.total}" if state.total else ""
            bars.update(task, completed=done, total=total, count=count, speed=state.speed(time.monotonic()))

        try:
            yield tick
        finally:
            bars.remove_task(task)
            self._num_open -= 1
            if not self._num_open:
                bars.stop()
                self._bars = None

    @contextmanager
    def _lines(self, name: str, total: int | None) -> Iterator[Tick]:
        state = Heartbeat(name, total)
        over = threading.Event()

        def beat() -> None:
            for silence in self._silences(name):
                if over.wait(silence):
                    return
                self._say(state)

        thread = threading.Thread(target=beat, name=f"progress of {name}", daemon=True)
        thread.start()
        try:
            yield state.update
        finally:
            over.set()
            thread.join()

    def _silences(self, name: str) -> Iterator[float]:
        """Seconds between the lines of a phase."""
        kind = re.sub(r"\d+", "#", name)
        silence = self._interval_s
        if kind not in self._seen:
            yield min(FIRST_WORD_S, silence)
        self._seen.add(kind)
        while True:
            yield silence
            silence = min(2 * silence, max(LONGEST_SILENCE_S, self._interval_s))

    def _say(self, state: "Heartbeat") -> None:
        now = time.monotonic()
        if self._as_json:
            say_row(self._console, kind="progress", **state.fields(now))
        else:
            say(self._console, "", state.line(now))


@dataclass
class Heartbeat:
    """How far one phase is, as a line of text."""

    name: str
    total: int | None = None
    done: int = 0
    tokens: int | None = None
    start: float = field(default_factory=time.monotonic)

    def update(self, done: int, total: int | None = None, tokens: int | None = None) -> None:
        self.done = done
        self.total = self.total if total is None else total
        self.tokens = self.tokens if tokens is None else tokens

    def line(self, now: float) -> str:
        """For example "sampling: 96/384 (25 %) after 15 s, about 45 s left, 1,024 tokens/s"."""
        speed = self.speed(now)
        return self._so_far(now - self.start) + (f", {speed}" if speed else "")

    def speed(self, now: float) -> str:
        """Tokens a second since the phase began; empty where tokens are not counted."""
        return f"{self.tokens / max(now - self.start, 1e-3):,.0f} tokens/s" if self.tokens else ""

    def fields(self, now: float) -> dict[str, object]:
        """The same for programs."""
        found = {"phase": self.name, "done": self.done, "total": self.total, "tokens": self.tokens}
        return {**found, "seconds": round(now - self.start, 1)}

    def _so_far(self, seconds: float) -> str:
        after = f"after {duration(seconds)}"
        if not self.total:
            return f"{self.name}: {self.done} {after}" if self.done else f"{self.name}: {after}"
        so_far = f"{self.name}: {self.done}/{self.total} ({100 * self.done // self.total} %) {after}"
        if not 0 < self.done < self.total:
            return so_far
        return f"{so_far}, about {duration(seconds * (self.total - self.done) / self.done)} left"


def _new_bars(console: Console) -> rich_progress.Progress:
    return rich_progress.Progress(
        rich_progress.SpinnerColumn(),
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.TextColumn("{task.fields[count]}"),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("{task.fields[speed]}"),
        console=console,
        transient=True,
    )
