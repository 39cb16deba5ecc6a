"""Sequence parallelism: ranks that share rows compute what one rank computes, and know it to the same last bit."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from scenes import Scene, model, packed, packer

from easyr1.engines.pack import Budget, cut
from easyr1.models.ranks import ALONE, join
from easyr1.models.scored import Scored

CPU = torch.device("cpu")


@dataclass
class Found:
    """Scores and gradients of the micro-batches of some groups."""

    scores: list[torch.Tensor]
    grads: dict[str, torch.Tensor]


def computed(scored: Scored, micro_batches: list[Any], reference: Scored | None = None) -> Found:
    """A loss in which each token counts differently. With a `reference`, its divergence is a part of it."""
    scored.zero_grad(set_to_none=True)
    scores = []
    for batch in micro_batches:
        others = None
        if reference is not None:
            with torch.no_grad():
                others = reference(batch.inputs, temperature=0.8)
        found = scored(batch.inputs, batch.targets, 0.8, others)
        weights = torch.linspace(-1, 2, len(batch.targets))
        ((found.log_probs + 3 * found.kl) * weights).sum().backward()
        scores.append(torch.stack(tuple(found)).detach())
    return Found(scores, {name: one.grad for name, one in scored.named_parameters() if one.grad is not None})


def batches(scored: Scored, scene: Scene, groups: list[Any], tokens: int) -> list[Any]:
    of = packer(scored, scene)
    return [of.micro_batch(groups, pieces, CPU) for pieces in cut(groups, Budget(tokens))]


def compare(scored: Scored, micro_batches: list[Any], reference: Scored | None = None) -> None:
    """One rank alone against the ranks of a replica. Runs on each rank."""
    scored.ranks = ALONE
    if reference is not None:
        reference.ranks = ALONE
    alone = computed(scored, micro_batches, reference)
    scored.ranks = join(CPU, sequence=dist.get_world_size())
    if reference is not None:
        reference.ranks = scored.ranks
    shared = computed(scored, micro_batches, reference)
    for one, other in zip(alone.scores, shared.scores, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-5)
        peers = [torch.empty_like(other) for _ in range(scored.ranks.sequence)]
        dist.all_gather(peers, other)
        assert all(torch.equal(peer, other) for peer in peers)
    assert shared.grads.keys() == alone.grads.keys()
    for name, one in alone.grads.items():
        other = shared.grads[name].clone()
        dist.all_reduce(other)
        assert (other - one).norm() <= 1e-5 * one.norm().clamp(min=1e-3), name


def of_kind(kind: str, tokens: int, sizes: dict[str, int] | None = None) -> None:
    scene = Scene(kind)
    scored = packed(model(kind, **(sizes or {}))).train()  # type: ignore[arg-type]
    compare(scored, batches(scored, scene, scene.groups(), tokens))


@pytest.mark.parametrize("tokens", [1000, 60])
def test_text(tokens: int):
    on_ranks(2, of_kind, "qwen2", tokens)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("tokens", [1000, 60])
def test_pictures(kind: str, tokens: int):
    on_ranks(2, of_kind, kind, tokens)
