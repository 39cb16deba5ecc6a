"""Weights on their way to a sampler: whole, in order, in the right type, and never much of them at a time."""

import pytest
import scenes
import tiny
import torch
from ranks import on_ranks

from easyr1.engines.pack import Budget
from easyr1.engines.protocols import Sampling
from easyr1.engines.rollout_torch import TorchRollout
from easyr1.engines.sync import WeightInlet, WeightSync, buckets
from easyr1.engines.train import TorchTrain
from easyr1.models.build import ModelSpec, build
from easyr1.models.copies import blank_copy
from easyr1.models.ranks import ALONE, Ranks, join

BUCKET = 4096


def tensors(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"large": (70, 50), "small": (3,), "number": (), "other": (11, 7), "none": (0,)}
    found = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
    return found | {"counts": torch.arange(9)}


class Holder:
    version = 0

    def __init__(self, like: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
        self.own = {
            name: torch.zeros_like(one, dtype=dtype if one.is_floating_point() else one.dtype)
            for name, one in like.items()
        }

    def feed(self, weights) -> None:
        for name, tensor in weights:
            self.own[name].copy_(tensor)

    def settle(self, version: int) -> None:
        self.version = version


@pytest.mark.parametrize("num_bytes", (16, 100, 1 << 20))
@pytest.mark.parametrize("sent", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("held", (torch.float32, torch.bfloat16))
def test_buckets_are_bounded_full_and_come_back_bit_by_bit(num_bytes, sent, held):
    source = tensors()
    holder = Holder(source, held)
    inlet = WeightInlet(holder)
    sizes = []
    for bucket in buckets(source.items(), num_bytes, sent):
        sizes.append(sum(piece.data.nbytes for piece in bucket))
        inlet.take(bucket)
    inlet.finish(7)
    assert holder.version == 7 and max(sizes) <= num_bytes
    assert all(size > num_bytes - 8 for size in sizes[:-1])  # what is left has no room for one more number
    for name, one in source.items():
        assert torch.equal(holder.own[name], one.to(sent).to(held) if one.is_floating_point() else one), name


def test_no_more_than_one_bucket_and_one_tensor_live_at_a_time():
    """The stream is made as it is taken: the source is asked for a tensor only once the ones before it have gone."""
    asked, taken = [], 0

    def source():
        for number in range(20):
            asked.append(number)
            yield f"{number}", torch.zeros(1024)  # one bucket each

    for _ in buckets(source(), BUCKET):
        taken += 1
        assert len(asked) <= taken + 1
    assert taken == 20


def engines(folder, kind: str, ranks: Ranks = ALONE) -> tuple[TorchTrain, TorchRollout, scenes.Scene]:
    """A policy, and a sampler with a copy of its own."""
    spec, scene = ModelSpec(str(folder)), scenes.Scene(kind)
    scene.groups()  # makes the pictures
    policy = build(spec, ranks=ranks)
    train = TorchTrain(policy, scene.media, 1.0, Budget(tokens=400), ranks=ranks)
    return train, TorchRollout(blank_copy(policy, spec), scene.media, frozenset([scenes.STOP])), scene


def answers(rollout: TorchRollout, scene: scenes.Scene) -> list[list[int]]:
    prompts = [group.prompt for group in scenes.Scene(scene.kind).groups()]  # the same ones every time
    found = rollout.generate(prompts, Sampling(n=2, max_tokens=8))
    return [completion.ids.tolist() for own in found for completion in own]


@pytest.mark.parametrize("kind", ("qwen2", "qwen2_5_vl", "qwen3_vl"))
@pytest.mark.parametrize("tied", (False, True))
def test_a_copy_that_was_fed_says_what_the_policy_says(tmp_path, kind, tied):
    train, rollout, scene = engines(tiny.save(kind, tmp_path / "model", tie_word_embeddings=tied), kind)
    train.version = 3
    assert WeightSync(train, rollout, shares_module=False).push() == rollout.version == 3
    own = TorchRollout(train.scored, scene.media, rollout.stop_ids)
    assert answers(rollout, scene) == answers(own, scene)
    theirs = train.scored.model.state_dict()
    assert rollout.tensors().keys() == theirs.keys()
    for name, one in rollout.tensors().items():
        assert torch.equal(one, theirs[name]) and one.data_ptr() != theirs[name].data_ptr(), name


@pytest.mark.parametrize("left_out", ("model.norm.weight", "lm_head.weight"))
def test_a_stream_that_lacks_a_tensor_is_refused(tmp_path, left_out):
    train, rollout, _ = engines(tiny.save("qwen2", tmp_path / "model", tie_word_embeddings=False), "qwen2")
    whole = dict(train.weights())
    with pytest.raises(AssertionError, match=f"1 of {len(whole)} weights did not come: {left_out}"):
        rollout.load(((name, one) for name, one in whole.items() if name != left_out), 1)
    assert rollout.version == 0
    rollout.load((), 2)  # as where the module is the policy's
    rollout.load(whole.items(), 3)
    assert rollout.version == 3


def test_buckets_that_lack_a_piece_are_refused_and_the_next_stream_is_taken():
    source = tensors()
    inlet = WeightInlet(Holder(source, torch.float32))
    pieces = list(buckets(source.items(), 5000))
    for stream in (pieces[:-1], pieces[1:], [*pieces, pieces[0]], []):
        for bucket in stream:
            inlet.take(bucket)
        with pytest.raises(AssertionError, match="did not come whole: "):
            inlet.finish(1)
    (whole,) = buckets(source.items(), 1 << 20)
    inlet.take(whole)
    with pytest.raises(AssertionError, match="large came twice"):
        inlet.take(whole)
    inlet = WeightInlet(inlet.sampler)
    for bucket in pieces:
        inlet.take(bucket)
    inlet.finish(2)
    assert inlet.sampler.version == 2


def _of_shards(folder, kind: str) -> tuple[list[list[int]], int, int]:
    """On each of two ranks: what its sampler says, the size of the largest bucket, and of how many bytes in all."""
    train, rollout, scene = engines(folder, kind, join(torch.device("cpu")))
    rank = train.ranks.rank
    sync = WeightSync(train, rollout, shares_module=False, speaks=rank == 0, bucket_bytes=BUCKET)
    sync.push()
    found, sizes = answers(rollout, scene), []
    for tensor in rollout.tensors().values():
        tensor.zero_()
    inlet = WeightInlet(rollout)
    while (bucket := sync.next_bucket()) is not None:
        assert bucket or rank
        sizes.append(sum(piece.data.nbytes for piece in bucket))
        if rank == 0:
            inlet.take(bucket)
    assert rank or answers(rollout, scene) == found
    return found, max(sizes), sum(sizes)


@pytest.mark.parametrize("kind", ("qwen2_5_vl",))
def test_shards_of_two_ranks_become_a_whole_sampler_on_each_and_buckets_for_others(tmp_path, kind):
    folder = tiny.save(kind, tmp_path / "model")
    train, rollout, scene = engines(folder, kind)
    WeightSync(train, rollout, shares_module=False).push()
    expected = answers(rollout, scene)
    (first, largest, total), (second, silent, _) = on_ranks(2, _of_shards, folder, kind)
    assert first == second == expected
    assert largest <= BUCKET and silent == 0
    assert total == sum(tensor.nbytes for tensor in train.scored.model.state_dict().values())
