"""Weights from the policy's ranks to a sampler, tensor by tensor: never a second whole copy on the way.

Within a rank the sampler shares the policy's module, or copies each full tensor as it comes out of the shards. To a
sampler in another process the same stream goes in buckets of bytes, none above a stated size. Knows neither Ray nor
how full tensors are put together.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Piece:
    """Some numbers of one tensor, as bytes."""

    name: str
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
                bucket.append(_piece(name, start, flat[start : start + count]))
                start, room = start + count, room - count * size
            if room < size:
                yield bucket
                bucket, room = [], num_bytes
    if bucket:
        yield bucket


def _piece(name: str, start: int, values: torch.Tensor) -> Piece:
    data = values.contiguous().cpu().view(torch.uint8).numpy().copy()
    return Piece(name, start, str(values.dtype).removeprefix("torch."), data)


class WeightSync:
    """The sending side on a rank. All ranks make the same calls, as full tensors are put together by all of them."""

    def __init__(
        self,
        source: Source,
        sampler: RolloutEngine | None,
        shares_module: bool,
        *,
        speaks: bool = True,
        dtype: torch.dtype | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """`sampler` is the one of this rank. The rank that `speaks` hands out buckets for others, real numbers as
        `dtype` (None: as they are).
        """
        self.source = source
        self.sampler = sampler
        self.shares_module = shares_module
        self.speaks = speaks
        self.dtype = dtype
        self.bucket_bytes = bucket_bytes
        self._stream: Iterator[Bucket] | None = None

    def push(self) -> int:
        """Bring this rank's sampler up to the policy. Returns the version that both have now."""
        if self.sampler is not None:
            self.sampler.load(() if self.shares_module else self.source.weights(), self.source.version)
        return self.source.version

    def next_bucket(self) -> Bucket | None:
        """The next one for a sampler elsewhere, empty on ranks that do not speak; None behind the last."""
        if self._stream is None:
            self._stream = buckets(self.source.weights(), self.bucket_bytes, self.dtype)
        bucket = next(self._stream, None)
        if bucket is None:
            self._stream = None
            return None
        return bucket if self.speaks else []


class Receiver(Protocol):
    """A sampler that can be fed piece by piece."""

    version: int

    def tensors(self) -> dict[str, torch.Tensor]:
        """Its own weights by name, to be written to."""
        ...


class WeightInlet:
    """The receiving side, in the process of a sampler that is fed from another one."""

    def __init__(self, sampler: Receiver) -> None:
        self.sampler = sampler
        self._come: Counter[str] = Counter()  # numbers of each tensor

    @torch.no_grad()
    def take(self, bucket: Bucket) -> None:
        """Write the pieces into the sampler's own tensors."""
        own = self.sampler.tensors()
        for piece in bucket:
            values = piece.values
            own[piece.name].view(-1)[piece.start : piece.start + len(values)].copy_(values)
            self._come[piece.name] += len(values)

    def finish(self, version: int) -> None:
        """All pieces have come, each once: answers carry this version from now on."""
        wanted = {name: tensor.numel() for name, tensor in self.sampler.tensors().items()}
        wrong = sorted(name for name, count in wanted.items() if self._come[name] != count)
        self._come.clear()
        assert not wrong, f"{len(wrong)} of {len(wanted)} weights did not come whole: {', '.join(wrong[:3])}"
        self.sampler.version = version
