"""SIGTERM and Ctrl-C while a run trains: it saves what is whole and leaves; a second one leaves at once.

What a step does before its update can be thrown away, so there the run stops at once; an update is finished first.
"""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(BaseException):
    """The run was asked to stop and has come to a place where it can. No Exception, so that nobody handles it away."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_status(self) -> int:
        """128 + the signal's number, as shells have it: 143 for SIGTERM, 130 for Ctrl-C."""
        return 128 + self.number


class StopSignals:
    """Watches for the signals while it is entered; in another thread than the main one, Python cannot."""

    def __init__(self, doing: str = "saving the last whole step, then leaving") -> None:
        self.doing = doing
        self.asked: int | None = None  # the signal that came
        self._at_once = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, a signal raises Stopped wherever it comes: nothing may happen there that cannot be thrown away."""
        try:
            self._at_once = True
            self.check()  # for one that came before
            yield
        finally:
            self._at_once = False

    def check(self) -> None:
        """Raise Stopped if a signal has come."""
        if self.asked is not None:
            raise Stopped(self.asked)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if self.asked is not None:  # the second one: leave as if nobody watched
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.asked = number
        name = signal.Signals(number).name
        log.warning("%s: %s; another one leaves at once", name, self.doing)
        if self._at_once:
            self._at_once = False
            raise Stopped(number)
