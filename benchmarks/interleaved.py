"""Times several ways to do one thing, in turn, so that a drifting machine is fair to all."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping


def medians(ways: Mapping[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
    """Median CPU seconds of each way over `rounds` rounds after one that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for round_number in range(rounds + 1):
        for name, way in ways.items():
            start = time.process_time()
            way()
            if round_number:
                seconds[name].append(time.process_time() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
