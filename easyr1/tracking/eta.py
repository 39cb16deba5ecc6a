"""How long a run will still take, from how long its last steps, validations and saves took."""

from collections import deque
from collections.abc import Mapping
from statistics import median

RECENT = 20  # of each kind; a median of so many forgets a slow first step and follows answers that grow
KINDS = {
    "perf/time_per_step": "step",
    "timing_s/validation": "validation",
    "timing_s/save_checkpoint": "save",
}


class Eta:
    """Notes times as they are logged, and adds up what is left. Validations and saves count once one was seen."""

    def __init__(self, total_steps: int, val_freq: int, save_freq: int) -> None:
        self._total = total_steps
        self._every = {"validation": val_freq, "save": save_freq}
        self._seconds: dict[str, deque[float]] = {kind: deque(maxlen=RECENT) for kind in KINDS.values()}

    def note(self, metrics: Mapping[str, float]) -> None:
        """Take the times among metrics that are logged."""
        for name, kind in KINDS.items():
            if name in metrics:
                self._seconds[kind].append(metrics[name])

    def seconds(self, step: int) -> float | None:
        """Seconds left after the update of `step`, whose validation and save are still to come; None: not known.

        >>> eta = Eta(total_steps=10, val_freq=5, save_freq=-1)
        >>> eta.note({"perf/time_per_step": 2.0, "timing_s/validation": 7.0})
        >>> eta.seconds(5)
        24.0
        """
        left = {kind: self._due(every, step) for kind, every in self._every.items()} | {"step": self._total - step}
        if not self._seconds["step"]:
            return None
        return sum(left[kind] * median(seconds) for kind, seconds in self._seconds.items() if seconds)

    def _due(self, every: int, step: int) -> int:
        """How often what happens every so many steps, and after the last one, happens from `step` on."""
        if every <= 0:
            return 1
        return self._total // every - (step - 1) // every + (self._total % every > 0)
