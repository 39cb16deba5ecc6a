"""Cutting groups under a budget, and what a micro-batch holds."""

import numpy as np
import pytest
import scenes
import tiny
import torch

from easyr1.balance import fill
from easyr1.batch import Group
from easyr1.engines import pack
from easyr1.engines.pack import Budget, cut
from easyr1.errors import ConfigError


def test_bins_never_exceed_the_cap_and_lose_nothing():
    random = np.random.default_rng(0)
    for _ in range(200):
        cap = int(random.integers(10, 100))
        sizes = random.integers(1, cap + 1, random.integers(1, 40)).tolist()
        bins = fill(sizes, cap)
        assert sorted(index for members in bins for index in members) == list(range(len(sizes)))
        assert all(sum(sizes[index] for index in members) <= cap for members in bins)
        assert len(bins) <= 2 * -(-sum(sizes) // cap)


def random_groups(scene: scenes.Scene) -> list[Group]:
    lengths = scene.rng.integers
    return [
        Group(scene.prompt(int(lengths(1, 30)), index=index), [scene.sample(int(lengths(1, 30))) for _ in range(5)])
        for index in range(6)
    ]


@pytest.mark.parametrize("budget", (Budget(tokens=60), Budget(tokens=150), Budget(samples=1), Budget(samples=3)))
def test_every_answer_lands_once_and_no_micro_batch_is_above_the_budget(budget):
    scene = scenes.Scene("qwen2")
    for _ in range(20):
        groups = random_groups(scene)
        batches = cut(groups, budget)
        places = sorted((piece.group, sample) for pieces in batches for piece in pieces for sample in piece.samples)
        assert places == [(group, sample) for group in range(6) for sample in range(5)]
        for pieces in batches:
            tokens = sum(
                len(groups[piece.group].prompt.ids)
                + sum(len(groups[piece.group].samples[sample]) for sample in piece.samples)
                for piece in pieces
            )
            assert tokens == sum(piece.num_tokens for piece in pieces)
            assert budget.tokens is None or tokens <= budget.tokens
            assert budget.samples is None or sum(len(piece.samples) for piece in pieces) <= budget.samples


def test_a_budget_below_one_prompt_and_answer_is_refused_with_its_key():
    scene = scenes.Scene("qwen2")
    with pytest.raises(ConfigError, match=r"micro_batch_size_per_device_for_update.*20.*12 \+ 9"):
        cut([Group(scene.prompt(12), [scene.sample(9)])], Budget(tokens=20))


def test_a_sampled_picture_id_is_never_fed_or_scored():
    """B01: a picture id in an answer keeps its place, but the model sees another token and it is not scored."""
    scene = scenes.Scene("qwen2_5_vl")
    groups = [Group(scene.prompt(6, (56, 56)), [scene.sample(4), scene.sample(2)])]
    picture_id = tiny.token_id("<|image_pad|>")
    groups[0].samples[0].completion.ids[1] = picture_id
    scored = scenes.packed(scenes.model("qwen2_5_vl"))
    batch = scenes.packer(scored, scene).micro_batch(groups, cut(groups, Budget(tokens=999))[0], torch.device("cpu"))
    assert batch.allowed.tolist() == [True, False, True, True, True, True]
    assert int((batch.inputs.ids == picture_id).sum()) == 4
    log_probs = scored(batch.inputs, batch.targets).log_probs
    assert torch.isfinite(log_probs).all()


def test_pictures_of_different_shapes_are_filled_up_with_zeros_behind_their_end():
    wide = {"pixel_values": torch.ones(1, 2, 3), "image_sizes": torch.tensor([[2, 3]])}
    tall = {"pixel_values": 2 * torch.ones(2, 4, 1), "image_sizes": torch.tensor([[4, 1], [4, 1]])}
    joined = pack._joined([wide, {}, tall])
    assert joined["image_sizes"].tolist() == [[2, 3], [4, 1], [4, 1]]
    pixels = joined["pixel_values"]
    assert pixels.shape == (3, 4, 3)
    assert torch.equal(pixels[0, :2], torch.ones(2, 3)) and not pixels[0, 2:].any()
    assert torch.equal(pixels[1:, :, :1], 2 * torch.ones(2, 4, 1)) and not pixels[1:, :, 1:].any()
