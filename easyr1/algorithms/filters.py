"""Which groups are worth training on, and what an answer pays for nearing the length limit.

Pure functions on numbers; they know neither tensors nor the loop.
"""

from collections.abc import Sequence

SPREAD_TOLERANCE = 1e-6  # relative to the largest score, as in `groups.Groups.is_flat`


def is_useful(scores: Sequence[float], low: float, high: float) -> bool:
    """Whether a group of scores can teach anything: they differ, and their mean lies strictly between the bounds.

    Dynamic sampling of DAPO (arXiv:2503.14476), section 3.2: groups that are all right or all wrong have advantages of
    zero. Departure: equal scores are found by their spread, so that a group of equal scores between the bounds is
    dropped as well.

    >>> is_useful([0.0, 1.0], 0.01, 0.99), is_useful([0.5, 0.5], 0.01, 0.99), is_useful([1.0, 1.0], 0.01, 0.99)
    (True, False, False)
    """
    spread = max(scores) - min(scores)
    if spread <= SPREAD_TOLERANCE * max(1.0, *(abs(score) for score in scores)):
        return False
    return low < sum(scores) / len(scores) < high


def overlong_penalty(length: int, limit: int, buffer: int) -> float:
    """0 for answers that stay `buffer` tokens below the `limit`, then falling in a line to -1 at the limit.

    Soft over-long punishment of DAPO (arXiv:2503.14476), equation 13. A buffer of 0 punishes what passes the limit.

    >>> [overlong_penalty(length, limit=100, buffer=20) for length in (80, 90, 100, 120)]
    [0.0, -0.5, -1.0, -1.0]
    """
    excess = length - (limit - buffer)
    if excess <= 0:
        return 0.0
    return -min(1.0, excess / buffer) if buffer else -1.0
