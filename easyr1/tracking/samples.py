"""Which answers of a validation are kept for people to read: the same rows every time."""

import hashlib
from collections.abc import Sequence


def pick_rows(row_ids: Sequence[object], k: int, seed: int = 0) -> list[int]:
    """Positions of k rows (all, if there are fewer), drawn without order mattering.

    A row's turn depends on its id and the seed alone: the same rows come at every validation, in a resumed run too,
    however they are sorted or batched. Of several answers to one row the first is taken.

    >>> rows = ["a", "b", "c", "d"]
    >>> [rows[i] for i in pick_rows(rows, 2)] == [rows[::-1][i] for i in pick_rows(rows[::-1], 2)]
    True
    """
    first = {str(row_id): position for position, row_id in reversed(list(enumerate(row_ids)))}
    drawn = sorted(first, key=lambda row_id: _draw(row_id, seed))[: max(k, 0)]
    return [first[row_id] for row_id in drawn]


def _draw(row_id: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}:{row_id}".encode(), digest_size=8).digest()
