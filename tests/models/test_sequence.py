"""Sequence parallelism: ranks that share rows compute what one rank computes, and know it to the same last bit."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import family_scenes
import pytest
import tiny
import torch
import torch.distributed as dist
import transformers
from families import FAMILIES, PACKED
from ranks import on_ranks
from scenes import Scene, model, packed, packer
from torch import nn

from easyr1.batch import Group
from easyr1.engines.pack import Budget, MicroBatch, Packer, cut
from easyr1.errors import ConfigError
from easyr1.models.attention import Packed, Span, UnsupportedAttention
from easyr1.models.build import ModelSpec, build
from easyr1.models.lora import LoraSpec, adapter_parameters, add_adapters
from easyr1.models.ranks import ALONE, join
from easyr1.models.scored import Scored, Unadapted, Valued
from easyr1.models.sequence import Ulysses, check_heads, check_layout
from easyr1.models.towers import deal, vision_tower, why_not_shared

CPU = torch.device("cpu")
WHOLE, SPLIT = 1000, 60  # tokens of a micro-batch: all groups in one row, or several rows and a group in two of them


@dataclass
class Found:
    """Scores and gradients of some micro-batches."""

    scores: list[torch.Tensor]
    grads: dict[str, torch.Tensor]


def computed(scored: Scored, micro_batches: list[MicroBatch], reference: Scored | None) -> Found:
    """A loss in which each token counts differently. With a `reference`, its divergence is a part of it."""
    scored.zero_grad(set_to_none=True)
    scores = []
    for batch in micro_batches:
        others = None
        if reference is not None:
            with torch.no_grad():
                others = reference(batch.inputs, temperature=0.8)
        found = scored(batch.inputs, batch.targets, 0.8, others)
        weights = torch.linspace(-1, 2, len(batch.targets))
        ((found.log_probs + 3 * found.kl) * weights).sum().backward()
        scores.append(torch.stack(tuple(found)).detach())
    return Found(scores, {name: one.grad for name, one in scored.named_parameters() if one.grad is not None})


def compare(scored: Scored, micro_batches: list[MicroBatch], reference: Scored | None = None) -> Found:
    """One rank alone against all ranks as one replica. Runs on each rank; returns what this one found with others."""
    roots = [scored] if reference is None else [scored, reference]
    alone = computed(scored, micro_batches, reference)
    for root in roots:
        root.ranks = join(CPU, sequence=dist.get_world_size())
    shared = computed(scored, micro_batches, reference)
    for root in roots:
        root.ranks = ALONE
    for one, other in zip(alone.scores, shared.scores, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-5)
        peers = [torch.empty_like(other) for _ in range(dist.get_world_size())]
        dist.all_gather(peers, other)
        assert all(torch.equal(peer, other) for peer in peers)
    assert shared.grads.keys() == alone.grads.keys()
    largest = max(one.norm() for one in alone.grads.values())
    for name, one in alone.grads.items():
        other = shared.grads[name].clone()
        dist.all_reduce(other)
        # The gradient of a key's bias is 0 but for rounding: shifting all keys alike changes no attention.
        assert (other - one).norm() <= 1e-5 * max(one.norm(), 1e-3 * largest), name
    return shared


def batches(of: Packer, groups: list[Group], tokens: int) -> list[MicroBatch]:
    return [of.micro_batch(groups, pieces, CPU) for pieces in cut(groups, Budget(tokens))]


def of_kind(kind: str, tokens: int = WHOLE, checkpointing: bool = False, **sizes: Any) -> None:
    scene = Scene(kind)
    scored = packed(model(kind, **sizes)).train()
    if checkpointing:
        scored.model.gradient_checkpointing_enable({"use_reentrant": False})
    compare(scored, batches(packer(scored, scene), scene.groups(), tokens))


def of_kind_with(kind: str, tokens: int, keywords: dict[str, Any]) -> None:
    of_kind(kind, tokens, **keywords)


@pytest.mark.parametrize("tokens", [WHOLE, SPLIT])
@pytest.mark.parametrize("kind", ["qwen2", "qwen2_5_vl", "qwen3_vl"])
def test_two_ranks_equal_one(kind: str, tokens: int):
    """Several groups in a row and groups that are split, rows of text alone, of one picture and of several."""
    on_ranks(2, of_kind, kind, tokens)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3_vl"])
def test_layers_that_are_computed_again_share_their_row_again(kind: str):
    on_ranks(2, of_kind_with, kind, SPLIT, {"checkpointing": True})


def test_windows_reach_over_slices():
    on_ranks(2, of_kind, "mistral_window", WHOLE)


@pytest.mark.parametrize("heads", [(4, 1), (6, 3)])
def test_key_and_value_heads_that_ranks_do_not_divide_are_repeated(heads: tuple[int, int]):
    sizes = dict(zip(("num_attention_heads", "num_key_value_heads"), heads, strict=True))
    on_ranks(2, of_kind_with, "qwen3", WHOLE, sizes)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [WHOLE, SPLIT])
@pytest.mark.parametrize("kind", ["qwen2", "qwen2_5_vl", "qwen3_vl"])
def test_four_ranks_equal_one(kind: str, tokens: int):
    """Two key/value heads for four ranks; one picture, and three, for four ranks."""
    on_ranks(4, of_kind, kind, tokens)


def of_family(name: str, tokens: int) -> None:
    world = family_scenes.world(name)
    scored = packed(world.model()).train()
    compare(scored, batches(world.packer(scored), world.groups(), tokens))


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.layout == PACKED])
def test_every_family(name: str, world: int):
    family_scenes.world(name)
    on_ranks(world, of_family, name, 150)


def alone_on_a_rank() -> tuple[list[int], list[int], bool]:
    """Rows of pictures that the tower was given on this rank, gradients there, and whether a hook was left."""
    scene = Scene("qwen3_vl")
    scored = packed(model("qwen3_vl")).train()
    tower, decoder = vision_tower(scored.model), scored.model.get_decoder()
    assert tower is not None
    given: list[int] = []
    handle = tower.blocks[0].register_forward_pre_hook(lambda _, args: given.append(len(args[0])))  # type: ignore[union-attr, index, operator]
    groups = scene.groups()
    shared = compare(scored, batches(packer(scored, scene), [groups[0]], WHOLE))
    one_picture, given[:] = list(given), []
    compare(scored, batches(packer(scored, scene), [groups[2]], WHOLE))
    handle.remove()
    left = any(one._forward_pre_hooks or one._forward_hooks for one in (tower, decoder))
    return one_picture + given, [float(shared.grads["model.model.visual.blocks.0.attn.qkv.weight"].norm())], left  # type: ignore[return-value]


def test_each_rank_computes_its_share_of_the_pictures():
    """With fewer pictures than ranks one of them computes a picture in vain, without a gradient."""
    ((alone_1, own_1, both_1, part_1), grad_1, left_1), ((alone_2, own_2, both_2, part_2), grad_2, left_2) = on_ranks(
        2, alone_on_a_rank
    )
    assert alone_1 == own_1 == alone_2 == own_2
    assert both_1 == both_2 == part_1 + part_2 and part_1 != part_2
    assert grad_1[0] > 0 and grad_2 == [0.0]
    assert not left_1 and not left_2


def without_answers_in_a_slice() -> None:
    scene = Scene("qwen2")
    scored = packed(model("qwen2")).train()
    groups = [Group(scene.prompt(40), [scene.sample(3)])]
    compare(scored, batches(packer(scored, scene), groups, WHOLE))
    compare(scored, batches(packer(scored, scene), [Group(scene.prompt(2), [scene.sample(1)])], WHOLE))


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_rank_may_have_nothing_to_score_and_even_no_token(world: int):
    """In the second row four ranks share three tokens."""
    on_ranks(world, without_answers_in_a_slice)


def critic() -> None:
    scene = Scene("qwen2_5_vl")
    policy = packed(model("qwen2_5_vl"))
    valued = Valued(policy.model, packed=True).train()
    nn.init.normal_(valued.value_head.weight)
    compare(valued, batches(packer(policy, scene), scene.groups(), WHOLE))


def test_a_critic():
    on_ranks(2, critic)


def whole_distributions() -> None:
    scene = Scene("qwen3_vl")
    scored, reference = packed(model("qwen3_vl")).train(), packed(transformers_copy("qwen3_vl"))
    compare(scored, batches(packer(scored, scene), scene.groups(), WHOLE), reference)


def transformers_copy(kind: str) -> transformers.PreTrainedModel:
    """Another model of the kind."""
    other = model(kind)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(parameter)))
    return other


def test_the_divergence_from_a_reference():
    on_ranks(2, whole_distributions)


def adapters() -> None:
    scene = Scene("qwen2_5_vl")
    scored = packed(model("qwen2_5_vl"))
    add_adapters(scored.model, LoraSpec(rank=4, alpha=16, exclude_modules=None), torch.float32)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in adapter_parameters(scored.model).values():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    assert any("visual" in name for name in adapter_parameters(scored.model))
    compare(scored.train(), batches(packer(scored, scene), scene.groups(), WHOLE), Unadapted(scored))


def test_adapters_on_text_model_and_tower_and_the_model_without_them():
    on_ranks(2, adapters)


def test_the_largest_picture_goes_to_the_rank_that_has_least():
    assert deal([4, 1, 2], 2) == ((0,), (1, 2))
    assert deal([3, 3, 3], 2) == ((0, 2), (1,))
    assert deal([5], 3) == ((0,), (), ())


def test_it_is_known_beforehand_where_every_rank_computes_all_pictures():
    reasons = {name: why_not_shared(family.build()) for name, family in FAMILIES.items() if family.layout == PACKED}
    told = {"llava_onevision": "siglip_vision_model", "llava_next": "clip_vision_model"}
    told |= {"mistral3": "pixtral", "pixtral": "pixtral"}
    assert {name for name, reason in reasons.items() if reason is not None} == told.keys()
    assert all(kind in str(reasons[name]) for name, kind in told.items())


def refused(spec: ModelSpec) -> str:
    with pytest.raises(ConfigError) as caught:
        build(spec, ranks=join(CPU, sequence=2))
    return str(caught.value)


def test_what_ranks_cannot_share_is_refused_when_it_is_built(tmp_path):
    tiny.save("qwen3", tmp_path / "odd", num_attention_heads=3, num_key_value_heads=3)
    tiny.save("qwen2", tmp_path / "even")
    told = (
        on_ranks(2, refused, ModelSpec(str(tmp_path / "odd"))),
        on_ranks(2, refused, ModelSpec(str(tmp_path / "even"), packed=False)),
    )
    assert all("3 attention heads" in one and "set one of 1, 3" in one for one in told[0])
    assert all("Qwen2ForCausalLM" in one and "padded layout" in one for one in told[1])


def test_ranks_that_do_not_divide_the_heads_are_refused_with_the_sizes_that_do():
    config = transformers.Qwen2Config(num_attention_heads=12, num_key_value_heads=2)
    check_heads(config, 4)
    with pytest.raises(
        ConfigError, match=r"worker\.actor\.ulysses_size.*8 ranks.*12 attention heads.*1, 2, 3, 4, 6, 12"
    ):
        check_heads(config, 8)


def test_padded_rows_are_refused():
    check_layout(False, "Qwen3_5Model", 1)
    check_layout(True, "Qwen2Model", 2)
    with pytest.raises(ConfigError, match=r"2 ranks.*Qwen3_5Model.*padded"):
        check_layout(False, "Qwen3_5Model", 2)


@pytest.mark.parametrize("shape", ((6,), (1, 6), (1, 6, 4)))
def test_a_tensor_of_the_rows_length_that_nobody_knows_is_refused(shape):
    layout = Ulysses(Packed((Span(0, 4, (2,)),)), SimpleNamespace(size=lambda: 2, rank=lambda: 1), 6)
    own = layout.sliced({"input_ids": torch.arange(6)[None], "other": torch.zeros(5), "scale": torch.tensor(6)})
    assert own["input_ids"].tolist() == [[3, 4, 5]] and own["other"].shape == (5,)
    with pytest.raises(UnsupportedAttention, match="how to cut places by tokens"):
        layout.sliced({"places": torch.zeros(shape)})
