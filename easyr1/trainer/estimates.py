"""What several answers to each row tell of a model: pass@k, maj@k, and how sure a mean over rows is. Pure functions.

Shape legend: N answers to one row, R rows.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

MAX_SUBSETS = 300  # of the answers to a row: more are not counted through but drawn
RESAMPLES = 1000
CONFIDENCE = 0.95


def pass_at(num_answers: int, num_right: int, k: int) -> float:
    """The chance that at least one of k answers is right, k drawn from N of which some are: 1 - C(N-c, k) / C(N, k).

    Unbiased for k samples of the model (Chen et al. 2021, arXiv:2107.03374, equation 1).

    >>> pass_at(4, 1, 1), pass_at(4, 1, 2), pass_at(4, 0, 4), pass_at(4, 3, 2)
    (0.25, 0.5, 0.0, 1.0)
    """
    if not 0 < k <= num_answers:
        raise ValueError(f"k must be 1 to {num_answers}, not {k}")
    return 1.0 - math.comb(num_answers - num_right, k) / math.comb(num_answers, k)


def vote(ballots: Sequence[str | None], right: Sequence[bool]) -> float:
    """Whether the answer that most of them gave is right: 1 or 0, the mean over those that tie for the most.

    Answers that could not be read (None) have no vote; where nobody has one, nobody is right. An answer counts as
    right as often as those who gave it were.

    >>> vote(["7", "7", "8"], [True, True, False]), vote(["7", "8"], [True, False]), vote([None, None], [True, True])
    (1.0, 0.5, 0.0)
    """
    counts = Counter(ballot for ballot in ballots if ballot is not None)
    if not counts:
        return 0.0
    most = max(counts.values())
    shares = [_share(ballots, right, ballot) for ballot, count in counts.items() if count == most]
    return sum(shares) / len(shares)


def _share(ballots: Sequence[str | None], right: Sequence[bool], leader: str) -> float:
    """Of the answers with this ballot, how many are right."""
    own = [is_right for one, is_right in zip(ballots, right, strict=True) if one == leader]
    return sum(own) / len(own)


def maj_at(ballots: Sequence[str | None], right: Sequence[bool], k: int, seed: int = 0) -> float:
    """How often the majority of k of the N answers is right, over all choices of k (or MAX_SUBSETS drawn ones).

    >>> maj_at(["7", "7", "8"], [True, True, False], 3), maj_at(["7", "7", "8"], [True, True, False], 1)
    (1.0, 0.6666666666666666)
    """
    size = len(ballots)
    if not 0 < k <= size:
        raise ValueError(f"k must be 1 to {size}, not {k}")
    if math.comb(size, k) <= MAX_SUBSETS:
        subsets = itertools.combinations(range(size), k)
    else:
        draw = np.random.default_rng([seed, size, k])
        subsets = (draw.permutation(size)[:k] for _ in range(MAX_SUBSETS))
    votes = [vote([ballots[place] for place in chosen], [right[place] for place in chosen]) for chosen in subsets]
    return float(np.mean(votes))


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Bounds of the mean of R rows: 95 % of the means of rows drawn anew, with repetition, lie between them.

    The percentile bootstrap, over rows and not over answers: answers to one row are not independent.

    >>> interval([1.0] * 5)
    (1.0, 1.0)
    """
    rows, draw = np.asarray(values, dtype=np.float64), np.random.default_rng(seed)
    means = [rows[draw.integers(len(rows), size=len(rows))].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def ks_of(num_answers: int) -> list[int]:
    """Powers of two up to N, and N itself.

    >>> ks_of(1), ks_of(6), ks_of(8)
    ([1], [1, 2, 4, 6], [1, 2, 4, 8])
    """
    return sorted({*(2**power for power in range(num_answers.bit_length())), num_answers})
