"""The attention function itself: kernels agree, windows count positions, unknown keywords are refused."""

import pytest
import torch
from torch.nn import functional as F

from easyr1.models.attention import (
    Packed,
    Span,
    UnsupportedAttention,
    text_attention,
    vision_attention,
)

LAYOUT = Packed((Span(0, 30, (7, 20, 1)), Span(58, 11), Span(69, 22, (9, 5))))
LENGTH = 105


def tensors(dtype=torch.float32):
    random = torch.Generator().manual_seed(0)
    query = torch.randn(1, 8, LENGTH, 32, generator=random) * 3
    key, value = (torch.randn(1, 2, LENGTH, 32, generator=random) for _ in range(2))
    return [tensor.to(dtype).requires_grad_() for tensor in (query, key, value)]


def visible(window: int | None) -> torch.Tensor:
    """(L, L) which token may see which, written out from the definition."""
    group = torch.full((LENGTH,), -1)
    answer = torch.full((LENGTH,), -1)
    position = torch.zeros(LENGTH, dtype=torch.long)
    for number, span in enumerate(LAYOUT.spans):
        group[span.start : span.end] = number
        position[span.start : span.start + span.prompt] = torch.arange(span.prompt)
        start = span.start + span.prompt
        for which, length in enumerate(span.answers):
            answer[start : start + length] = which
            position[start : start + length] = span.prompt + torch.arange(length)
            start += length
    same_group = group[:, None] == group[None]
    same_answer = (answer[:, None] == answer[None]) | (answer[None] == -1)
    distance = position[:, None] - position[None]
    return same_group & same_answer & (distance >= 0) & (distance < (window or LENGTH))


def reference(query, key, value, window):
    keys, values = (tensor.repeat_interleave(4, 1) for tensor in (key, value))
    out = F.scaled_dot_product_attention(query, keys, values, attn_mask=visible(window), scale=0.2)
    return out.transpose(1, 2)


@pytest.mark.parametrize("window", (None, 6, 40, 1000))
def test_forward_and_backward_equal_a_full_mask(window):
    found = []
    for attend in (lambda *t: LAYOUT.attend(0, *t, 0.2, window), lambda *t: reference(*t, window)):
        inputs = tensors()
        out = attend(*inputs)
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        found.append([out.detach()] + [tensor.grad for tensor in inputs])
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).norm() / theirs.norm() < 2e-6


def test_bfloat16_stays_within_its_rounding():
    ours = LAYOUT.attend(0, *tensors(torch.bfloat16), 0.2, None)
    assert ours.dtype == torch.bfloat16
    theirs = LAYOUT.attend(0, *tensors(), 0.2, None)
    assert (ours.float() - theirs).norm() / theirs.norm() < 1e-2


@pytest.mark.parametrize("window", (None, 6))
def test_the_variable_length_form_names_the_keys_of_every_segment(window):
    """What the CUDA kernel is given, run segment by segment with plain attention aligned to the end of the keys."""
    query, key, value = tensors()
    index, query_ends, key_ends, longest_query, longest_key = LAYOUT.varlen(torch.device("cpu"))
    parts = []
    for segment in range(len(query_ends) - 1):
        queries = slice(int(query_ends[segment]), int(query_ends[segment + 1]))
        keys = index[int(key_ends[segment]) : int(key_ends[segment + 1])]
        num_queries, num_keys = queries.stop - queries.start, len(keys)
        distance = torch.arange(num_queries)[:, None] + num_keys - num_queries - torch.arange(num_keys)[None]
        mask = (distance >= 0) & (distance < (window or num_keys + 1))
        seen, values = (tensor[:, :, keys].repeat_interleave(4, 1) for tensor in (key, value))
        parts.append(F.scaled_dot_product_attention(query[:, :, queries], seen, values, attn_mask=mask, scale=0.2))
        assert num_queries <= longest_query and num_keys <= longest_key
    out = torch.cat(parts, 2).transpose(1, 2)
    torch.testing.assert_close(out, reference(query, key, value, window), rtol=0, atol=1e-5)


class Layer(torch.nn.Module):
    layer_idx = 0


@pytest.mark.parametrize(
    "keywords",
    (
        {"softcap": 30.0},
        {"s_aux": torch.zeros(8)},
        {"a_keyword_of_the_future": 1},
        {"attention_mask": torch.ones(1, 1, LENGTH, LENGTH)},
        {"dropout": 0.1},
        {"layout": None},
    ),
)
def test_what_it_does_not_know_is_refused(keywords):
    call = {"layout": LAYOUT, "scaling": 0.2, "position_ids": torch.arange(3), "use_cache": False} | keywords
    with pytest.raises(UnsupportedAttention):
        text_attention(Layer(), *tensors(), **call)


@pytest.mark.parametrize("lengths", ((8, 8, 8, 8), (4, 9, 4, 1, 14)))
def test_vision_windows_see_only_themselves(lengths):
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, sum(lengths), 16, generator=random) for _ in range(3))
    ends = torch.tensor([0, *lengths]).cumsum(0)
    ours, _ = vision_attention(Layer(), query, key, value, scaling=0.25, cu_seq_lens_q=ends)
    parts = [tensor.split(list(lengths), 2) for tensor in (query, key, value)]
    theirs = torch.cat([F.scaled_dot_product_attention(*part, scale=0.25) for part in zip(*parts, strict=True)], 2)
    torch.testing.assert_close(ours, theirs.transpose(1, 2))
