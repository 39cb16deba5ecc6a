"""Training where ranks share rows: sharded, and the same losses and weights as alone."""

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import ranked
import torch
from ranks import on_ranks
from scenes import Scene

from easyr1.batch import merge_sums
from easyr1.engines.objective import PolicyObjective, ValueObjective
from easyr1.engines.optimizer import OptimSpec
from easyr1.models.build import ModelSpec, build
from easyr1.models.lora import LoraSpec
from easyr1.models.ranks import ALONE, join

pytestmark = pytest.mark.slow

GSPO = PolicyObjective(loss="gspo", average="seq", kl_penalty="low_var_kl", entropy_coef=0.01, correction="tis")
CPU = torch.device("cpu")


def _on_rank(training: ranked.Training, sequence: int) -> ranked.Outcome:
    return ranked.run(training, join(CPU, training.fsdp_size, sequence))


def on(world: int, sequence: int, training: ranked.Training) -> ranked.Outcome:
    """The training on replicas of `sequence` ranks, whose members must tell the same."""
    parts = on_ranks(world, _on_rank, training, sequence)
    for number, part in enumerate(parts):
        first = parts[number - number % sequence]
        assert [one.totals for one in part.steps] == [one.totals for one in first.steps]
        for one, other in zip(chain(*part.scores), chain(*first.scores), strict=True):
            assert (one == other).all()
    parts = parts[::sequence]
    groups = training.groups(Scene(training.kind))
    whole = [id(group) for group in groups]
    scores, reference = ([[] for _ in groups] for _ in range(2))
    for share, part in zip(training.shares(groups, len(parts)), parts, strict=True):
        for together, own in ((scores, part.scores), (reference, part.reference)):
            for group, found in zip(share if own else (), own, strict=True):
                together[whole.index(id(group))] = found
    steps = [merge_sums(part.steps[number] for part in parts) for number in range(training.steps)]
    return ranked.Outcome(steps, scores, parts[0].weights, reference)


def assert_alike(shared: ranked.Outcome, alone: ranked.Outcome) -> None:
    """Losses, scores and weights to 1e-5; norms of gradients, in which Adam lets rounding grow, to 1e-6 at first."""
    (key,) = {name for name in alone.steps[0].totals if name.endswith("/grad_norm")}
    norms = [[step.totals.pop(key)[0] for step in outcome.steps] for outcome in (shared, alone)]
    ranked.close(norms[0][0], norms[1][0], 1e-6, "first norm")
    for found, wanted in zip(*norms, strict=True):
        ranked.close(found, wanted, 1e-4, "norm")
    ranked.assert_same(shared, alone)


def made(kind: str, tmp_path_factory) -> ranked.Training:
    folder = ranked.saved(kind, tmp_path_factory.mktemp(kind))
    return ranked.Training(ModelSpec(str(folder)), kind)


@pytest.fixture(scope="module", params=["qwen2", "qwen2_5_vl", "qwen3_vl"])
def training(request, tmp_path_factory):
    return made(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def with_pictures(tmp_path_factory):
    return made("qwen3_vl", tmp_path_factory)


def test_two_ranks_that_share_rows_train_like_one(training):
    assert_alike(on(2, 2, training), ranked.run(training, ALONE))


@pytest.mark.slow
def test_with_checkpointing_and_a_sum_over_ranks_for_each_micro_batch(with_pictures):
    spec = replace(with_pictures.spec, gradient_checkpointing=True)
    other = replace(with_pictures, spec=spec, reduce_each_micro_batch=True, steps=2)
    assert_alike(on(2, 2, other), ranked.run(replace(with_pictures, steps=2), ALONE))


@pytest.mark.slow
@pytest.mark.parametrize("fsdp_size", [-1, 2])
@pytest.mark.parametrize("shares", [ranked.alternating, ranked.pictures_apart, ranked.all_on_the_last])
def test_two_replicas_of_two_ranks_train_like_one(training, shares, fsdp_size):
    training = replace(training, shares=shares, fsdp_size=fsdp_size)
    assert_alike(on(4, 2, training), ranked.run(training, ALONE))


@pytest.mark.slow
def test_four_ranks_that_share_rows_train_like_one(training):
    assert_alike(on(4, 4, training), ranked.run(training, ALONE))


@pytest.mark.slow
def test_a_critic_and_a_loss_of_whole_answers(with_pictures):
    for change in ({"is_critic": True, "objective": ValueObjective()}, {"objective": GSPO}):
        other = replace(with_pictures, steps=2, **change)
        assert_alike(on(2, 2, other), ranked.run(other, ALONE))


@pytest.mark.slow
def test_adapters_and_the_model_without_them(with_pictures):
    lora = LoraSpec(rank=4, alpha=64, exclude_modules=None)
    other = replace(
        with_pictures, spec=replace(with_pictures.spec, lora=lora), optim=OptimSpec(lr=1e-3), seed=7, steps=2
    )
    shared, alone = on(2, 2, other), ranked.run(other, ALONE)
    assert_alike(shared, alone)
    for one, wanted in zip(chain(*shared.reference), chain(*alone.reference), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=0, atol=1e-4)


def divergences(training: ranked.Training, sequence: int) -> tuple[list[np.ndarray], dict[str, float]]:
    """Whole KL to a frozen model, of each token; and means of an update in which it is the loss."""
    ranks, scene = join(CPU, sequence=sequence), Scene(training.kind)
    engine = training.engine(ranks, scene)
    engine.against = build(replace(training.spec, path=f"{training.spec.path}-other"), trainable=False, ranks=ranks)
    groups = training.groups(scene)
    found = engine.divergence(groups)
    return list(chain(*found)), engine.update(groups, 0.0, kl_coef=0.5).means()


@pytest.mark.slow
def test_the_whole_divergence_from_a_sharded_reference(with_pictures):
    ranked.saved(with_pictures.kind, Path(f"{with_pictures.spec.path}-other"), seed=3)
    training = replace(with_pictures, objective=PolicyObjective(kl_penalty="full"))
    ((alone, means),) = on_ranks(1, divergences, training, 1)
    (first, shared), (second, others) = on_ranks(2, divergences, training, 2)
    assert shared == others and all((one == other).all() for one, other in zip(first, second, strict=True))
    assert max(values.max() for values in alone) > 0.01
    for one, other in zip(alone, first, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-5)
    assert shared == pytest.approx(means, abs=1e-5)
