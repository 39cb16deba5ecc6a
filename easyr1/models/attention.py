"""How tokens see each other: the one attention function of the text model, given an explicit layout.

transformers hands every attention layer to a registered function and passes extra keyword arguments down to it, so
packing and shared prefixes need no change to any model. A group lies in the row as `[prompt][answer 1]...[answer n]`;
prompt tokens attend causally to the prompt, answer tokens to the prompt and, causally, to their own answer. Outputs
and gradients equal those of n separate sequences (the idea is Prefix Grouper, arXiv:2506.05433). Positions are not
known here: rotary embedding has been applied before; a sliding window counts tokens from the start of the prompt.

The vision tower has its own function, which takes all windows of all pictures in one call.

Shape legend: L packed tokens, H query heads, K key/value heads, D head width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface

from easyr1.models.shared_prefix import SharedPrefixCpu

TEXT_ATTENTION = "easyr1"
VISION_ATTENTION = "easyr1_flash_vision"  # towers hand over their windows only to a name with "flash" in it

# Keywords that models pass along and that do not change who sees whom; any other with a value is refused.
HARMLESS = frozenset(
    {
        "position_ids",
        "use_cache",
        "cache_position",
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "logits_to_keep",
        "return_dict",
    }
)


class UnsupportedAttention(NotImplementedError):
    """A model asks for something our attention does not do; the padded layout must be chosen."""


class Layout(Protocol):
    """Who sees whom in one forward. Handed to the model as the keyword argument `layout`."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        """query (1, H, L, D), key and value (1, K, L, D) -> (1, L, H, D)."""
        ...


class PromptSink(Protocol):
    """Takes the keys and values of prompts while they are computed (see models/kv_cache.py)."""

    def store(self, layer: int, spans: Sequence["Span"], key: torch.Tensor, value: torch.Tensor) -> None: ...


@dataclass(frozen=True, slots=True)
class Span:
    """Where one group lies in the row: `start`, the length of its prompt, the lengths of its answers."""

    start: int
    prompt: int
    answers: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.start + self.prompt + sum(self.answers)


@dataclass(frozen=True)
class Packed:
    """Groups end to end in one row. With a `sink` the prompts' keys and values are kept for decoding."""

    spans: tuple[Span, ...]
    sink: PromptSink | None = None

    @cached_property
    def segments(self) -> tuple[tuple[int, int, int, int], ...]:
        """(query start, query length, prompt start, prompt length) of each run of queries; 0 for the prompts' own."""
        found = []
        for span in self.spans:
            found.append((span.start, span.prompt, span.start, 0))
            start = span.start + span.prompt
            for length in span.answers:
                found.append((start, length, span.start, span.prompt))
                start += length
        return tuple(found)

    @cached_property
    def longest(self) -> int:
        """Most keys that one query may see."""
        return max(length + prompt for _, length, _, prompt in self.segments)

    def varlen(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, int]:
        """For variable-length kernels: the keys of each segment as an index, cumulative query and key lengths,
        and the longest of both.

        The gather repeats a prompt's keys for each of its answers, so every segment is causal aligned to its end.
        """
        index = [
            torch.cat((torch.arange(first, first + prompt), torch.arange(start, start + length)))
            for start, length, first, prompt in self.segments
        ]
        query_lengths = torch.tensor([0] + [length for _, length, _, _ in self.segments])
        key_lengths = torch.tensor([0] + [len(part) for part in index])
        return (
            torch.cat(index).to(device),
            query_lengths.cumsum(0).to(device, torch.int32),
            key_lengths.cumsum(0).to(device, torch.int32),
            int(query_lengths.max()),
            int(key_lengths.max()),
        )

    @cached_property
    def _varlen_on_device(self) -> dict[torch.device, tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, int]]:
        return {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        if self.sink is not None:
            self.sink.store(layer, self.spans, key, value)
        if window is not None and window >= self.longest:
            window = None
        same_width = query.shape[-1] == value.shape[-1]
        if query.device.type == "cpu" and window is None and same_width:
            return SharedPrefixCpu.apply(query, key, value, self.spans, scale).transpose(1, 2)
        if query.device.type == "cuda" and query.dtype in (torch.bfloat16, torch.float16) and same_width:
            return self._attend_varlen(query, key, value, scale, window)
        return self._attend_segments(query, key, value, scale, window)

    def _attend_varlen(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        from torch.nn.attention.varlen import varlen_attn

        device = query.device
        if device not in self._varlen_on_device:
            self._varlen_on_device[device] = self.varlen(device)
        index, query_ends, key_ends, longest_query, longest_key = self._varlen_on_device[device]
        out = varlen_attn(
            query[0].transpose(0, 1),
            key[0].transpose(0, 1)[index],
            value[0].transpose(0, 1)[index],
            query_ends,
            key_ends,
            longest_query,
            longest_key,
            scale=scale,
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=query.shape[1] != key.shape[1],
        )
        assert isinstance(out, torch.Tensor)
        return out[None]

    def _attend_segments(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        """The plain form: one scaled_dot_product_attention a segment, with a mask that honours the window."""
        parts = []
        for start, length, first, prompt in self.segments:
            own = slice(start, start + length)
            seen = slice(first, first + prompt)
            keys = torch.cat((key[:, :, seen], key[:, :, own]), 2) if prompt else key[:, :, own]
            values = torch.cat((value[:, :, seen], value[:, :, own]), 2) if prompt else value[:, :, own]
            distance = (
                torch.arange(prompt, prompt + length, device=query.device)[:, None]
                - torch.arange(prompt + length, device=query.device)[None]
            )
            mask = distance >= 0 if window is None else (distance >= 0) & (distance < window)
            parts.append(
                F.scaled_dot_product_attention(
                    query[:, :, own],
                    keys,
                    values,
                    attn_mask=mask,
                    scale=scale,
                    enable_gqa=query.shape[1] != key.shape[1],
                )
            )
        return torch.cat(parts, 2).transpose(1, 2)


def text_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    layout: Layout | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    """The function that transformers calls in every decoder layer; raises on whatever it does not know."""
    unknown = sorted(name for name, value in keywords.items() if value is not None and name not in HARMLESS)
    if unknown:
        raise UnsupportedAttention(
            f"{type(module).__name__} passes {', '.join(unknown)}, which our attention does not do"
        )
    if layout is None:
        raise UnsupportedAttention(f"{type(module).__name__} did not pass our layout on")
    if attention_mask is not None:
        raise UnsupportedAttention(f"{type(module).__name__} passes a mask of its own")
    if dropout:
        raise UnsupportedAttention(f"{type(module).__name__} drops attention weights ({dropout}) in training")
    # Under autocast the rotation leaves queries and keys in float32; values come straight from their projection.
    query, key = query.to(value.dtype), key.to(value.dtype)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    layer = getattr(module, "layer_idx", None)
    if layer is None:
        raise UnsupportedAttention(f"{type(module).__name__} has no layer_idx")
    return layout.attend(layer, query, key, value, scale, sliding_window).contiguous(), None


def vision_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Full attention inside each window of a vision tower: query, key, value (1, H, L, D) -> (1, L, H, D).

    On CUDA one variable-length call; elsewhere one batched call for each distinct window length.
    """
    if cu_seq_lens_q is None or attention_mask is not None:
        raise UnsupportedAttention(f"{type(module).__name__} does not hand over its windows")
    query, key = query.to(value.dtype), key.to(value.dtype)
    if query.device.type == "cuda" and query.dtype in (torch.bfloat16, torch.float16):
        from torch.nn.attention.varlen import varlen_attn

        ends = cu_seq_lens_q.to(torch.int32)
        longest = int(max_length_q) if max_length_q is not None else int((ends[1:] - ends[:-1]).max())
        query, key, value = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
        out = varlen_attn(query, key, value, ends, ends, longest, longest, scale=scaling)
        assert isinstance(out, torch.Tensor)
        return out[None], None
    return _windows_by_length(query, key, value, cu_seq_lens_q, scaling).transpose(1, 2).contiguous(), None


def _windows_by_length(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends: torch.Tensor, scale: float | None
) -> torch.Tensor:
    starts_of: dict[int, list[int]] = {}
    for start, end in pairwise(ends.tolist()):
        starts_of.setdefault(end - start, []).append(start)
    result = torch.empty_like(query)
    for length, starts in starts_of.items():
        index = (torch.tensor(starts)[:, None] + torch.arange(length)).flatten().to(query.device)
        whole = len(starts_of) == 1  # all windows alike: a view does
        q, k, v = (
            _as_windows(tensor[0] if whole else tensor[0][:, index], len(starts), length)
            for tensor in (query, key, value)
        )
        out = F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(0, 1)
        out = out.reshape(1, query.shape[1], -1, query.shape[3])
        result = out if whole else result.index_copy(2, index, out)
    return result


def _as_windows(tensor: torch.Tensor, windows: int, length: int) -> torch.Tensor:
    """(H, L, D) -> (windows, H, length, D)."""
    return tensor.reshape(tensor.shape[0], windows, length, tensor.shape[-1]).transpose(0, 1)


class MaskProbe:
    """Remembers the mask functions that models asked for; our attention itself needs no mask."""

    seen: list[Any] = []

    @classmethod
    def take(cls) -> list[Any]:
        found, cls.seen = cls.seen, []
        return found


def _no_mask(*_: Any, mask_function: Any = None, **__: Any) -> None:
    if mask_function is not None and len(MaskProbe.seen) < 64:
        MaskProbe.seen.append(mask_function)


AttentionInterface.register(TEXT_ATTENTION, text_attention)
AttentionInterface.register(VISION_ATTENTION, vision_attention)
AttentionMaskInterface.register(TEXT_ATTENTION, _no_mask)
