"""Training on several ranks in less plain ways: the same as alone, too."""

from dataclasses import replace

import pytest
import ranked
import scenes
import torch
from ranks import on_ranks

from easyr1.batch import merge_sums
from easyr1.engines.objective import PolicyObjective, ValueObjective
from easyr1.engines.pack import Budget
from easyr1.models import log_probs
from easyr1.models.build import ModelSpec
from easyr1.models.lora import LoraSpec
from easyr1.models.parallel import Sharding
from easyr1.models.ranks import ALONE, join
from easyr1.models.scored import Unadapted

CPU = torch.device("cpu")


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def with_pictures(tmp_path_factory):
    folder = ranked.saved("qwen2_5_vl", tmp_path_factory.mktemp("model"))
    return ranked.Training(ModelSpec(str(folder)), "qwen2_5_vl", steps=2)


def of_critic(training):
    return replace(training, is_critic=True, objective=ValueObjective())


def with_adapters(training):
    lora = LoraSpec(rank=4, alpha=64, exclude_modules=None)
    return replace(training, spec=replace(training.spec, lora=lora))


@pytest.mark.parametrize("change", (lambda it: it, slow(of_critic), slow(with_adapters)))
def test_weights_and_moments_may_come_back_as_other_tensors(with_pictures, change):
    training = replace(change(with_pictures), shares=ranked.alternating)
    for first, second in on_ranks(2, moved, training):
        assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def moved(training):
    """Weights of a straight run, and of one whose numbers lie elsewhere after each update, as after sleep on a GPU."""
    found = []
    for moves in (False, True):
        ranks, scene = join(CPU), scenes.Scene(training.kind)
        engine = training.engine(ranks, scene)
        share = training.shares(training.groups(scene), 2)[ranks.rank]
        for _ in range(3):  # numbers of old places would be seen from the second one after a move on
            engine.score(share)
            engine.update(share, 1e-3)
            if moves:
                before = places(engine)
                engine.sleep()
                engine.scored._apply(torch.clone)
                for moments in engine.optimizer.state.values():
                    moments |= {name: one.clone() for name, one in moments.items() if name != "step"}
                engine.wake()
                assert all(before[name] != place for name, place in places(engine).items())
        found.append({name: tensor.clone() for name, tensor in engine.weights()})
    return found


def places(engine):
    """Where the numbers of each part of a weight lie, unless it is empty."""
    own = {name: parameter.to_local() for name, parameter in engine.scored.named_parameters()}
    return {name: part.data_ptr() for name, part in own.items() if part.numel()}


@pytest.mark.parametrize("full_shard", (True, slow(False)))
def test_long_vocabularies_are_scored_in_pieces_on_two_ranks(with_pictures, full_shard, monkeypatch, tmp_path):
    monkeypatch.setattr(log_probs, "CHUNK_ELEMENTS", 5 * 512)
    folder = ranked.saved("qwen2", tmp_path, tie_word_embeddings=True)
    spec = ModelSpec(str(folder), sharding=Sharding(full_shard=full_shard))
    training = replace(with_pictures, spec=spec, kind="qwen2")
    ranked.assert_same(ranked.on(2, training), ranked.run(training, ALONE))


@pytest.mark.slow
def test_padded_rows_are_the_same_on_two_ranks(with_pictures):
    spec = replace(with_pictures.spec, packed=False)
    training = replace(with_pictures, spec=spec, shares=ranked.pictures_apart, budget=Budget(samples=1))
    ranked.assert_same(ranked.on(2, training), ranked.run(training, ALONE))


@pytest.mark.slow
def test_a_frozen_tower_with_recomputed_activations_is_the_same_on_two_ranks(with_pictures):
    spec = replace(with_pictures.spec, freeze_vision_tower=True, gradient_checkpointing=True)
    training = replace(with_pictures, spec=spec, shares=ranked.pictures_apart, budget=Budget(samples=1))
    alone = ranked.run(training, ALONE)
    ranked.assert_same(ranked.on(2, training), alone)
    start = ranked.run(replace(training, steps=0), ALONE)
    stays = {name: torch.equal(tensor, start.weights[name]) for name, tensor in alone.weights.items()}
    assert {name for name, same in stays.items() if same} == {name for name in stays if "visual" in name}


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", (False, True))
def test_the_whole_kl_to_the_policy_without_adapters_is_the_same_on_two_ranks(with_pictures, checkpointing):
    spec = replace(with_adapters(with_pictures).spec, gradient_checkpointing=checkpointing)
    objective = PolicyObjective(kl_penalty="full")
    training = replace(
        with_pictures, spec=spec, objective=objective, seed=7, shares=ranked.pictures_apart, budget=Budget(samples=1)
    )
    alone, two = whole_kl(training, ALONE), on_ranks(2, whole_kl, training)
    for rank in two:
        for name, tensor in alone[0].items():
            torch.testing.assert_close(rank[0][name], tensor, rtol=0, atol=1e-5)
    together = [merge_sums(rank[1][number] for rank in two).means() for number in range(3)]
    assert together[2]["actor/kl_loss"] > 0.005
    for one, other in zip(together, (sums.means() for sums in alone[1]), strict=True):
        for name, value in one.items():
            ranked.close(value, other[name], 1e-4, name)


def whole_kl(training, ranks=None):
    """Weights after some updates and what they told, with the distributions of the policy without its adapters."""
    ranks, scene = ranks or join(CPU), scenes.Scene(training.kind)
    share = training.shares(training.groups(scene), ranks.num_replicas)[ranks.replica]
    engine = training.engine(ranks, scene)
    engine.against = Unadapted(engine.scored)
    engine.score(share)
    steps = [engine.update(share, 1e-3, kl_coef=0.5) for _ in range(3)]
    return {name: tensor.clone() for name, tensor in engine.weights()}, steps
