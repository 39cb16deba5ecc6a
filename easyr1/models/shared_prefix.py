"""Shared-prefix attention on a CPU: the prompt part and the own part of each answer, merged by their log-sum-exp.

Keys and values of a prompt are neither repeated nor joined to those of its answers. The two parts are exact halves of
one softmax: with log-sum-exps a and b, the whole is exp(a - c) * part_a + exp(b - c) * part_b where c = logaddexp(a,
b), and the flash backward of each part, given the merged output and c, yields that part's exact gradient (Dao et al.,
arXiv:2205.14135).
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from easyr1.models.attention import Span

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def _own_parts(span: "Span") -> Iterator[slice]:
    start = span.start + span.prompt
    for length in span.answers:
        yield slice(start, start + length)
        start += length


class SharedPrefixCpu(torch.autograd.Function):
    """apply(query (1, H, L, D), key (1, K, L, D), value (1, K, L, D), spans, scale) -> (1, H, L, D)."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spans: Sequence["Span"], scale: float
    ) -> torch.Tensor:
        repeat = query.shape[1] // key.shape[1]
        keys, values = (tensor.repeat_interleave(repeat, 1) for tensor in (key, value))
        out = torch.empty_like(query)
        lse = torch.empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
        for span in spans:
            prompt = slice(span.start, span.start + span.prompt)
            out[:, :, prompt], lse[:, :, prompt] = _part(query, keys, values, prompt, prompt, True, scale)
            if not span.answers:
                continue
            answers = slice(span.start + span.prompt, span.end)
            seen, seen_lse = _part(query, keys, values, answers, prompt, False, scale)
            for own in _own_parts(span):
                out[:, :, own], lse[:, :, own] = _part(query, keys, values, own, own, True, scale)
            own_lse = lse[:, :, answers]
            whole = torch.logaddexp(own_lse, seen_lse)
            merged = (
                out[:, :, answers] * (own_lse - whole).exp()[..., None] + seen * (seen_lse - whole).exp()[..., None]
            )
            out[:, :, answers] = merged.to(out.dtype)
            lse[:, :, answers] = whole
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.spans, ctx.scale = spans, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        grad = grads[0].contiguous()
        repeat = query.shape[1] // key.shape[1]
        keys, values = (tensor.repeat_interleave(repeat, 1) for tensor in (key, value))
        grad_query, grad_keys, grad_values = torch.empty_like(query), torch.zeros_like(keys), torch.zeros_like(values)

        def part(queries: slice, seen: slice, causal: bool) -> torch.Tensor:
            """Adds to the gradients of keys and values; returns that of the queries."""
            by_query, by_key, by_value = _backward(
                grad[:, :, queries],
                query[:, :, queries],
                keys[:, :, seen],
                values[:, :, seen],
                out[:, :, queries],
                lse[:, :, queries].contiguous(),
                0.0,
                causal,
                scale=ctx.scale,
            )
            grad_keys[:, :, seen] += by_key
            grad_values[:, :, seen] += by_value
            return by_query

        for span in ctx.spans:
            prompt = slice(span.start, span.start + span.prompt)
            grad_query[:, :, prompt] = part(prompt, prompt, True)
            if span.answers:
                answers = slice(prompt.stop, span.end)
                grad_query[:, :, answers] = part(answers, prompt, False)
                for own in _own_parts(span):
                    grad_query[:, :, own] += part(own, own, True)

        def fold(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.unflatten(1, (key.shape[1], repeat)).sum(2)

        return grad_query, fold(grad_keys), fold(grad_values), None, None


def _part(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    queries: slice,
    seen: slice,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of some queries to some keys, and its log-sum-exp (1, H, queries)."""
    return _forward(query[:, :, queries], keys[:, :, seen], values[:, :, seen], 0.0, causal, scale=scale)
