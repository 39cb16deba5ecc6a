"""Splitting work evenly: under a hard cap into bins, and over replicas. Knows sizes, nothing of models or devices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

FINEST = 4  # groups are split into parts of a quarter of a replica's fair share at the finest
WORTH_A_SPLIT = 0.9  # split groups only where that shortens the longest share to this part of it


@dataclass(frozen=True)
class Work:
    """What computing something costs, in tokens: the weights are those of dense models of 2 to 8 billion weights.

    Only proportions matter, and roughly: shares that are a few percent apart are even enough.
    """

    pair: float = 1 / 24_000  # a query and a key that it sees, in all layers, against all products with weights
    media_token: float = 0.6  # what the vision tower did for one token of a picture: four patches of it

    def of_group(self, prompt: int, answers: Sequence[int], media: int = 0) -> float:
        """Of a prompt of so many tokens, `media` of them of pictures, computed once for its answers.

        >>> Work(pair=0.001, media_token=0.5).of_group(100, [10, 20], media=40)
        158.25
        """
        tokens = prompt + sum(answers)
        pairs = prompt * prompt / 2 + sum(length * (prompt + length / 2) for length in answers)
        return tokens + self.media_token * media + self.pair * pairs


WORK = Work()


@dataclass(frozen=True, slots=True)
class Part:
    """Some answers of one group, as they go to a replica: `group` and `answers` are indices."""

    group: int
    answers: tuple[int, ...]
    cost: float


@dataclass(frozen=True, slots=True)
class Size:
    """How much a group is: tokens of its prompt, of its pictures among them, and of each answer."""

    prompt: int
    answers: tuple[int, ...]
    media: int = 0


def share_out(sizes: Sequence[Size], replicas: int, work: Work = WORK) -> list[list[Part]]:
    """The groups as shares of about equal cost, one for each replica; a share may be empty.

    Groups stay whole, so that a prompt is computed once, unless splitting the largest makes the longest share clearly
    shorter: where there are fewer groups than replicas, or one is much longer than the others. A share keeps the
    groups' order.
    """
    whole = [_whole(number, size, work) for number, size in enumerate(sizes)]
    if replicas == 1:
        return [whole]
    best = _deal(whole, replicas)
    fair = sum(part.cost for part in whole) / replicas
    for fineness in range(1, FINEST + 1):
        limit = fair / fineness
        parts = [part for one in whole for part in _split(one, sizes[one.group], limit, work)]
        found = [_joined(share, sizes, work) for share in _deal(parts, replicas)]
        if max(loads(found)) < WORTH_A_SPLIT * max(loads(best)):
            best = found
    return best


def loads(shares: Sequence[Sequence[Part]]) -> list[float]:
    """Cost of each share."""
    return [sum(part.cost for part in share) for share in shares]


def imbalance(costs: Sequence[float]) -> float:
    """Largest over mean: 1 is even; how much longer a step takes than it had to.

    >>> imbalance([3.0, 1.0]), imbalance([])
    (1.5, 1.0)
    """
    return max(costs) * len(costs) / sum(costs) if sum(costs) else 1.0


def _whole(number: int, size: Size, work: Work) -> Part:
    return _some(number, size, range(len(size.answers)), work)


def _split(part: Part, size: Size, limit: float, work: Work) -> list[Part]:
    """The group in as few parts as would be below `limit` if the prompt were not computed anew in each of them."""
    count = min(len(part.answers), math.ceil(part.cost / limit))
    if count < 2:
        return [part]
    bins: list[list[int]] = [[] for _ in range(count)]
    totals = [0] * count
    for answer in sorted(part.answers, key=lambda answer: -size.answers[answer]):
        place = totals.index(min(totals))
        bins[place].append(answer)
        totals[place] += size.answers[answer]
    return [_some(part.group, size, own, work) for own in bins]


def _some(group: int, size: Size, answers: Sequence[int], work: Work) -> Part:
    chosen = tuple(sorted(answers))
    return Part(group, chosen, work.of_group(size.prompt, [size.answers[one] for one in chosen], size.media))


def _joined(share: Sequence[Part], sizes: Sequence[Size], work: Work) -> list[Part]:
    """Parts of one group that met again in a share, as one."""
    answers: dict[int, list[int]] = {}
    for part in share:
        answers.setdefault(part.group, []).extend(part.answers)
    return [_some(group, sizes[group], chosen, work) for group, chosen in answers.items()]


def _deal(parts: Sequence[Part], replicas: int) -> list[list[Part]]:
    """The costliest first, each to the replica that has least so far."""
    shares: list[list[int]] = [[] for _ in range(replicas)]
    totals = [0.0] * replicas
    for number in sorted(range(len(parts)), key=lambda number: -parts[number].cost):
        place = totals.index(min(totals))
        shares[place].append(number)
        totals[place] += parts[number].cost
    return [[parts[number] for number in sorted(share)] for share in shares]


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
