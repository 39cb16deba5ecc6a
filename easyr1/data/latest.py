"""The latest results of a function, within a number of bytes; what several threads ask for at once is made once."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Latest(Generic[Made]):
    """`make(key)` for each key that is asked for, kept while the `size` in bytes of all that is kept is in `budget`.

    The one asked for last is kept in any case. What `make` raises is raised to all who wait, and made anew next time.
    """

    def __init__(self, make: Callable[[str], Made], size: Callable[[Made], int], budget: int) -> None:
        self.budget = budget
        self.num_bytes = 0
        self._make = make
        self._size = size
        self._kept: OrderedDict[str, Made] = OrderedDict()
        self._pending: dict[str, Future[Made]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: str) -> bool:
        """Whether it is kept, or being made."""
        with self._lock:
            return key in self._kept or key in self._pending

    def get(self, key: str) -> Made:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            other = self._pending.get(key)
            if other is None:
                own = self._pending[key] = Future()
        if other is not None:
            return other.result()
        try:
            made = self._make(key)
        except BaseException as error:
            with self._lock:
                del self._pending[key]
            own.set_exception(error)
            raise
        self._keep(key, made)
        own.set_result(made)
        return made

    def _keep(self, key: str, made: Made) -> None:
        with self._lock:
            del self._pending[key]
            self._kept[key] = made
            self.num_bytes += self._size(made)
            while self.num_bytes > self.budget and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self.num_bytes -= self._size(dropped)
