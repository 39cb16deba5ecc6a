"""Weights of a policy here to a sampler in another process, which then says what the policy says."""

from functools import partial

import pytest
import scenes
import tiny
import torch

from easyr1.cluster.engines import stream_weights
from easyr1.cluster.group import LocalGroup
from easyr1.cluster.place import Places
from easyr1.cluster.ray_group import open_ray_group
from easyr1.engines.pack import Budget
from easyr1.engines.protocols import Sampling
from easyr1.engines.rollout_torch import TorchRollout
from easyr1.engines.sync import WeightInlet, WeightSync
from easyr1.engines.train import TorchTrain
from easyr1.models.build import ModelSpec, build
from easyr1.models.copies import blank_copy

KIND = "qwen2_5_vl"


def sampler(folder: str, pictures: dict, dtype: str) -> dict:
    """A sampler without a policy beside it; numbers of its own weights do not matter."""
    spec = ModelSpec(folder, param_dtype=dtype, compute_dtype=dtype)
    rollout = TorchRollout(blank_copy(build(spec), spec), pictures.__getitem__, frozenset([scenes.STOP]))
    for tensor in rollout.tensors().values():
        tensor.zero_()
    return {"rollout": rollout, "inlet": WeightInlet(rollout)}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_a_sampler_in_another_process_is_fed_bucket_by_bucket(tmp_path, dtype):
    folder = tiny.save(KIND, tmp_path / "model")
    scene = scenes.Scene(KIND)
    prompts = [group.prompt for group in scene.groups()]
    policy = TorchTrain(build(ModelSpec(str(folder))), scene.media, 1.0, Budget(tokens=400))
    with torch.no_grad():  # so that the file does not have these weights
        for parameter in policy.scored.parameters():
            parameter.mul_(1.5)
    policy.version = 5
    sync = WeightSync(policy, None, shares_module=False, dtype=getattr(torch, dtype), bucket_bytes=100_000)
    make = partial(sampler, str(folder), scene.pictures, dtype)
    with open_ray_group(make, Places(1, 1, "cpu"), tmp_path / "run", hang_timeout_s=60) as group:
        stream_weights(LocalGroup({"sync": sync}), group, 5)
        (found,) = group.call_sharded("rollout.generate", [prompts], Sampling(n=2, max_tokens=8))
    assert all(completion.weights_version == 5 for own in found for completion in own)
    spec = ModelSpec(str(folder), param_dtype=dtype, compute_dtype=dtype)
    here = TorchRollout(blank_copy(policy.scored, spec), scene.media, frozenset([scenes.STOP]))
    here.load(policy.weights(), 5)
    expected = here.generate(prompts, Sampling(n=2, max_tokens=8))
    assert [one.ids.tolist() for own in found for one in own] == [one.ids.tolist() for own in expected for one in own]
