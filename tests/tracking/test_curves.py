"""Curves: ticks, thinning and where points land."""

import math
import re

import pytest

from easyr1.tracking.curves import HEIGHT, LEFT, RIGHT, WIDTH, Curve, draw, nice_ticks, thin


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.13, 0.92, [0, 0.25, 0.5, 0.75, 1]),
        (0, 1, [0, 0.25, 0.5, 0.75, 1]),
        (-3, 42, [-20, 0, 20, 40, 60]),
        (0.00031, 0.00062, [0.0003, 0.0004, 0.0005, 0.0006, 0.0007]),
        (5, 5, [2, 4, 6, 8]),
    ],
)
def test_ticks_are_few_round_and_enclose(low, high, ticks):
    assert nice_ticks(low, high) == pytest.approx(ticks)


@pytest.mark.parametrize("low", [-1e9, -7.3, 0.0, 1e-12, 3e4])
@pytest.mark.parametrize("width", [0.0, 1e-9, 0.37, 1234.5])
def test_ticks_serve_any_range(low, width):
    ticks = nice_ticks(low, low + width)
    slack = 1e-6 * max(abs(low), width)
    assert 2 <= len(ticks) <= 5
    assert ticks[0] <= low + slack
    assert ticks[-1] >= low + width - slack


def test_points_land_between_the_axes_and_later_is_further_right():
    svg = draw([Curve("a", [(1, 0.0), (2, 1.0), (5, 0.5)])])
    path = re.search(r'points="([^"]+)"', svg).group(1)
    places = [tuple(map(float, place.split(","))) for place in path.split()]
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert places[0][0] == LEFT
    assert places[-1][0] == WIDTH - RIGHT
    assert places[1][1] < places[2][1] < places[0][1] < HEIGHT  # y grows downwards


def test_one_point_is_a_dot():
    svg = draw([Curve("a", [(3, 0.4)])])
    assert svg.count("<circle") == 1
    assert "nan" not in svg


def test_a_long_curve_is_thinned_to_means_and_keeps_its_end():
    points = [(step, float(step % 2)) for step in range(10_000)]
    thinned = thin(points, 300)
    assert len(thinned) <= 300
    assert thinned[-1] == points[-1]
    assert [step for step, _ in thinned] == sorted({step for step, _ in thinned})
    assert math.isclose(sum(value for _, value in thinned[:-1]) / (len(thinned) - 1), 0.5, abs_tol=0.02)
    assert thin(points[:300], 300) == points[:300]
