"""Training on several ranks: the same losses and weights as alone, whatever each rank gets."""

import math
from dataclasses import replace

import numpy as np
import pytest
import ranked
import scenes
import torch
from ranks import on_ranks

from easyr1.algorithms.losses import LOSSES
from easyr1.engines.lockstep import plan
from easyr1.engines.objective import PolicyObjective, ValueObjective
from easyr1.engines.optimizer import OptimSpec
from easyr1.engines.pack import Budget
from easyr1.engines.train import TorchTrain
from easyr1.models.build import ModelSpec, build
from easyr1.models.lora import LoraSpec
from easyr1.models.parallel import sharded_parts
from easyr1.models.ranks import ALONE, join

CPU = torch.device("cpu")
KINDS = ("qwen2", "qwen2_5_vl")
SHARES = (ranked.alternating, ranked.pictures_apart, ranked.all_on_the_last)
GSPO = PolicyObjective(loss="gspo", average="seq", kl_penalty="low_var_kl", entropy_coef=0.01, correction="tis")


@pytest.fixture(scope="module", params=KINDS)
def training(request, tmp_path_factory):
    return made(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def with_pictures(tmp_path_factory):
    return made("qwen2_5_vl", tmp_path_factory)


def made(kind, tmp_path_factory):
    folder = ranked.saved(kind, tmp_path_factory.mktemp(kind), tie_word_embeddings=kind == "qwen2")
    return ranked.Training(ModelSpec(str(folder)), kind)


def of_critic(training):
    return replace(training, is_critic=True, objective=ValueObjective())


@pytest.mark.parametrize("budget", (Budget(tokens=130), Budget(samples=2)))
def test_one_rank_of_a_process_group_is_the_plain_model_to_the_last_bit(training, budget):
    training = replace(training, budget=budget)
    ranked.assert_same(ranked.on(1, training), ranked.run(training, ALONE), tolerance=0)


@pytest.mark.parametrize("shares", SHARES)
def test_two_ranks_train_like_one(training, shares):
    training = replace(training, shares=shares)
    ranked.assert_same(ranked.on(2, training), ranked.run(training, ALONE))


def test_a_loss_of_whole_answers_is_the_same_on_two_ranks(training):
    training = replace(training, objective=GSPO)
    ranked.assert_same(ranked.on(2, training), ranked.run(training, ALONE))


def test_a_critic_is_the_same_on_two_ranks(training):
    training = of_critic(training)
    ranked.assert_same(ranked.on(2, training), ranked.run(training, ALONE))


@pytest.mark.slow
@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("change", (lambda it: it, of_critic, lambda it: replace(it, objective=GSPO)))
def test_four_ranks_train_like_one(training, shares, change):
    training = change(replace(training, shares=shares, texts=3))
    ranked.assert_same(ranked.on(4, training), ranked.run(training, ALONE))


@pytest.mark.slow
@pytest.mark.parametrize("shares", SHARES)
def test_two_copies_of_two_parts_train_like_one(with_pictures, shares):
    training = replace(with_pictures, shares=shares, fsdp_size=2, texts=3)
    ranked.assert_same(ranked.on(4, training), ranked.run(training, ALONE))


@pytest.mark.slow
def test_gradients_may_be_added_after_each_micro_batch(with_pictures):
    training = replace(with_pictures, reduce_each_micro_batch=True, shares=ranked.pictures_apart)
    ranked.assert_same(ranked.on(2, training), ranked.run(training, ALONE))


def test_gradients_are_added_over_ranks_once_an_update_unless_each_micro_batch_is_wanted(with_pictures):
    for each in (False, True):
        (calls, parts, micro_batches), _ = on_ranks(2, count_reductions, replace(with_pictures, steps=1), each)
        assert micro_batches == 3
        assert calls == (parts * micro_batches if each else parts)


def count_reductions(training, each):
    """How often parts add their gradients over ranks in one update that has pictures in every micro-batch."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as inner

    ranks, scene, calls = join(CPU), scenes.Scene(training.kind), []
    add = inner.foreach_reduce
    inner.foreach_reduce = lambda *arguments, **keywords: calls.append(1) or add(*arguments, **keywords)
    engine = replace(training, reduce_each_micro_batch=each, budget=Budget(samples=1)).engine(ranks, scene)
    groups = training.groups(scene)[:1]
    engine.update(groups, 0.0)
    return len(calls), len(sharded_parts(engine.scored)), len(groups[0].samples)


@pytest.mark.slow
def test_recomputed_activations_change_nothing(with_pictures):
    training = replace(with_pictures, spec=replace(with_pictures.spec, gradient_checkpointing=True))
    ranked.assert_same(ranked.on(2, training), ranked.run(with_pictures, ALONE))


def test_adapters_and_their_reference_are_the_same_on_two_ranks(with_pictures):
    lora = LoraSpec(rank=4, alpha=64, exclude_modules=None)
    training = replace(with_pictures, spec=replace(with_pictures.spec, lora=lora), optim=OptimSpec(lr=1e-3), seed=7)
    alone, two = ranked.run(training, ALONE), ranked.on(2, training)
    ranked.assert_same(two, alone)
    moved = ranked.run(replace(training, steps=0), ALONE)
    assert any(not torch.equal(tensor, moved.weights[name]) for name, tensor in alone.weights.items())
    for one, other in zip(alone.reference, two.reference, strict=True):
        for wanted, found in zip(one, other, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ("adamw", "adamw_bf16"))
def test_bfloat16_weights_move_alike(with_pictures, strategy):
    spec = replace(with_pictures.spec, param_dtype="bfloat16", compute_dtype="bfloat16")
    optim = OptimSpec(strategy=strategy, lr=1e-3, max_grad_norm=1e9)
    training = replace(with_pictures, spec=spec, optim=optim)
    alone = ranked.run(training, ALONE)
    if strategy == "adamw_bf16":
        ranked.assert_same(ranked.on(1, training), alone, tolerance=0)
    start = ranked.run(replace(training, steps=0), ALONE).weights
    two = ranked.on(2, training).weights
    gap, way = (
        sum(float((one[name].float() - other[name].float()).abs().sum()) for name in start)
        for one, other in ((two, alone.weights), (alone.weights, start))
    )
    assert gap < 0.1 * way


@pytest.mark.slow
def test_products_in_bfloat16_are_close_to_those_in_float32(with_pictures):
    for change in (lambda it: it, of_critic):
        training = replace(change(with_pictures), steps=2)
        mixed = replace(training, spec=replace(training.spec, compute_dtype="bfloat16"))
        exact, two = ranked.run(training, ALONE), ranked.on(2, mixed)
        for one, other in zip(exact.steps, two.steps, strict=True):
            name = f"{training.objective.prefix}/loss"
            assert other.means()[name] == pytest.approx(one.means()[name], rel=0.1, abs=0.02)
        assert {tensor.dtype for tensor in two.weights.values()} == {torch.float32}
        gap = max(float((two.weights[name] - tensor).abs().max()) for name, tensor in exact.weights.items())
        assert 0 < gap < 5 * ranked.LR


@pytest.mark.slow
def test_values_keep_the_precision_of_their_head(with_pictures):
    mixed = replace(of_critic(with_pictures), spec=replace(with_pictures.spec, compute_dtype="bfloat16"))
    for value in on_ranks(2, value_of_a_token, mixed):
        assert float(torch.tensor(value).bfloat16()) != value


def value_of_a_token(training):
    ranks, scene = join(CPU), scenes.Scene(training.kind)
    engine = training.engine(ranks, scene)
    with torch.no_grad():
        engine.scored.value_head.weight.fill_(0.1)
    return float(engine.score(training.groups(scene)[:1])[0][0][0])


@pytest.mark.slow
def test_dropout_differs_by_rank_and_by_update_and_comes_again_after_a_resume(with_pictures, tmp_path):
    lora = LoraSpec(rank=4, alpha=64, dropout=0.5)
    training = replace(with_pictures, spec=replace(with_pictures.spec, lora=lora), optim=OptimSpec(lr=1e-2))
    for (straight, resumed, masks), other in [on_ranks(2, dropped, training, tmp_path)]:
        assert straight.keys() == resumed.keys()
        assert all(torch.equal(tensor, resumed[name]) for name, tensor in straight.items())
        assert not torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], other[2][0])


def dropped(training, folder):
    """The weights after two updates, straight and with a resume between them; and this rank's draws in both."""
    ranks, scene = join(CPU), scenes.Scene(training.kind)
    groups = training.groups(scene)[:1]
    engine = training.engine(ranks, scene)
    masks = []
    engine.objective = Listening(masks)
    engine.update(groups, 1e-2)
    engine.save(folder)
    engine.update(groups, 1e-2)
    straight = {name: tensor.clone() for name, tensor in engine.weights()}
    torch.manual_seed(99 + ranks.rank)
    again = training.engine(ranks, scene)
    again.load(folder)
    again.update(groups, 1e-2)
    return straight, {name: tensor.clone() for name, tensor in again.weights()}, masks


class Listening(PolicyObjective):
    """Draws from torch's generator as dropout does."""

    def __init__(self, heard):
        super().__init__()
        object.__setattr__(self, "heard", heard)

    def share(self, scores, tokens, kl_coef):
        self.heard.append(torch.rand(4))
        return super().share(scores, tokens, kl_coef)


@pytest.mark.parametrize("where", ("gradient", "loss"))
def test_a_broken_number_on_one_rank_skips_the_update_on_all(with_pictures, where):
    assert on_ranks(2, broken, with_pictures, where) == [(0, True, True)] * 2


def broken(training, where):
    """Optimizer steps, whether the update was counted as skipped, and whether the weights are what they were."""
    ranks, scene = join(CPU), scenes.Scene(training.kind)
    engine = training.engine(ranks, scene)
    before = {name: tensor.clone() for name, tensor in engine.weights()}
    groups = ranked.alternating(training.groups(scene), 2)[ranks.rank]
    if ranks.rank == 1 and where == "gradient":
        groups[0].samples[0].advantages[0] = math.inf
    elif ranks.rank == 1:
        engine.objective = BrokenLoss()
    sums = engine.update(groups, 1e-2)
    skipped = ranks.gather(sums.means().get("actor/skipped_updates"))[0] == 1
    same = all(torch.equal(tensor, before[name]) for name, tensor in engine.weights())
    return engine.version, skipped, same


class BrokenLoss(PolicyObjective):
    """Its gradient does not tell that it is not finite."""

    def share(self, scores, tokens, kl_coef):
        share = super().share(scores, tokens, kl_coef)
        return replace(share, loss=share.loss + math.inf)


def test_text_rows_beside_pictures_have_no_part_in_the_vision_tower(with_pictures):
    """B06: the tower's gradient on the rank of text rows is 0, not missing, and the losses are those of the rows."""
    (_, _, with_tower), (losses, gradient, other) = on_ranks(2, texts_apart, with_pictures)
    assert with_tower > 0 and other > 0
    assert gradient == 0.0
    scene = scenes.Scene("qwen2_5_vl")
    engine = with_pictures.engine(ALONE, scene)
    texts = ranked.pictures_apart(with_pictures.groups(scene), 2)[1]
    for found, wanted in zip(losses, engine.score(texts), strict=True):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def texts_apart(training):
    """Scores; and largest gradient of the tower before ranks add theirs, and after."""
    ranks, scene = join(CPU), scenes.Scene(training.kind)
    engine = training.engine(ranks, scene)
    own = ranked.pictures_apart(training.groups(scene), 2)[ranks.rank]
    scores = engine.score(own)
    seen = []
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as inner

    add = inner.foreach_reduce

    def listen(parameters, gradients, *rest, **keywords):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if "visual" in parameter._param_fqn:
                seen.append(float(gradient.abs().max()))
        return add(parameters, gradients, *rest, **keywords)

    inner.foreach_reduce = listen
    norms = []
    engine.optimizer.register_step_pre_hook(
        lambda *_: norms.extend(
            float(parameter.grad.full_tensor().abs().max())
            for name, parameter in engine.scored.named_parameters()
            if "visual" in name
        )
    )
    engine.update(own, 1e-3)
    assert seen and len(norms) == sum("visual" in name for name, _ in engine.scored.named_parameters())
    return scores, max(seen), max(norms)


def test_ranks_agree_on_micro_batches_and_their_pictures(with_pictures):
    found = on_ranks(3, planned, with_pictures)
    assert [kinds for kinds, _ in found] == [[True, False]] * 3
    assert [own for _, own in found] == [2, 1, 0]


def planned(training):
    """Whether each of this rank's micro-batches has a picture, and how many of them have samples of its own."""
    ranks, scene = join(CPU), scenes.Scene(training.kind)
    groups = training.groups(scene)
    own = [[groups[1], groups[0]], [groups[3]], []][ranks.rank]
    engine = TorchTrain(build(training.spec), scene.media, 1.0, Budget(samples=3))
    found = plan(own, Budget(samples=3), engine.packer, ranks)
    kinds = [any(found.groups[piece.group].prompt.media for piece in pieces) for pieces in found.micro_batches]
    return kinds, sum(any(piece.group < len(own) for piece in pieces) for pieces in found.micro_batches)


def test_an_update_tells_each_micro_batch_on_every_rank(with_pictures):
    training = replace(with_pictures, budget=Budget(samples=3), shares=ranked.all_on_the_last)
    assert on_ranks(2, ticks, training) == [[(1, 3), (2, 3), (3, 3)]] * 2


def ticks(training):
    ranks, scene, told = join(CPU), scenes.Scene(training.kind), []
    engine = training.engine(ranks, scene)
    share = training.shares(training.groups(scene), 2)[ranks.rank]
    engine.update(share, 1e-3, progress=lambda done, all: told.append((done, all)))
    return told


def test_nothing_to_do_on_any_rank_is_no_update(with_pictures):
    assert on_ranks(2, nothing, with_pictures) == [(0, {})] * 2


def nothing(training):
    engine = training.engine(join(CPU), scenes.Scene(training.kind))
    return engine.version, engine.update([], 1e-3).means()


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_takes_a_micro_batch_of_fillers(with_pictures, loss):
    training = replace(with_pictures, steps=1, shares=ranked.all_on_the_last, objective=PolicyObjective(loss=loss))
    ranked.assert_same(ranked.on(2, training), ranked.run(training, ALONE))
