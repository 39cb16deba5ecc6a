"""Shared prefix = packed = padded: log-probs and every gradient, for text, sliding-window and vision models."""

import copy

import pytest
import scenes
import torch

from easyr1.batch import Group
from easyr1.engines.pack import Budget, cut
from easyr1.models.scored import Scored

KINDS = ("qwen2", "mistral_window", "qwen2_5_vl", "qwen3_vl")
TEMPERATURE = 0.7


def passes(scored: Scored, scene: scenes.Scene, groups: list[Group], budget: Budget):
    """Log-probs by (group, sample), and the gradients of a loss that weighs every token differently."""
    packer = scenes.packer(scored, scene)
    found = {}
    for pieces in cut(groups, budget):
        batch = packer.micro_batch(groups, pieces, torch.device("cpu"))
        log_probs = scored(batch.inputs, batch.targets, TEMPERATURE).log_probs
        log_probs.square().sum().backward()
        found.update(zip(batch.places, batch.split(log_probs.detach()), strict=True))
    grads = {name: grad.grad for name, grad in scored.model.named_parameters() if grad.grad is not None}
    return found, grads


def assert_equal(left, right, log_prob_gap: float, gradient_gap: float) -> None:
    assert left[0].keys() == right[0].keys()
    for place, values in left[0].items():
        torch.testing.assert_close(values, right[0][place], rtol=0, atol=log_prob_gap)
    assert left[1].keys() == right[1].keys()
    norm = torch.stack([grad.norm() for grad in right[1].values()]).max()
    for name, grad in left[1].items():
        gap = (grad - right[1][name]).norm() / right[1][name].norm().clamp_min(1e-6 * norm)
        assert gap < gradient_gap, f"{name}: {gap:.1e}"


@pytest.mark.parametrize("kind", KINDS)
def test_shared_prefix_equals_padded_rows(kind):
    """In float64, where rounding hides nothing; the stock attention of the padded side still merges in float32."""
    scene = scenes.Scene(kind)
    groups = scene.groups()
    built = scenes.model(kind, torch.float64)
    reference = copy.deepcopy(built)
    ours = passes(scenes.packed(built), scene, groups, Budget(tokens=100_000))
    theirs = passes(scenes.padded(reference), scene, groups, Budget(samples=100))
    assert min(float(values.min()) for values in ours[0].values()) < -3  # not a trivial scene
    assert_equal(ours, theirs, 1e-6, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_as_exact_as_rounding_allows(kind):
    scene = scenes.Scene(kind, seed=1)
    groups = scene.groups()
    ours = passes(scenes.packed(scenes.model(kind)), scene, groups, Budget(tokens=100_000))
    theirs = passes(scenes.padded(scenes.model(kind)), scene, groups, Budget(samples=100))
    assert_equal(ours, theirs, 1e-5, 5e-5)


@pytest.mark.parametrize("kind", ("qwen3", "qwen2_5_vl"))
@pytest.mark.parametrize("budget", (Budget(samples=1), Budget(samples=2), Budget(tokens=60)))
def test_a_group_split_over_micro_batches_changes_nothing(kind, budget):
    scene = scenes.Scene(kind, seed=2)
    groups = scene.groups()
    built = scenes.model(kind)
    whole = passes(scenes.packed(copy.deepcopy(built)), scene, groups, Budget(tokens=100_000))
    split = passes(scenes.packed(built), scene, groups, budget)
    assert len(cut(groups, budget)) > 1
    assert_equal(split, whole, 1e-5, 1e-5)


def test_text_only_rows_among_picture_rows_are_what_they_are_alone():
    """B06: a picture in the same micro-batch changes nothing for a row without one."""
    scene = scenes.Scene("qwen2_5_vl")
    groups = scene.groups()
    scored = scenes.packed(scenes.model("qwen2_5_vl"))
    together, _ = passes(scored, scene, groups, Budget(tokens=100_000))
    alone, grads = passes(scenes.packed(scenes.model("qwen2_5_vl")), scene, [groups[1]], Budget(tokens=100_000))
    torch.testing.assert_close(alone[0, 0], together[1, 0], rtol=0, atol=1e-6)
    assert not any("visual" in name for name in grads)


@pytest.mark.parametrize("checkpointing", (False, True))
def test_gradient_checkpointing_keeps_the_layout(checkpointing):
    scene = scenes.Scene("qwen3_vl")
    groups = scene.groups()
    scored = scenes.packed(scenes.model("qwen3_vl"))
    if checkpointing:
        scored.model.gradient_checkpointing_enable({"use_reentrant": False})
    plain = passes(scenes.packed(scenes.model("qwen3_vl")), scene, groups, Budget(tokens=100_000))
    scored.train()
    assert_equal(passes(scored, scene, groups, Budget(tokens=100_000)), plain, 1e-6, 1e-5)
