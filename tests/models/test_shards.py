"""Tensors in a folder: what is read is what was written, on any number of ranks, and nothing is unpickled."""

import os
import pickle

import pytest
import runs
import tiny
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from easyr1.engines.optimizer import OptimSpec, adamw, state_tensors
from easyr1.errors import CheckpointError
from easyr1.models import shards


def tensors():
    torch.manual_seed(0)
    return {
        "a.weight": torch.randn(5, 3),
        "b.weight/exp_avg": torch.randn(4, 2, 3, dtype=torch.bfloat16),
        "b.weight/step": torch.tensor(7.0),
        "empty": torch.zeros(0, 3),
    }


@pytest.mark.parametrize("file_bytes", (1 << 30, 20))
def test_what_is_read_is_what_was_written(tmp_path, monkeypatch, file_bytes):
    monkeypatch.setattr(shards, "FILE_BYTES", file_bytes)
    written = tensors()
    shards.save_shards(tmp_path / "x", written)
    assert len(list((tmp_path / "x").iterdir())) == (1 if file_bytes > 100 else 3)
    assert {path.suffix for path in (tmp_path / "x").iterdir()} == {".safetensors"}
    read = runs.read_shards(tmp_path / "x")
    assert read.keys() == written.keys()
    for name, tensor in written.items():
        assert read[name].dtype == tensor.dtype and torch.equal(read[name], tensor)


def test_a_bigger_precision_is_filled_too(tmp_path):
    shards.save_shards(tmp_path, {"a": torch.ones(3, dtype=torch.bfloat16)})
    target = torch.zeros(3)
    shards.load_shards(tmp_path, {"a": target})
    assert torch.equal(target, torch.ones(3))


def test_another_model_is_told_with_names_and_shapes(tmp_path):
    shards.save_shards(tmp_path, {"a": torch.ones(3), "b": torch.ones(2), "c": torch.ones(2)})
    with pytest.raises(CheckpointError) as told:
        shards.load_shards(tmp_path, {"a": torch.ones(4), "b": torch.ones(2), "d": torch.ones(1)})
    for part in ("another model", "1 weights missing (d)", "1 weights unknown (c)", "a [3] instead of [4]"):
        assert part in str(told.value)


def test_nothing_in_a_folder_is_unpickled(tmp_path):
    """Plain distributed checkpoints read .metadata with pickle; here it lies about and is not even opened."""
    bomb = pickle.dumps(Bomb(tmp_path / "mark"))
    shards.save_shards(tmp_path / "x", tensors())
    (tmp_path / "x" / ".metadata").write_bytes(bomb)
    assert runs.read_shards(tmp_path / "x").keys() == tensors().keys()
    for path in (tmp_path / "x").glob("*.safetensors"):
        path.write_bytes(bomb)
    with pytest.raises(CheckpointError, match="no safetensors file"):
        runs.read_shards(tmp_path / "x")
    assert not (tmp_path / "mark").exists()


class Bomb:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "x").write_text("a file")
    with pytest.raises(CheckpointError, match="x cannot be written"):
        shards.save_shards(tmp_path / "x", tensors())


def shard_total(folder, mode):
    """Saves a sharded model and its optimizer, or loads it; the sum of the sizes of its weights."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = tiny.build("qwen2", seed=0 if mode == "save" else 1)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = adamw(model.parameters(), OptimSpec(lr=1e-3))
    names = {parameter: name for name, parameter in model.named_parameters()}
    if mode == "save":
        model(torch.arange(8)[None]).logits.float().logsumexp(-1).sum().backward()
        optimizer.step()
        shards.save_shards(folder / "model", dict(model.named_parameters()))
        shards.save_shards(folder / "optim", state_tensors(optimizer, names))
    else:
        shards.load_shards(folder / "model", dict(model.named_parameters()))
    return float(sum(parameter.full_tensor().double().abs().sum() for parameter in model.parameters()))


@pytest.mark.slow
def test_another_number_of_ranks_reads_the_same(tmp_path):
    totals = [
        total
        for mode, ranks in (("save", 2), ("load", 1), ("load", 2), ("load", 3))
        for total in on_ranks(ranks, shard_total, tmp_path, mode)
    ]
    whole = runs.read_shards(tmp_path / "model")
    assert totals == pytest.approx([float(sum(tensor.double().abs().sum() for tensor in whole.values()))] * 8)
    assert len(list((tmp_path / "model").iterdir())) == 2  # each rank wrote its own
    moments = runs.read_shards(tmp_path / "optim")
    assert all(moments[f"{name}/exp_avg"].shape == tensor.shape for name, tensor in whole.items())
