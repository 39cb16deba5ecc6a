"""Training where ranks share rows: sharded, and the same losses and weights as alone."""

from dataclasses import replace
from itertools import chain

import pytest
import ranked
import torch
from ranks import on_ranks
from scenes import Scene

from easyr1.batch import merge_sums
from easyr1.models.build import ModelSpec
from easyr1.models.ranks import ALONE, join

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
    scores = [[] for _ in groups]
    for share, part in zip(training.shares(groups, len(parts)), parts, strict=True):
        for group, found in zip(share, part.scores, strict=True):
            scores[whole.index(id(group))] = found
    steps = [merge_sums(part.steps[number] for part in parts) for number in range(training.steps)]
    return ranked.Outcome(steps, scores, parts[0].weights)


def assert_alike(shared: ranked.Outcome, alone: ranked.Outcome) -> None:
    """Losses, scores and weights to 1e-5; norms of gradients, in which Adam lets rounding grow, to 1e-6 at first."""
    norms = [[step.totals.pop("actor/grad_norm")[0] for step in outcome.steps] for outcome in (shared, alone)]
    ranked.close(norms[0][0], norms[1][0], 1e-6, "first norm")
    for found, wanted in zip(*norms, strict=True):
        ranked.close(found, wanted, 1e-4, "norm")
    ranked.assert_same(shared, alone)


@pytest.fixture(scope="module", params=["qwen2", "qwen2_5_vl", "qwen3_vl"])
def training(request, tmp_path_factory):
    folder = ranked.saved(request.param, tmp_path_factory.mktemp(request.param))
    return ranked.Training(ModelSpec(str(folder)), request.param)


def test_two_ranks_that_share_rows_train_like_one(training):
    assert_alike(on(2, 2, training), ranked.run(training, ALONE))


def test_with_checkpointing_and_a_sum_over_ranks_for_each_micro_batch(training):
    spec = replace(training.spec, gradient_checkpointing=True)
    other = replace(training, spec=spec, reduce_each_micro_batch=True, steps=2)
    assert_alike(on(2, 2, other), ranked.run(replace(training, steps=2), ALONE))


@pytest.mark.slow
@pytest.mark.parametrize("fsdp_size", [-1, 2])
@pytest.mark.parametrize("shares", [ranked.alternating, ranked.pictures_apart, ranked.all_on_the_last])
def test_two_replicas_of_two_ranks_train_like_one(training, shares, fsdp_size):
    training = replace(training, shares=shares, fsdp_size=fsdp_size)
    assert_alike(on(4, 2, training), ranked.run(training, ALONE))


@pytest.mark.slow
def test_four_ranks_that_share_rows_train_like_one(training):
    assert_alike(on(4, 4, training), ranked.run(training, ALONE))
