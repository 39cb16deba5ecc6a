"""Weights from the policy's ranks to a sampler, tensor by tensor: never a second whole copy on the way.

Within a rank the sampler shares the policy's module, or copies each full tensor as it comes out of the shards. To a
sampler in another process the same stream goes in buckets of bytes, none above a stated size. Of adapters that the
sampler takes as such, the base goes once. Knows neither Ray nor how full tensors are put together.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
import torch

from easyr1.engines.protocols import RolloutEngine

BUCKET_BYTES = 64 << 20


class Source(Protocol):
    """What the weights come from: a TrainEngine's side of a rank."""

    version: int  # optimizer steps so far

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full tensors under in-memory Hugging Face names, made one by one. All ranks go through all of them."""
        ...

    def base_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The same without what adapters add."""
        ...

    def adapter_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What adapters add, under the names of their layers."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Some numbers of one tensor, as bytes."""

    name: str
    shape: tuple[int, ...]  # of the tensor
    start: int  # number of the first one in the flattened tensor
    dtype: str  # "bfloat16"
    data: np.ndarray  # uint8

    @property
    def values(self) -> torch.Tensor:
        """(numbers,)"""
        return torch.from_numpy(self.data).view(getattr(torch, self.dtype))


Bucket = list[Piece]


def buckets(
    weights: Iterable[tuple[str, torch.Tensor]], num_bytes: int, dtype: torch.dtype | None = None
) -> Iterator[Bucket]:
    """The tensors cut into buckets of at most `num_bytes`, the last one smaller; `dtype` is that of real numbers.

    A tensor above the size is cut, small ones share a bucket. Each bucket is made when it is asked for.
    """
    bucket: Bucket = []
    room = num_bytes
    for name, tensor in weights:
        flat = tensor.detach().reshape(-1)
        if dtype is not None and flat.is_floating_point():
            flat = flat.to(dtype)
        start, size = 0, flat.element_size()
        while start < len(flat):
            count = min(room // size, len(flat) - start)
            if count:
                bucket.append(_piece(name, tuple(tensor.shape), start, flat[start : start + count]))
                start, room = start + count, room - count * size
            if room < size:
                yield bucket
                bucket, room = [], num_bytes
    if bucket:
        yield bucket


def _piece(name: str, shape: tuple[int, ...], start: int, values: torch.Tensor) -> Piece:
    data = values.contiguous().cpu().view(torch.uint8).numpy().copy()
    return Piece(name, shape, start, str(values.dtype).removeprefix("torch."), data)


class WeightSync:
    """The sending side on a rank. All ranks make the same calls, as full tensors are put together by all of them."""

    def __init__(
        self,
        source: Source,
        sampler: RolloutEngine | None,
        shares_module: bool,
        *,
        adapters_apart: bool = False,
        speaks: bool = True,
        dtype: torch.dtype | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """`sampler` is the one of this rank, if it has one. With `adapters_apart` it takes the base once and then
        adapters alone. The rank that `speaks` hands out buckets for others, real numbers as `dtype` (None: as they
        are).
        """
        self.source = source
        self.sampler = sampler
        self.shares_module = shares_module
        self.adapters_apart = adapters_apart
        self.speaks = speaks
        self.dtype = dtype
        self.bucket_bytes = bucket_bytes
        self._stream: Iterator[Bucket] | None = None
        self._base_is_there = False

    def sends_adapters(self) -> bool:
        """Whether adapters go as such."""
        return self.adapters_apart

    def push(self) -> int:
        """Bring this rank's sampler up to the policy. Returns the version that both have now."""
        if self.sampler is not None:
            self.sampler.load(() if self.shares_module else self._weights(), self.source.version)
        return self.source.version

    def _weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        """What a sampler with weights of its own does not have yet."""
        if not self.adapters_apart:
            return self.source.weights()
        base = () if self._base_is_there else self.source.base_weights()
        self._base_is_there = True
        return chain(base, self.source.adapter_weights())

    def next_bucket(self) -> Bucket | None:
        """The next one for a sampler elsewhere, empty on ranks that do not speak; None behind the last."""
        if self._stream is None:
            self._stream = buckets(self._weights(), self.bucket_bytes, self.dtype)
        bucket = next(self._stream, None)
        if bucket is None:
            self._stream = None
            return None
        return bucket if self.speaks else []


class Receiver(Protocol):
    """A sampler that can be fed tensor by tensor."""

    def feed(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take some full tensors."""
        ...

    def settle(self, version: int) -> None:
        """All have come: answers carry this version from now on."""
        ...


class WeightInlet:
    """The receiving side, in the process of a sampler that is fed from another one."""

    def __init__(self, sampler: Receiver) -> None:
        self.sampler = sampler
        self._open: dict[str, torch.Tensor] = {}  # flat tensors of which pieces are still to come
        self._come: Counter[str] = Counter()  # numbers of each of these
        self._fed: set[str] = set()

    def take(self, bucket: Bucket) -> None:
        """Hand on what is whole with these pieces."""
        self.sampler.feed(self._whole(bucket))

    def _whole(self, bucket: Bucket) -> Iterator[tuple[str, torch.Tensor]]:
        for piece in bucket:
            values = piece.values
            if piece.name not in self._open:
                self._open[piece.name] = torch.empty(math.prod(piece.shape), dtype=values.dtype)
            tensor = self._open[piece.name]
            tensor[piece.start : piece.start + len(values)] = values
            self._come[piece.name] += len(values)
            if self._come[piece.name] == len(tensor):
                del self._open[piece.name], self._come[piece.name]
                assert piece.name not in self._fed, f"{piece.name} came twice"
                self._fed.add(piece.name)
                yield piece.name, tensor.view(piece.shape)

    def finish(self, version: int) -> None:
        """All pieces have come, each once."""
        wrong, fed = sorted(self._open), self._fed
        self._open, self._come, self._fed = {}, Counter(), set()
        assert fed and not wrong, f"{len(wrong)} weights did not come whole: {', '.join(wrong[:3])}"
        self.sampler.settle(version)
