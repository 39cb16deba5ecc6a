"""Scoring and updating: any cut gives the same step, on-policy needs no old log-probs, state survives a save."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import scenes
import tiny
import torch

from easyr1.batch import Group, all_samples
from easyr1.engines.objective import PolicyObjective
from easyr1.engines.optimizer import OptimSpec, learning_rate
from easyr1.engines.pack import Budget
from easyr1.engines.train import TorchTrain
from easyr1.errors import CheckpointError
from easyr1.models.scored import Scored

LR = 1e-2


def ready(scene: scenes.Scene) -> list[Group]:
    """Groups with advantages, and old and reference log-probs that make some tokens clip."""
    groups = scene.groups()
    for sample in all_samples(groups):
        length = len(sample)
        sample.advantages = np.full(length, scene.rng.normal(), np.float32)
        sample.old_log_probs = scene.rng.normal(-6.3, 0.3, length).astype(np.float32)
        sample.ref_log_probs = scene.rng.normal(-6.3, 0.3, length).astype(np.float32)
    return groups


def trainer(scored: Scored, scene: scenes.Scene, budget: Budget = Budget(tokens=9999), **objective) -> TorchTrain:
    return TorchTrain(scored, scene.media, 1.0, budget, budget, PolicyObjective(**objective), OptimSpec(lr=LR))


def state(scored: Scored) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in scored.model.state_dict().items()}


@pytest.mark.parametrize("average", ("token", "seq", "seq_sum_const"))
@pytest.mark.parametrize("budget", (Budget(samples=1), Budget(tokens=60)))
def test_micro_batches_do_not_change_loss_metrics_or_step(average, budget):
    scene = scenes.Scene("qwen2_5_vl")
    groups = ready(scene)
    built = scenes.model("qwen2_5_vl")
    objective = {"average": average, "kl_penalty": "low_var_kl", "max_response_length": 32, "loss": "gmpo"}
    found = []
    for cut in (Budget(tokens=9999), budget):
        scored = scenes.packed(copy.deepcopy(built))
        metrics = trainer(scored, scene, cut, **objective).update(groups, LR, kl_coef=0.1).means()
        found.append((metrics, {name: parameter.detach() for name, parameter in scored.named_parameters()}))
    assert found[0][0].keys() == found[1][0].keys()
    for name, value in found[0][0].items():
        assert value == pytest.approx(found[1][0][name], rel=2e-5, abs=1e-7), name
    moved = scenes.packed(built).state_dict()
    for name, tensor in found[0][1].items():
        step = (tensor - moved[name]).norm()
        assert (tensor - found[1][1][name]).norm() <= 2e-3 * step + 1e-9, name  # Adam's first step magnifies rounding


def test_a_constant_divisor_is_for_the_loss_and_not_for_what_is_measured():
    scene = scenes.Scene("qwen2")
    groups = ready(scene)
    samples = all_samples(groups)
    found = {}
    for average in ("token", "seq_sum_const"):
        objective = {"average": average, "max_response_length": 50, "kl_penalty": "mse"}
        found[average] = trainer(scenes.packed(scenes.model("qwen2")), scene, **objective).update(groups, 0.0).means()
    scale = sum(len(sample) for sample in samples) / (50 * len(samples))
    for name in ("actor/ppo_kl", "actor/kl_loss", "actor/entropy", "actor/pg_clipfrac_higher"):
        assert found["seq_sum_const"][name] == pytest.approx(found["token"][name], rel=1e-5), name
    for name in ("actor/pg_loss", "actor/loss", "actor/grad_norm"):
        assert found["seq_sum_const"][name] == pytest.approx(scale * found["token"][name], rel=1e-4), name


def test_without_old_log_probs_the_step_is_on_policy():
    scene = scenes.Scene("qwen2")
    groups = ready(scene)
    built = scenes.model("qwen2")
    scored = scenes.packed(copy.deepcopy(built))
    engine = trainer(scored, scene)
    for group, scores in zip(groups, engine.score(groups), strict=True):
        for sample, log_probs in zip(group.samples, scores, strict=True):
            sample.old_log_probs = log_probs
    explicit = engine.update(groups, LR).means()
    for sample in all_samples(groups):
        sample.old_log_probs = None
    other = scenes.packed(built)
    implicit = trainer(other, scene).update(groups, LR).means()
    assert implicit["actor/ppo_kl"] == 0 and implicit["actor/pg_clipfrac_higher"] == 0
    assert implicit["actor/pg_loss"] == pytest.approx(explicit["actor/pg_loss"], rel=1e-5)
    for (name, left), right in zip(scored.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=2e-4, msg=name)


def test_the_gradient_is_reinforce_with_the_right_denominator():
    scene = scenes.Scene("qwen2")
    groups = ready(scene)
    for sample in all_samples(groups):
        sample.old_log_probs = None
    scored = scenes.packed(scenes.model("qwen2"))
    engine = trainer(scored, scene)
    metrics = engine.update(groups, 0.0).means()
    scores = engine.score(groups)  # lr 0: the weights did not move
    samples = all_samples(groups)
    tokens = sum(len(sample) for sample in samples)
    assert metrics["actor/pg_loss"] == pytest.approx(
        -sum(sample.advantages.sum() for sample in samples) / tokens, rel=1e-5
    )
    flat = np.concatenate([log_probs for group in scores for log_probs in group])
    assert metrics["actor/entropy_loss"] == pytest.approx(-flat.mean(), rel=1e-5)
    assert 0 < metrics["actor/entropy"] < np.log(512)


def test_updates_make_good_answers_likelier():
    scene = scenes.Scene("qwen2_5_vl")
    groups = scene.groups()[:1]
    for sign, sample in zip((1, -1, 0), groups[0].samples, strict=True):
        sample.advantages = np.full(len(sample), sign, np.float32)
    engine = trainer(scenes.packed(tiny.build("qwen2_5_vl")), scene)
    before = [log_probs.sum() for log_probs in engine.score(groups)[0]]
    for _ in range(3):
        engine.update(groups, 1e-3)
    after = [log_probs.sum() for log_probs in engine.score(groups)[0]]
    assert after[0] > before[0] + 1 and after[1] < before[1] - 1
    assert engine.version == 3


def test_a_non_finite_gradient_is_counted_and_not_applied():
    scene = scenes.Scene("qwen2")
    groups = ready(scene)
    groups[0].samples[0].advantages[0] = np.inf
    scored = scenes.packed(scenes.model("qwen2"))
    before = state(scored)
    engine = trainer(scored, scene)
    metrics = engine.update(groups, LR).means()
    assert metrics["actor/skipped_updates"] == 1 and "actor/grad_norm" not in metrics and engine.version == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in state(scored).items())


def test_a_banned_id_in_an_answer_leaves_everything_finite_and_the_others_alone():
    """B01 through the engine."""
    scene = scenes.Scene("qwen2_5_vl")
    groups = ready(scene)[:1]
    scored = scenes.packed(scenes.model("qwen2_5_vl"))
    engine = trainer(scored, scene)
    plain = engine.score(groups)[0]
    groups[0].samples[0].completion.ids[2] = tiny.token_id("<|image_pad|>")
    marked = engine.score(groups)[0]
    assert marked[0][2] == 0 and np.isfinite(marked[0]).all()
    for left, right in zip(plain[1:], marked[1:], strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-5)
    metrics = engine.update(groups, LR).means()
    assert all(np.isfinite(value) for value in metrics.values()) and metrics["actor/skipped_updates"] == 0
    assert metrics["actor/banned_tokens"] == 1


@pytest.mark.parametrize("kind", ("qwen2", "qwen2_5_vl"))
def test_a_saved_engine_goes_on_bitwise(tmp_path, kind):
    scene = scenes.Scene(kind)
    groups = ready(scene)
    straight = trainer(scenes.packed(tiny.build(kind, tie_word_embeddings=True)), scene)
    straight.update(groups[1:2], LR)  # no picture: the vision tower has no optimizer state yet
    straight.save(tmp_path)
    resumed = trainer(scenes.packed(tiny.build(kind, seed=5, tie_word_embeddings=True)), scene)
    resumed.load(tmp_path)
    for engine in (straight, resumed):
        engine.update(groups, LR)
    assert resumed.version == 2
    for name, tensor in straight.scored.model.state_dict().items():
        assert torch.equal(tensor, resumed.scored.model.state_dict()[name]), name


def test_a_checkpoint_of_another_model_is_told(tmp_path):
    scene = scenes.Scene("qwen2")
    trainer(scenes.packed(tiny.build("qwen2")), scene).save(tmp_path)
    other = trainer(scenes.packed(tiny.build("qwen2", num_hidden_layers=3)), scene)
    with pytest.raises(CheckpointError, match=r"another model.*missing"):
        other.load(tmp_path)


def test_the_learning_rate_warms_up_from_above_zero_and_ends_at_the_floor():
    spec = OptimSpec(lr=1.0, schedule="cosine", warmup_steps=4, min_lr_ratio=0.1, total_steps=104)
    rates = [learning_rate(spec, step) for step in range(1, 106)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0] and rates[4] == 1.0
    assert all(left >= right for left, right in pairwise(rates[4:]))
    assert rates[104] == pytest.approx(0.1) and rates[54] == pytest.approx(0.55)
