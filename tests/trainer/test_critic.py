"""The critic: a value head on text and vision models that learns returns, warms up alone, and is resumed."""

import numpy as np
import pytest
import runs
import scenes
import tiny
import torch

from easyr1.batch import all_samples
from easyr1.engines.objective import ValueObjective
from easyr1.engines.optimizer import OptimSpec
from easyr1.engines.pack import Budget
from easyr1.engines.train import TorchTrain
from easyr1.models.scored import Valued

GAE = {"algorithm__adv_estimator": "gae", "trainer__val_before_train": "false"}


def critic(kind: str, scene: scenes.Scene, budget: Budget = Budget(tokens=9999), packed: bool = True) -> TorchTrain:
    built = scenes.model(kind)
    root = Valued(scenes.packed(built).model if packed else built, packed)
    return TorchTrain(root, scene.media, 1.0, budget, budget, ValueObjective(), OptimSpec(lr=1e-2))


def with_returns(scene: scenes.Scene):
    groups = scene.groups()
    for number, sample in enumerate(all_samples(groups)):
        sample.values = np.zeros(len(sample), np.float32)
        sample.returns = np.full(len(sample), (-1.0) ** number, np.float32)
    return groups


@pytest.mark.parametrize("kind", ("qwen2", "qwen2_5_vl", "qwen3_vl"))
def test_values_start_at_zero_and_learn_the_returns(kind):
    scene = scenes.Scene(kind)
    groups = with_returns(scene)
    engine = critic(kind, scene)
    assert all((values == 0).all() for group in engine.score(groups) for values in group)
    first = engine.update(groups, 1e-2).means()
    assert first["critic/vf_loss"] == pytest.approx(0.5) and first["critic/vpred_mean"] == 0
    for _ in range(20):
        last = engine.update(groups, 1e-2).means()
    assert last["critic/vf_loss"] < 0.3 and "actor/pg_loss" not in last


def test_values_are_read_before_their_token_and_do_not_depend_on_the_layout():
    scene = scenes.Scene("qwen2_5_vl")
    groups = with_returns(scene)
    packed = critic("qwen2_5_vl", scene)
    padded = critic("qwen2_5_vl", scene, packed=False)
    torch.nn.init.normal_(packed.scored.value_head.weight)
    padded.scored.value_head.load_state_dict(packed.scored.value_head.state_dict())
    before = packed.score(groups)
    for ours, theirs in zip(before, padded.score(groups), strict=True):
        for left, right in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(left, right, rtol=0, atol=1e-4)
    groups[0].samples[0].completion.ids[-1] = 33  # the last token: no value may know it
    after = packed.score(groups)
    np.testing.assert_allclose(before[0][0], after[0][0], rtol=0, atol=1e-6)


def test_micro_batches_do_not_change_the_critics_step():
    found = []
    for budget in (Budget(tokens=9999), Budget(samples=1)):
        scene = scenes.Scene("qwen2")
        found.append(critic("qwen2", scene, budget).update(with_returns(scene), 1e-2).means())
    assert found[0] == pytest.approx(found[1], rel=1e-4)


@pytest.mark.parametrize("kind", ("qwen2", "qwen2_5_vl"))
def test_gae_trains_both_and_says_how_the_critic_does(tmp_path, kind):
    runs.run(runs.arguments(tmp_path, kind, **GAE))
    step = runs.steps(tmp_path / "run")[2]
    names = (
        "vf_loss",
        "vf_clipfrac",
        "vpred_mean",
        "grad_norm",
        "lr",
        "values/mean",
        "values/max",
        "vf_explained_var",
    )
    assert not [name for name in names if f"critic/{name}" not in step]
    assert "timing_s/values" in step and "timing_s/update_critic" in step and "actor/pg_loss" in step


def test_the_critic_warms_up_alone(tmp_path):
    trainer, _ = runs.run(runs.arguments(tmp_path, **GAE, trainer__critic_warmup=1))
    steps = runs.steps(tmp_path / "run")
    assert "actor/pg_loss" not in steps[1] and "critic/vf_loss" in steps[1] and "actor/pg_loss" in steps[2]
    assert trainer.actor.engine.version == 2 and trainer.critic.engine.version == 4


def test_a_resumed_critic_is_the_one_that_was_saved(tmp_path):
    common = {**GAE, "trainer__save_freq": 1, "trainer__val_freq": -1}
    states = []
    for name, stops in (("straight", [3]), ("broken", [1, 3])):
        for stop in stops:
            path = tmp_path / name
            arguments = runs.arguments(tmp_path, **common, trainer__max_steps=stop, trainer__save_checkpoint_path=path)
            trainer, _ = runs.run(arguments)
        states.append(runs.engine(trainer, "critic").scored.state_dict())
    assert states[0]["value_head.weight"].abs().max() > 0
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_the_critic_may_be_another_model(tmp_path):
    other = tiny.save("llama", tmp_path / "other", num_hidden_layers=1)
    trainer, _ = runs.run(runs.arguments(tmp_path, **GAE, worker__critic__model__model_path=other))
    assert type(runs.engine(trainer, "critic").scored.model).__name__ == "LlamaForCausalLM"


def test_remax_compares_with_a_greedy_answer(tmp_path):
    asked = []

    def watch(trainer):
        generate = trainer.collector.rollout.generate

        def recorded(prompts, sampling, progress=None):
            asked.append((len(prompts), sampling.n, sampling.temperature))
            return generate(prompts, sampling, progress)

        trainer.collector.rollout.generate = recorded

    settings = {"algorithm__adv_estimator": "remax", "trainer__max_steps": 1, "trainer__val_before_train": "false"}
    runs.run(runs.arguments(tmp_path, **settings, trainer__val_freq=5), watch)
    assert asked[:2] == [(4, 3, 1.0), (4, 1, 0.0)]
