"""Sampling of models that take padded rows, through their own generation."""

import pytest

from easyr1.engines.protocols import Sampling
from easyr1.engines.rollout_torch import TorchRollout
from easyr1.models.build import wrap
from tests.family_scenes import STOP, world


@pytest.mark.parametrize(
    "settings", ({"repetition_penalty": 1.5}, {"suppress_tokens": list(range(100, 300))}), ids=str
)
def test_generation_settings_of_a_model_do_not_reach_our_sampling(settings):
    found = []
    for own in ({}, settings):
        place = world("gemma3")  # padded, so answers come from the model's own generation
        model = place.model()
        for name, value in own.items():
            setattr(model.generation_config, name, value)
        scored = wrap(model)
        assert not scored.packed
        answers = TorchRollout(scored, place.inputs, frozenset({STOP})).generate(
            place.prompts(), Sampling(n=2, max_tokens=12, seed=1)
        )
        found.append([answer.ids.tolist() for group in answers for answer in group])
        assert all(getattr(model.generation_config, name) == value for name, value in own.items())
    assert found[0] == found[1]
