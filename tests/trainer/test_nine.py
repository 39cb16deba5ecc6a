"""Nine algorithms on one frozen batch: each pushes the weights somewhere else."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import scenes
import torch

from easyr1.batch import Group, all_samples
from easyr1.config.load import load
from easyr1.config.resolve import resolve
from easyr1.engines.optimizer import OptimSpec
from easyr1.engines.pack import Budget
from easyr1.engines.train import TorchTrain
from easyr1.trainer.credit import assign
from easyr1.trainer.known import code_facts
from easyr1.trainer.parts import policy_objective

NINE = ("grpo", "dapo", "reinforce_plus_plus", "remax", "rloo", "gspo", "cispo", "sapo", "gae")


def frozen_batch(engine: TorchTrain, scene: scenes.Scene) -> list[Group]:
    """Two groups with scores, values and a greedy baseline, sampled by a policy that was a little different."""
    groups = [
        Group(scene.prompt(9, (56, 84)), [scene.sample(length) for length in (12, 25, 7, 18)], baseline=0.4),
        Group(scene.prompt(14), [scene.sample(length) for length in (9, 3, 30, 5)], baseline=0.1),
    ]
    for sample, score in zip(all_samples(groups), (1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.0, 0.25), strict=True):
        sample.scores = {"overall": score, "accuracy": score}
        sample.values = scene.rng.normal(0.3, 0.2, len(sample)).astype(np.float32)
    for sample, log_probs in zip(all_samples(groups), itertools.chain(*engine.score(groups)), strict=True):
        sample.old_log_probs = log_probs - scene.rng.normal(0, 0.25, len(sample)).astype(np.float32)
    return groups


def gradient(name: str) -> torch.Tensor:
    """The whole gradient of one update on the frozen batch."""
    config, given = load([f"algorithm.adv_estimator={name}", "algorithm.disable_kl=true"])
    plan = resolve(config, given, replace(code_facts(), dry_run=True))
    scene = scenes.Scene("qwen2_5_vl")
    scored = scenes.packed(scenes.model("qwen2_5_vl"))
    budget = Budget(tokens=9999)
    engine = TorchTrain(scored, scene.media, 1.0, budget, budget, policy_objective(config, plan), OptimSpec())
    groups = frozen_batch(engine, scene)
    assign(groups, config.algorithm.adv_estimator, gamma=config.algorithm.gamma, lam=config.algorithm.lam)
    found = []
    engine.optimizer.register_step_pre_hook(
        lambda *_: found.append(torch.cat([one.grad.flatten() for one in scored.parameters() if one.grad is not None]))
    )
    engine.update(groups, 0.0)
    return found[0]


@pytest.fixture(scope="module")
def gradients() -> dict[str, torch.Tensor]:
    return {name: gradient(name) for name in NINE}


def test_the_batch_is_frozen(gradients):
    assert torch.equal(gradients["grpo"], gradient("grpo"))


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(NINE, 2)))
def test_gradients_differ_pairwise(gradients, one, other):
    left, right = gradients[one], gradients[other]
    assert torch.isfinite(left).all() and left.norm() > 0
    assert (left - right).norm() > 1e-3 * left.norm()
