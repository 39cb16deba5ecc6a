"""What a guest in the trainer's process must leave alone: its random numbers, and its work where a signal comes."""

import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from easyr1 import seeding
from easyr1.batch import Prompt

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LARGEST_SEED = 2**63 - 1


def _devices() -> list[int]:
    """The GPU whose random numbers are drawn here."""
    return [torch.cuda.current_device()] if torch.cuda.is_available() else []


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """All global generators are afterwards as they were before: vLLM seeds them when it starts."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(_devices()):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def own_random_numbers(seed: int, first: Prompt) -> Iterator[None]:
    """Numbers that follow from the seed and the first prompt's draw: other ones in each step, the same ones in a
    resumed run and on all ranks that hold one engine together. The trainer's own are not touched."""
    with torch.random.fork_rng(_devices()):
        place = (first.epoch, first.index, first.attempt)
        torch.manual_seed(int(seeding.generator(seed, *place).integers(LARGEST_SEED)))
        yield


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Signals that come inside take effect at the end, for what could not go on if it were torn in two."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before: dict[int, Callable[..., Any] | int | None] = {}
    try:
        for number in SIGNALS:
            before[number] = signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)
