"""Ranks that share a row share out its pictures too: each computes the features of some, and all get all features.

Hooks that live for one forward narrow what enters the vision tower and gather what leaves it; the model never knows.
Whole pictures are shared out, by their patches. A rank without a picture computes the smallest one and drops it, so
that a sharded tower is entered by all ranks alike; its gradient is 0. Towers that fit neither way below are computed
by every rank: slower, and as right, since each rank's gradient is that of the features in its own slice.

Shape legend: W ranks, P pictures (or tiles), M most rows of features that a rank has, F numbers in a row.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from easyr1.data.processor import picture_keys
from easyr1.models.sequence import exchange

GRID = "grid_thw"  # (P, 3): towers that take the patches of all pictures in one row are told their sizes so
TILED_TOWERS = frozenset({"internvl_vision", "idefics3_vision", "smolvlm_vision"})  # one row a tile, in and out
FEATURES = ("pooler_output", "deepstack_features")  # what models take from the output of a tower with a grid
TILE_FEATURES = ("last_hidden_state",)


def vision_tower(model: PreTrainedModel) -> nn.Module | None:
    """The module that turns pictures into features, as the model class names it."""
    if not picture_keys(model.config):
        return None
    tower = model.get_encoder(modality="image")
    return None if tower in (model, model.base_model) else tower


@dataclass(frozen=True)
class Deal:
    """Which rank computes which pictures; `sizes` are their rows in what the tower is given."""

    sizes: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]  # by rank, in the order of the row
    place: int  # this rank's
    features: tuple[str, ...]

    @property
    def own(self) -> tuple[int, ...]:
        """What this rank's tower is given; never nothing."""
        smallest = min(range(len(self.sizes)), key=lambda index: self.sizes[index])
        return self.members[self.place] or (smallest,)

    def narrowed(self, value: Any, name: str = "") -> Any:
        """An argument of the tower: the rows of the own pictures where it has rows of all, else as it is."""
        if not isinstance(value, torch.Tensor) or value.ndim < 2:
            return value
        if name == GRID:
            return value[list(self.own)]
        if len(value) != sum(self.sizes):
            return value
        parts = value.split(self.sizes)
        return torch.cat([parts[index] for index in self.own])

    def order(self, ratio: int) -> tuple[list[int], int]:
        """Where the features of all pictures, in order, lie among (W, M) rows; and M. `ratio` input rows make one."""
        most = max(sum(self.sizes[index] for index in some) for some in self.members) // ratio
        start: dict[int, int] = {}
        for rank, some in enumerate(self.members):
            ends = accumulate((self.sizes[index] // ratio for index in some), initial=rank * most)
            start |= dict(zip(some, ends, strict=False))
        counts = enumerate(size // ratio for size in self.sizes)
        return [start[index] + row for index, count in counts for row in range(count)], most


def deal(sizes: Sequence[int], ranks: int) -> tuple[tuple[int, ...], ...]:
    """Pictures by rank, the largest first to the rank that has least: sizes 4, 1, 2 over two ranks -> (0,), (1, 2)."""
    members: list[list[int]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        least = load.index(min(load))
        members[least].append(index)
        load[least] += sizes[index]
    return tuple(tuple(sorted(some)) for some in members)


def why_not_shared(model: PreTrainedModel) -> str | None:
    """Why every rank computes all pictures, or None (also without a tower): known before the first picture comes."""
    tower = vision_tower(model)
    if tower is None or GRID in inspect.signature(tower.forward).parameters:
        return None
    kind = tower.config.model_type if isinstance(tower, PreTrainedModel) else type(tower).__name__
    if kind not in TILED_TOWERS:
        return f"how a tower of type {kind} takes several of them is not known"
    layer = getattr(model.config, "vision_feature_layer", -1)
    return None if layer == -1 else f"features are taken from layer {layer} of the tower"


@contextmanager
def shared(tower: nn.Module, group: dist.ProcessGroup) -> Iterator[None]:
    """The pictures of each call of the tower are shared out over the group while the context lasts."""
    deals: list[Deal] = []

    def narrow(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        found = _deal(given, named, group)
        deals.append(found)
        return tuple(map(found.narrowed, given)), {name: found.narrowed(one, name) for name, one in named.items()}

    def gather(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        return _gathered(output, deals.pop(), group)

    hooks = (
        tower.register_forward_pre_hook(narrow, with_kwargs=True),
        tower.register_forward_hook(gather, with_kwargs=True),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _deal(given: tuple[Any, ...], named: Mapping[str, Any], group: dist.ProcessGroup) -> Deal:
    if GRID in named:
        sizes, features = named[GRID].prod(-1).tolist(), FEATURES
    else:
        pixels = given[0] if given else named["pixel_values"]
        sizes, features = [1] * len(pixels), TILE_FEATURES
    return Deal(tuple(sizes), deal(sizes, group.size()), group.rank(), features)


def _gathered(output: Any, found: Deal, group: dist.ProcessGroup) -> Any:
    """The output of the tower with the features of all pictures in their order; whatever else it held is dropped."""
    single: dict[str, torch.Tensor] = {}
    several: dict[str, list[torch.Tensor]] = {}
    for name in found.features:
        value = getattr(output, name, None)
        if isinstance(value, torch.Tensor):
            single[name] = value
        elif value:
            several[name] = list(value)
    tensors = [*single.values(), *(one for some in several.values() for one in some)]
    whole = iter(_together(tensors, found, group))
    kept: dict[str, Any] = {name: next(whole) for name in single}
    kept |= {name: [next(whole) for _ in some] for name, some in several.items()}
    return type(output)(**kept)


def _together(tensors: list[torch.Tensor], found: Deal, group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Features of the own pictures -> of all, in one collective: one node in the graph, in one place on every rank."""
    given = sum(found.sizes[index] for index in found.own)
    count = len(tensors[0])
    assert all(len(one) == count for one in tensors) and given % count == 0, "not one row of features after another"
    order, most = found.order(given // count)
    flat = [one.flatten(1) for one in tensors]
    rows = torch.cat(flat, 1)  # one that this rank computed in vain fits in, and nothing points at it
    whole = _Gather.apply(F.pad(rows, (0, 0, 0, most - len(rows))), group)
    parts = whole[torch.tensor(order, device=whole.device)].split([one.shape[1] for one in flat], 1)
    return [
        part.unflatten(1, one.shape[1:]).to(one.dtype) if one.ndim > 2 else part.to(one.dtype)
        for part, one in zip(parts, tensors, strict=True)
    ]


class _Gather(torch.autograd.Function):
    """(M, F) of each rank -> (W * M, F). Each rank uses some of them, so their gradients are added up."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        whole = rows.new_empty(group.size(), *rows.shape)
        dist.all_gather(list(whole.unbind()), rows.contiguous(), group=group)
        return whole.flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (parts,) = exchange(ctx.group, grads[0].unflatten(0, (ctx.group.size(), -1)))
        return parts.sum(0), None
