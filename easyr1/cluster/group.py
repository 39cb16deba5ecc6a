"""The ranks of a run as the trainer sees them: engines by name, called on all ranks or with a share for each replica.

An engine's method is named "engine.method", as "actor.update". Every rank holds the same engines; a replica is a set
of ranks that get the same share (see models/ranks.py). Knows neither engines nor what is computed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Progress = Callable[..., None]  # (done, all); of sampling also the tokens drawn so far
Make = Callable[[], Mapping[str, Any]]  # builds the engines of a rank, in that rank, once its process group is there


class Call(Protocol):
    """A call that is on its way."""

    def results(self, progress: Progress | None = None) -> list[Any]:
        """What it returned, in order; waits for it. Raises what went wrong on a rank."""
        ...


class WorkerGroup(Protocol):
    """One rank in this process (LocalGroup), or many in their own (RayGroup)."""

    @property
    def num_replicas(self) -> int: ...

    def start_all(self, method: str, *arguments: Any) -> Call:
        """Call on every rank; one result for each rank."""
        ...

    def start_sharded(
        self, method: str, shares: Sequence[Any], *arguments: Any, reports_progress: bool = False
    ) -> Call:
        """Call with one share for each replica before the other arguments; one result for each replica.

        A method that `reports_progress` takes a callable for it under that name, `progress`.
        """
        ...

    def check(self) -> None:
        """Raise what is wrong with a rank, as far as it is known while no call is on its way."""
        ...

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        """The results of `start_all`."""
        ...

    def call_sharded(
        self, method: str, shares: Sequence[Any], *arguments: Any, progress: Progress | None = None
    ) -> list[Any]:
        """The results of `start_sharded`; with `progress` the method reports it, added up over replicas."""
        ...


@dataclass
class LocalGroup:
    """One rank, in this process: engines by name."""

    engines: Mapping[str, Any]
    num_replicas: int = 1

    def start_all(self, method: str, *arguments: Any) -> Call:
        return _Local(lambda _: self._method(method)(*arguments))

    def start_sharded(
        self, method: str, shares: Sequence[Any], *arguments: Any, reports_progress: bool = False
    ) -> Call:
        (share,) = shares

        def call(progress: Progress | None) -> Any:
            keywords = {"progress": progress} if reports_progress else {}
            return self._method(method)(share, *arguments, **keywords)

        return _Local(call)

    def check(self) -> None:
        """Who asks is here."""

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        return self.start_all(method, *arguments).results()

    def call_sharded(
        self, method: str, shares: Sequence[Any], *arguments: Any, progress: Progress | None = None
    ) -> list[Any]:
        call = self.start_sharded(method, shares, *arguments, reports_progress=progress is not None)
        return call.results(progress)

    def _method(self, method: str) -> Callable[..., Any]:
        engine, _, name = method.partition(".")
        return getattr(self.engines[engine], name)


@dataclass
class _Local:
    """A call in this process, made when its results are asked for."""

    call: Callable[[Progress | None], Any]

    def results(self, progress: Progress | None = None) -> list[Any]:
        return [self.call(progress)]
