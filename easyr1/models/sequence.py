"""Sequence parallelism (Ulysses, arXiv:2309.14509): the ranks of one replica share every row.

Each rank computes all layers for its slice of the tokens; around attention the slices are exchanged for heads, so
that each rank attends, for its share of the heads, over the whole row. The layout inside (packing, shared prefixes,
windows) knows nothing of it. No model is changed: a hook that lives for one forward cuts what enters the text model.

Every rank ends with the same scores of all chosen tokens and so with the same loss; its gradients are those of its own
slice, and the sum over the ranks of a replica is the gradient.

Shape legend: L tokens of the row, W ranks that share it, C = ceil(L / W) tokens of a slice (the row is filled up with
padding), H query heads, K key/value heads, D head width, N chosen tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from easyr1.errors import ConfigError
from easyr1.models.attention import Layout, UnsupportedAttention
from easyr1.models.ranks import Ranks

# What text models are told of each token, and in which dimension the tokens lie.
PER_TOKEN = {
    "input_ids": 1,
    "inputs_embeds": 1,
    "position_ids": -1,
    "visual_pos_masks": 1,
    "token_type_ids": 1,
    "mm_token_type_ids": 1,
    "per_layer_inputs": 1,
}
DEEPSTACK = "deepstack_visual_embeds"  # a tensor a layer, one row for each picture token


@dataclass(frozen=True)
class Ulysses:
    """`inner` over a row of `length` tokens, of which each rank of `group` holds one slice."""

    inner: Layout
    group: dist.ProcessGroup
    length: int

    @property
    def size(self) -> int:
        return self.group.size()

    @property
    def chunk(self) -> int:
        return -(-self.length // self.size)

    @property
    def first(self) -> int:
        """Where this rank's slice begins; behind the row's end where there are fewer tokens than ranks."""
        return self.group.rank() * self.chunk

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        """query (1, H, C, D), key and value (1, K, C, D) -> (1, C, H, D)."""
        key, value = (_divisible(tensor, self.size) for tensor in (key, value))
        whole = exchange(self.group, *(self._by_heads(tensor) for tensor in (query, key, value)))
        query, key, value = (self._row(tensor) for tensor in whole)
        out = self.inner.attend(layer, query, key, value, scale, window)  # (1, L, H / W, D)
        (parts,) = exchange(self.group, self._filled(out, 1)[0].unflatten(0, (self.size, self.chunk)))
        return parts.transpose(0, 1).flatten(1, 2)[None]

    def _by_heads(self, tensor: torch.Tensor) -> torch.Tensor:
        """(1, H, C, D) -> (W, H / W, C, D): what each rank gets of this slice."""
        return tensor[0].unflatten(0, (self.size, -1))

    def _row(self, slices: torch.Tensor) -> torch.Tensor:
        """(W, H / W, C, D) -> (1, H / W, L, D): the slices end to end, without the padding."""
        return slices.transpose(0, 1).flatten(1, 2)[None, :, : self.length]

    def _filled(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """Zeros behind the end of a dimension of L, up to W * C."""
        missing = self.size * self.chunk - self.length
        return F.pad(tensor, (0, 0) * (tensor.ndim - 1 - dim % tensor.ndim) + (0, missing)) if missing else tensor

    def slice(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's C of the L tokens that lie in dimension `dim`."""
        return self._filled(tensor, dim).narrow(dim, self.first, self.chunk)

    def holds(self, index: torch.Tensor) -> torch.Tensor:
        """Which of some indices into the row lie in this rank's slice."""
        return (index >= self.first) & (index < self.first + self.chunk)

    def sliced(self, keywords: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a text model, cut to this rank's tokens."""
        kept = dict(keywords)
        for name, tensor in keywords.items():
            if not isinstance(tensor, torch.Tensor):
                continue
            if name in PER_TOKEN:
                kept[name] = self.slice(tensor, PER_TOKEN[name])
            elif tensor.shape[:2][-1:] == (self.length,):  # one number a token, or (1, L, ...)
                raise UnsupportedAttention(f"sequence parallelism does not know how to cut {name} by tokens")
        if keywords.get(DEEPSTACK) is not None:
            seen = self.holds(keywords["visual_pos_masks"][0].nonzero()[:, 0])
            kept[DEEPSTACK] = [features[seen] for features in keywords[DEEPSTACK]]
        return kept


@dataclass(frozen=True)
class Share:
    """Which of the N chosen tokens this rank scores: all of them where nobody shares the row."""

    layout: Ulysses | None
    chosen: torch.Tensor  # (n,) where the hidden states of the own ones lie among those that this rank computes
    own: torch.Tensor  # (n,) which of the N they are
    count: int  # N

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """(N, ...) -> (n, ...)."""
        return values if self.layout is None else values[self.own]

    def together(self, columns: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Columns (n,) of the own tokens -> columns (N,) of all, the same to the last bit on every rank."""
        if self.layout is None:
            return columns
        stacked = torch.stack(tuple(columns))
        whole = stacked.new_zeros(len(stacked), self.count).index_copy(1, self.own, stacked)
        return _Together.apply(whole, self.layout.group).unbind()


def share_of(ranks: Ranks, inner: Layout | None, length: int, chosen: torch.Tensor) -> Share:
    """This rank's part of a row of `length` tokens with the layout `inner`."""
    if ranks.sequence_group is None:
        return Share(None, chosen, chosen, len(chosen))
    assert inner is not None, "padded rows cannot be shared"
    layout = Ulysses(inner, ranks.sequence_group, length)
    own = layout.holds(chosen).nonzero()[:, 0]
    return Share(layout, chosen[own] - layout.first, own, len(chosen))


@contextmanager
def cut_at(decoder: nn.Module, layout: Ulysses) -> Iterator[None]:
    """What enters the text model is cut to this rank's tokens while the context lasts."""

    def cut(_: nn.Module, positional: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
        assert not positional, "text models get their arguments by name"
        return (), layout.sliced(keywords)

    handle = decoder.register_forward_pre_hook(cut, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _divisible(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """(1, K, C, D) with each head repeated, in its place, as little as lets the ranks divide them."""
    times = size // gcd(tensor.shape[1], size)
    return tensor.repeat_interleave(times, 1) if times > 1 else tensor


def exchange(group: dist.ProcessGroup, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tensors (W, ...), row w for rank w -> the same shapes, row w from rank w; one collective for all of them."""
    flat = [tensor.reshape(len(tensor), -1) for tensor in tensors]
    moved = _Exchange.apply(torch.cat(flat, 1), group)
    widths = [tensor.shape[1] for tensor in flat]
    return tuple(part.view_as(tensor) for part, tensor in zip(moved.split(widths, 1), tensors, strict=True))


class _Exchange(torch.autograd.Function):
    """All to all of equal rows; its own inverse, so the gradients go the same way."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return _all_to_all(rows, group)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _all_to_all(grads[0], ctx.group), None


def _all_to_all(rows: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    rows = rows.contiguous()
    received = torch.empty_like(rows)
    dist.all_to_all_single(received, rows, group=group)
    return received


class _Together(torch.autograd.Function):
    """The sum of what the ranks hold, each number on one of them and 0 on the others: exact in any order.

    Every rank computes the same loss from it, so the gradient is here already and nothing must be added up.
    """

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        whole = whole.clone()
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


def check_heads(config: Any, size: int, key: str = "worker.actor.ulysses_size") -> None:
    """Whether `size` ranks can share out the query heads of a model, by its configuration. Raises ConfigError."""
    heads = config.get_text_config().num_attention_heads
    if heads % size == 0:
        return
    allowed = ", ".join(str(number) for number in range(1, heads + 1) if heads % number == 0)
    raise ConfigError(
        key,
        f"{size} ranks cannot share out the {heads} attention heads of {type(config).__name__}; set one of {allowed}",
    )


def check_layout(packed: bool, model: str, size: int, key: str = "worker.actor.ulysses_size") -> None:
    """Rows can only be shared where our own attention computes them. Raises ConfigError."""
    if size > 1 and not packed:
        raise ConfigError(
            key,
            f"{size} ranks cannot share the rows of {model}, which takes the padded layout (its log line says why); "
            "set 1, or choose a model with the packed layout (docs/models.md)",
        )
