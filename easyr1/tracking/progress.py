"""What a long phase is doing, told while it lasts: a bar on a terminal, now and then a line elsewhere.

Knows (done, total) of a named phase, not what is counted.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich import progress as rich_progress
from rich.console import Console
from rich.text import Text

Tick = Callable[[int, int | None], None]  # (done, total); total None keeps the one given before


class Progress:
    """Shows phases on the console; nothing of a phase stays on a terminal once it is over.

    Where output is no terminal (a file, a pipe, CI), a phase prints a line every `interval_s` seconds, even
    while nothing is done: silence would look like a hang. Shorter phases print nothing there.
    """

    def __init__(self, console: Console, interval_s: float = 15.0) -> None:
        self._console = console
        self._interval_s = interval_s
        self._bars: rich_progress.Progress | None = None
        self._num_open = 0

    @contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[Tick]:
        """A callback (done, total) for the phase inside the `with`; phases may nest, inner ones show below."""
        if self._console.is_terminal:
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
        task: rich_progress.TaskID = bars.add_task(name, total=total)
        self._num_open += 1
        try:
            yield lambda done, total=None: bars.update(task, completed=done, total=total)
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
            while not over.wait(self._interval_s):
                self._console.print(Text(state.line(time.monotonic())), soft_wrap=True, highlight=False)

        thread = threading.Thread(target=beat, name=f"progress of {name}", daemon=True)
        thread.start()
        try:
            yield state.update
        finally:
            over.set()
            thread.join()


@dataclass
class Heartbeat:
    """How far one phase is, as a line of text."""

    name: str
    total: int | None = None
    done: int = 0
    start: float = field(default_factory=time.monotonic)

    def update(self, done: int, total: int | None = None) -> None:
        self.done = done
        self.total = self.total if total is None else total

    def line(self, now: float) -> str:
        """For example "sampling: 96/384 (25 %) after 15 s, about 45 s left"."""
        seconds = now - self.start
        after = f"after {seconds:.0f} s"
        if not self.total:
            return f"{self.name}: {self.done} {after}" if self.done else f"{self.name}: {after}"
        so_far = f"{self.name}: {self.done}/{self.total} ({100 * self.done // self.total} %) {after}"
        if not 0 < self.done < self.total:
            return so_far
        return f"{so_far}, about {seconds * (self.total - self.done) / self.done:.0f} s left"


def _new_bars(console: Console) -> rich_progress.Progress:
    return rich_progress.Progress(
        rich_progress.SpinnerColumn(),
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TimeRemainingColumn(),
        console=console,
        transient=True,
    )
