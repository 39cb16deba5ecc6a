"""Calls that may hang, done in their order by a thread of their own: a server that is slow holds up no training."""

import queue
import threading
from collections.abc import Callable

from easyr1.tracking.services import outcome

MAX_WAITING = 10_000  # calls
CLOSE_S = 60.0


class Sender:
    """What a call raised is raised by the next one, or by `close`. The thread ends with `close`, at the latest with
    the process.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name=f"sender to {name}", daemon=True)
        self._thread.start()

    def do(self, call: Callable[[], object]) -> None:
        """Have it called soon. Raises what an earlier call raised, and TimeoutError where too many wait already."""
        if self._calls.qsize() >= MAX_WAITING:
            raise TimeoutError(f"{MAX_WAITING} calls wait for an answer; this one is dropped")
        self._calls.put(call)
        self._raise()

    def close(self, last: Callable[[], object]) -> None:
        """Wait for the calls that are left and a last one; TimeoutError where that takes too long."""
        self._calls.put(last)
        self._calls.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            raise TimeoutError(f"not everything was taken within {CLOSE_S:g} s")
        self._raise()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            _, error = outcome(call)
            self._error = error or self._error
