"""What a reward function must return, checked value by value; every complaint says what came and what to do.

Knows nothing of processes or files, and imports nothing heavy: it runs beside the user's function.
"""

import math
import reprlib
from typing import Any

EXAMPLE = '{"overall": 1.0, "accuracy": 1.0}'


class Breach(ValueError):
    """A return value outside the contract; `index` is the sample it belongs to, None if it concerns the whole list."""

    def __init__(self, index: int | None, message: str) -> None:
        super().__init__(message)
        self.index = index


def check_batch(returned: Any, num_inputs: int) -> list[dict[str, float]]:
    """The scores of a batch function, one dict of plain floats per input, or Breach."""
    if not isinstance(returned, list | tuple):
        raise Breach(
            None,
            f"returned {_kind(returned)} instead of a list with one dict per sample; return a list such as "
            f'[{EXAMPLE}, ...], or write REWARD_TYPE = "sequential" if the function scores one sample at a time',
        )
    if len(returned) != num_inputs:
        raise Breach(
            None,
            f"returned {len(returned)} scores for {num_inputs} samples; return one per sample, in the same order",
        )
    return [check_scores(scores, index) for index, scores in enumerate(returned)]


def check_scores(returned: Any, index: int) -> dict[str, float]:
    """The scores of one sample as plain floats, or Breach."""
    if not isinstance(returned, dict):
        raise Breach(index, f"returned {_kind(returned)} instead of a dict; return for example {EXAMPLE}")
    if "overall" not in returned:
        keys = ", ".join(map(repr, returned)) or "none"
        raise Breach(index, f'returned no "overall" (keys: {keys}); "overall" is the score that training uses, add it')
    return {_name(key, index): _number(value, key, index) for key, value in returned.items()}


def _name(key: Any, index: int) -> str:
    if not isinstance(key, str):
        raise Breach(index, f"returned the key {reprlib.repr(key)}; keys are names of metrics, use strings")
    return key


def _number(value: Any, key: str, index: int) -> float:
    """Anything that is one real number: int, float, bool, numpy scalars, tensors of no dimension."""
    if not hasattr(value, "__float__") or getattr(value, "shape", ()) != ():
        raise Breach(
            index,
            f"returned {_kind(value)} for {key!r}; every value must be one number, leave out a key that has no value",
        )
    number = float(value)
    if not math.isfinite(number):
        raise Breach(index, f"returned {number} for {key!r}; return a finite number, for example 0.0 for a failure")
    return number


def _kind(value: Any) -> str:
    return "None" if value is None else f"{reprlib.repr(value)} ({type(value).__name__})"
