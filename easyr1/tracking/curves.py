"""Curves as inline SVG: lines over steps with axes and labels. Knows numbers and steps, not what they measure.

Colours are the classes s0, s1, ... that the page's style sheet defines, so a curve fits light and dark pages.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from easyr1.tracking.history import Series
from easyr1.tracking.wording import number

WIDTH, HEIGHT = 440, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 8, 22  # room for the labels around the plot
MAX_POINTS = 300
MAX_DOTS = 40
NUM_COLOURS = 6


@dataclass(frozen=True)
class Curve:
    """One line; a dotted one shows each of its points and is drawn broken."""

    label: str
    points: Series
    dotted: bool = False


@dataclass(frozen=True)
class Scale:
    """Where a number falls on the picture."""

    low: float
    high: float
    start: float  # pixel of `low`
    end: float  # pixel of `high`

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def draw(curves: Sequence[Curve]) -> str:
    """An <svg> of all curves on common axes; each needs at least one point."""
    steps = [step for curve in curves for step, _ in curve.points]
    values = [value for curve in curves for _, value in curve.points]
    ticks = nice_ticks(min(values), max(values))
    x = Scale(min(steps), max(max(steps), min(steps) + 1), LEFT, WIDTH - RIGHT)
    y = Scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = [_grid(ticks, y), _step_labels(x)]
    parts += [_line(curve, index % NUM_COLOURS, x, y) for index, curve in enumerate(curves)]
    label = escape(", ".join(curve.label for curve in curves))
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def nice_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """At most `most` round numbers at equal distance that enclose both ends.

    >>> nice_ticks(0.13, 0.92)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        spread = abs(low) or 1.0
        low, high = low - spread / 2, high + spread / 2
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    for step in (power * factor for factor in (1, 2, 2.5, 5, 10, 20, 25)):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first < most:
            return [round(index * step, 12 - math.floor(math.log10(step))) for index in range(first, last + 1)]
    raise AssertionError("the widest step holds any range")


def thin(points: Series, most: int = MAX_POINTS) -> Series:
    """At most `most` points, each the mean of its neighbours; the last point stays itself."""
    if len(points) <= most:
        return points
    size = math.ceil(len(points) / (most - 1))
    chunks = [points[start : start + size] for start in range(0, len(points) - 1, size)]
    means = [(chunk[len(chunk) // 2][0], sum(value for _, value in chunk) / len(chunk)) for chunk in chunks]
    return [point for point in means if point[0] < points[-1][0]] + [points[-1]]


def _grid(ticks: Sequence[float], y: Scale) -> str:
    return "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text class="tick" x="{LEFT - 6}" y="{y(tick) + 3.5:.1f}" text-anchor="end">{number(tick)}</text>'
        for tick in ticks
    )


def _step_labels(x: Scale) -> str:
    steps = sorted({round(x.low), round((x.low + x.high) / 2), round(x.high)})
    anchors = {steps[0]: "start", steps[-1]: "end"}
    return "".join(
        f'<text class="tick" x="{x(step):.1f}" y="{HEIGHT - 5}" text-anchor="{anchors.get(step, "middle")}">'
        f"{'step ' if step == steps[0] else ''}{step}</text>"
        for step in steps
    )


def _line(curve: Curve, colour: int, x: Scale, y: Scale) -> str:
    places = [(x(step), y(value), step, value) for step, value in thin(curve.points)]
    path = " ".join(f"{left:.1f},{top:.1f}" for left, top, _, _ in places)
    broken = " broken" if curve.dotted else ""
    line = f'<polyline class="line s{colour}{broken}" points="{path}"/>'
    radius = 3.2 if curve.dotted or len(places) == 1 else 1.6
    if len(places) > MAX_DOTS and not curve.dotted:
        return line
    dots = (
        f'<circle class="dot s{colour}" cx="{left:.1f}" cy="{top:.1f}" r="{radius}">'
        f"<title>{escape(curve.label)}, step {step}: {number(value)}</title></circle>"
        for left, top, step, value in places
    )
    return line + "".join(dots)
