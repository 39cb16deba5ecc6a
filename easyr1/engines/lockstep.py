"""Micro-batches that ranks can compute together: on every rank equally many, and with the same kinds of media.

A sharded model is put together for each pass by all its ranks at once, and the gradients of a vision tower are added
only where each of them has some. So what a rank lacks is filled up with a small prompt and one token that counts for
nothing. Knows neither losses nor weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from easyr1.batch import Completion, Group, Prompt, Sample
from easyr1.engines.pack import Budget, Packer, Piece, cut
from easyr1.models.ranks import Ranks

Kinds = frozenset[int]  # of media, as types of tokens: 1 pictures, 2 videos


@dataclass(frozen=True)
class Plan:
    """What one rank computes: `groups` are its own and then the fillers, which no piece but the last of a micro-batch
    is of. `counts` are those that each replica gave.
    """

    groups: list[Group]
    micro_batches: list[list[Piece]]
    counts: list[tuple[int, ...]]


@dataclass(frozen=True)
class _Offer:
    """What a rank tells the others: its counts, the media of each of its micro-batches, and its smallest prompt with
    each kind of media.
    """

    counts: tuple[int, ...]
    kinds: list[Kinds]
    smallest: Mapping[int, tuple[tuple[int, int], Prompt]]


def plan(groups: Sequence[Group], budget: Budget, packer: Packer, ranks: Ranks, counts: tuple[int, ...] = ()) -> Plan:
    """Cut this rank's groups (maybe none) into micro-batches like those of the others. All ranks call it.

    A filler may take a micro-batch above its budget, by the smallest prompt with a picture of the mini-batch.
    """
    own, parts = list(groups), cut(groups, budget)
    if ranks.world == 1:
        return Plan(own, parts, [counts])
    media = [_kinds(group.prompt, packer) for group in own]
    parts.sort(key=lambda pieces: -len(_union(media[piece.group] for piece in pieces)))  # so that few need a filler
    kinds = [_union(media[piece.group] for piece in pieces) for pieces in parts]
    offers: list[_Offer] = ranks.gather(_Offer(counts, kinds, _smallest(own, media)))
    wanted = [
        _union(offer.kinds[number] for offer in offers if number < len(offer.kinds))
        for number in range(max(len(offer.kinds) for offer in offers))
    ]
    fillers = _fillers(offers, packer)
    missing = len(wanted) - len(parts)
    filled = [
        [*pieces, *_missing(need - had, not pieces, fillers, len(own))]
        for pieces, had, need in zip(
            [*parts, *([] for _ in range(missing))], [*kinds, *[frozenset()] * missing], wanted, strict=True
        )
    ]
    return Plan(
        [*own, *(group for _, group in fillers)], filled, [offer.counts for offer in offers[:: ranks.sequence]]
    )


def _kinds(prompt: Prompt, packer: Packer) -> Kinds:
    if not prompt.media:
        return frozenset()
    types = packer.positions.token_types(torch.from_numpy(prompt.ids))
    return frozenset(types.unique().tolist()) - {0} or frozenset({1})


def _union(parts) -> Kinds:
    return frozenset().union(*parts)


def _smallest(groups: Sequence[Group], media: Sequence[Kinds]) -> dict[int, tuple[tuple[int, int], Prompt]]:
    """For each kind the prompt with the fewest kinds and tokens, without what only rewards and logs need of it."""
    found: dict[int, tuple[tuple[int, int], Prompt]] = {}
    for group, kinds in zip(groups, media, strict=True):
        size = (len(kinds), len(group.prompt.ids))
        for kind in kinds:
            if kind not in found or size < found[kind][0]:
                found[kind] = size, Prompt(row=group.prompt.row, ids=group.prompt.ids, media=group.prompt.media)
    return found


def _fillers(offers: Sequence[_Offer], packer: Packer) -> list[tuple[Kinds, Group]]:
    """One group without media, and the smallest of all ranks with each kind."""
    token = np.array([packer.stand_in])
    answer = Completion(token, np.zeros(1, np.float32), "length", "", 0)
    prompts = [(frozenset[int](), Prompt(row=0, ids=token, media=()))]
    for kind in sorted(_union(offer.smallest for offer in offers)):
        _, smallest = min(
            (offer.smallest[kind] for offer in offers if kind in offer.smallest), key=lambda found: found[0]
        )
        prompts.append((_kinds(smallest, packer), smallest))
    return [(kinds, Group(prompt, [Sample(answer)])) for kinds, prompt in prompts]


def _missing(kinds: Kinds, is_empty: bool, fillers: Sequence[tuple[Kinds, Group]], first: int) -> list[Piece]:
    """Pieces of fillers that have all `kinds`; one of text where a micro-batch would else be empty."""
    pieces = []
    for number, (offered, group) in enumerate(fillers):
        if kinds & offered:
            pieces.append(Piece(first + number, (0,), group.num_tokens))
            kinds -= offered
    if is_empty and not pieces:
        pieces.append(Piece(first, (0,), fillers[0][1].num_tokens))
    return pieces
