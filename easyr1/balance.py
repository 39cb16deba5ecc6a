"""Splitting work evenly under a hard cap. Knows sizes in tokens, nothing of models or ranks' devices."""

from collections.abc import Sequence


def fill(sizes: Sequence[int], cap: int) -> list[list[int]]:
    """Indices of `sizes` in as few bins as first-fit decreasing finds, none above `cap`.

    Each size must be at most `cap`. Bins keep the given order inside, and come in the order of their first index.
    """
    bins: list[tuple[int, list[int]]] = []
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        size = sizes[index]
        if size > cap:
            raise ValueError(f"size {size} at index {index} is above the cap {cap}")
        place = next((number for number, (used, _) in enumerate(bins) if used + size <= cap), None)
        if place is None:
            bins.append((size, [index]))
        else:
            used, members = bins[place]
            bins[place] = (used + size, [*members, index])
    return sorted((sorted(members) for _, members in bins), key=lambda members: members[0])
