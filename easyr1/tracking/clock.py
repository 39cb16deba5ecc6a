"""How long each phase of a step took, and the speeds that follow. Knows no metric but its own and no device."""

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

BESIDE_THE_STEP = ("validation", "save_checkpoint")  # no training, so no part of step time and throughput
PER_RESPONSE_TOKEN = ("gen", "reward")
PER_TOKEN = ("old", "ref", "values", "adv", "update_critic", "update_actor")


class Clock:
    """The time of one step, from the making of the clock on; each step makes its own.

    Phases may nest; a moment counts for the innermost one, so the phases and the unnamed rest add up to the step.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._now = now
        self._start = self._mark = now()
        self._open: list[str] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside the `with` for `name`, also when it ends by an error; a name may come again."""
        self._charge()
        self._open.append(name)
        self.seconds.setdefault(name, 0.0)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def metrics(
        self,
        num_tokens: int,
        response_tokens: int,
        num_ranks: int = 1,
        device_memory_gb: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Times and speeds of the step up to now, under EasyR1's names.

        num_tokens: tokens of all samples, prompt and answer; response_tokens: those of the answers alone.
        num_ranks: throughput is per rank. device_memory_gb: e.g. {"max_memory_allocated_gb": 11.2}, as the caller
        measured it.
        """
        self._charge()
        beside = sum(self.seconds.get(name, 0.0) for name in BESIDE_THE_STEP)
        step_s = self._mark - self._start - beside
        metrics = {f"timing_s/{name}": seconds for name, seconds in self.seconds.items()}
        metrics["timing_s/step"] = step_s
        for names, tokens in ((PER_RESPONSE_TOKEN, response_tokens), (PER_TOKEN, num_tokens)):
            metrics |= {
                f"timing_per_token_ms/{name}": 1000 * self.seconds[name] / tokens
                for name in names
                if tokens and name in self.seconds
            }
        metrics["perf/total_num_tokens"] = num_tokens
        metrics["perf/time_per_step"] = step_s
        if step_s > 0:
            metrics["perf/throughput"] = num_tokens / (step_s * num_ranks)
        metrics["perf/cpu_memory_used_gb"] = peak_memory_gb()
        return metrics | {f"perf/{name}": value for name, value in (device_memory_gb or {}).items()}

    def _charge(self) -> None:
        """Give the time since the last change of phase to the innermost open one."""
        now = self._now()
        if self._open:
            self.seconds[self._open[-1]] += now - self._mark
        self._mark = now


def peak_memory_gb() -> float:
    """The most memory that this process has held so far, in GiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024**3 if sys.platform == "darwin" else peak / 1024**2  # macOS counts bytes, Linux KiB
