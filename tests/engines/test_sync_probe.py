"""The watch over a sampler with weights of its own: when it looks, at what, and that it stops a run."""

import copy

import pytest
import samplers
import scenes
import torch

from easyr1.engines.pack import Budget
from easyr1.engines.probe import ProbedRollout
from easyr1.engines.protocols import Sampling
from easyr1.engines.rollout_torch import TorchRollout
from easyr1.engines.train import TorchTrain
from easyr1.errors import SyncError

SAMPLING = Sampling(max_tokens=3)


class Counting(TorchTrain):
    """Notes which prompts were scored."""

    def score(self, groups, progress=None):
        self.__dict__.setdefault("scored_prompts", []).extend(group.prompt for group in groups)
        return super().score(groups, progress)


def make(every: int = 2):
    scene = scenes.Scene("qwen2_5_vl")
    built = samplers.lively("qwen2_5_vl")
    sampler = TorchRollout(scenes.packed(copy.deepcopy(built)), scene.media, samplers.STOPS)
    trainer = Counting(scenes.packed(built), scene.media, 0.7, Budget(tokens=300))
    trainer.scored_prompts = []
    return ProbedRollout(sampler, trainer, 0.7, "float32", every), trainer, scene


def move(trainer: TorchTrain, amount: float = 0.05) -> None:
    with torch.no_grad():
        for weight in trainer.scored.parameters():
            weight += torch.randn_like(weight) * weight.std() * amount


def test_it_looks_before_the_first_answers_after_the_first_load_and_after_every_second_one():
    probed, trainer, scene = make(every=2)
    asked = [scene.prompt(9), scene.prompt(5, (56, 56)), scene.prompt(7, (56, 84))]
    looked = []
    for version in range(6):
        for _ in range(2):
            assert len(probed.generate(asked, SAMPLING)) == 3
        looked.append(len(trainer.scored_prompts))
        move(trainer)
        probed.load(trainer.weights(), version + 1)
    assert looked == [1, 2, 2, 3, 3, 4]
    assert {id(prompt) for prompt in trainer.scored_prompts} == {id(asked[1])}  # the first one with a picture


def test_zero_is_once_before_the_first_answers():
    probed, trainer, scene = make(every=0)
    for version in range(3):
        probed.generate([scene.prompt(9)], SAMPLING)
        probed.load(trainer.weights(), version)
    assert len(trainer.scored_prompts) == 1


@pytest.mark.parametrize("part", ("visual", "layers.1", "lm_head"))
def test_weights_that_did_not_arrive_stop_the_run_with_both_numbers(part):
    probed, trainer, scene = make(every=1)
    asked = [scene.prompt(9, (56, 84))]
    probed.generate(asked, SAMPLING)
    old = {name: tensor.clone() for name, tensor in trainer.weights()}
    move(trainer)
    probed.load(((name, old[name] if part in name else tensor) for name, tensor in trainer.weights()), 1)
    with pytest.raises(SyncError, match=r"after 1 updates.* log-prob of -\d+\.\d+ in the sampler and of -\d+\.\d+ in"):
        probed.generate(asked, SAMPLING)


def test_without_prompts_it_waits():
    probed, trainer, scene = make()
    assert probed.generate([], SAMPLING) == [] and not trainer.scored_prompts
    probed.generate([scene.prompt(9)], SAMPLING)
    assert len(trainer.scored_prompts) == 1
