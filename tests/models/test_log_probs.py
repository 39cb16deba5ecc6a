"""The chunked head: the same numbers and gradients as one big softmax, and never more than a chunk of logits."""

import pytest
import torch

from easyr1.models import log_probs as head_module
from easyr1.models.log_probs import normalised, token_log_probs

BANNED = torch.tensor([3, 7])


def scene(dtype=torch.float64):
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(23, 8, generator=random).to(dtype).requires_grad_()
    head = torch.nn.Linear(8, 11, bias=False, dtype=dtype)
    with torch.no_grad():
        head.weight.copy_(torch.randn(11, 8, generator=random))
    targets = torch.tensor([0, 1, 2, 4, 5, 6, 8, 9, 10, 0, 1, 2] * 2)[:23]
    return hidden, head, targets


@pytest.mark.parametrize("elements", (1, 5 * 11, 10_000))
def test_chunks_change_neither_numbers_nor_gradients(monkeypatch, elements):
    monkeypatch.setattr(head_module, "CHUNK_ELEMENTS", elements)
    hidden, head, targets = scene()
    ours, entropy, _ = token_log_probs(hidden, head, targets, BANNED, 0.7)
    (ours * torch.linspace(-1, 1, 23)).sum().backward()
    found = hidden.grad, head.weight.grad
    hidden, head, targets = scene()
    logits = head(hidden) / 0.7
    logits[:, BANNED] = -torch.inf
    whole = logits.log_softmax(-1)
    picked = whole.gather(-1, targets[:, None])[:, 0]
    (picked * torch.linspace(-1, 1, 23)).sum().backward()
    torch.testing.assert_close(ours, picked)
    for left, right in zip(found, (hidden.grad, head.weight.grad), strict=True):
        torch.testing.assert_close(left, right)
    probs = whole.exp()
    torch.testing.assert_close(entropy, -(probs * whole.masked_fill(probs == 0, 0)).sum(-1))


def test_no_more_than_a_chunk_of_logits_exists_at_a_time(monkeypatch):
    monkeypatch.setattr(head_module, "CHUNK_ELEMENTS", 5 * 11)
    hidden, head, targets = scene()
    rows = []
    head.register_forward_hook(lambda _, inputs, output: rows.append(len(output)))
    token_log_probs(hidden, head, targets, BANNED, 1.0)
    assert max(rows) == 5 and sum(rows) - 1 == 23  # one row was asked for to learn the vocabulary's size


def test_low_precision_logits_are_normalised_in_float32():
    logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = normalised(logits, BANNED, 0.5)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(4))
    assert torch.isinf(found[:, BANNED]).all()


@pytest.mark.parametrize("elements", (5 * 11, 10_000))
def test_the_whole_kl_is_the_divergence_and_its_gradient_is_exact(monkeypatch, elements):
    monkeypatch.setattr(head_module, "CHUNK_ELEMENTS", elements)
    hidden, head, targets = scene()
    other = torch.randn(23, 11, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    other[:, BANNED] = -torch.inf
    other = other.log_softmax(-1)
    found = token_log_probs(hidden, head, targets, BANNED, 0.7, against=other).kl
    found.sum().backward()
    ours = hidden.grad
    hidden, head, targets = scene()
    kept = [number for number in range(11) if number not in BANNED]
    policy = (head(hidden) / 0.7)[:, kept].log_softmax(-1)
    wanted = torch.nn.functional.kl_div(other[:, kept], policy, log_target=True, reduction="none").sum(-1)
    wanted.sum().backward()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(ours, hidden.grad)
    assert (token_log_probs(hidden, head, targets, BANNED, 0.7).kl == 0).all()


def test_an_entropy_has_a_gradient_on_request_only():
    hidden, head, targets = scene()
    assert not token_log_probs(hidden, head, targets, BANNED, 1.0).entropy.requires_grad
    token_log_probs(hidden, head, targets, BANNED, 1.0, entropy_gradient=True).entropy.sum().backward()
    assert torch.isfinite(hidden.grad).all() and hidden.grad.abs().max() > 0
