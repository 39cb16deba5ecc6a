"""Bounds of numbers, written into the types of the schema so that checks and documentation read the same source."""

import math
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; `also` lists single values outside that are allowed, such as -1 for "off"."""

    low: float = -math.inf
    high: float = math.inf
    above_low: bool = False  # low itself is not allowed
    below_high: bool = False  # high itself is not allowed
    also: tuple[int, ...] = ()

    def holds(self, value: float) -> bool:
        """Whether `value` lies in the range; false for NaN and infinities."""
        if value in self.also:
            return True
        over_low = value > self.low if self.above_low else value >= self.low
        under_high = value < self.high if self.below_high else value <= self.high
        return math.isfinite(value) and over_low and under_high

    def __str__(self) -> str:
        bounds = []
        if math.isfinite(self.low):
            bounds.append(f"{'>' if self.above_low else '>='} {self.low:g}")
        if math.isfinite(self.high):
            bounds.append(f"{'<' if self.below_high else '<='} {self.high:g}")
        return " and ".join(bounds) + "".join(f", or {value}" for value in self.also)


Count = Annotated[int, Range(low=1)]
CountOrZero = Annotated[int, Range(low=0)]
CountOrOff = Annotated[int, Range(low=1, also=(-1,))]
Positive = Annotated[float, Range(low=0, above_low=True)]
NotNegative = Annotated[float, Range(low=0)]
Share = Annotated[float, Range(low=0, high=1)]
PositiveShare = Annotated[float, Range(low=0, high=1, above_low=True)]
ShareBelowOne = Annotated[float, Range(low=0, high=1, below_high=True)]
AboveOne = Annotated[float, Range(low=1, above_low=True)]
