"""Models spread over ranks: what each rank holds is rank 0's, no other rank reads it, and whole tensors come back."""

from dataclasses import replace

import pytest
import ranked
import scenes
import tiny
import torch
from ranks import on_ranks
from torch import nn
from torch.distributed.tensor import DTensor

from easyr1.engines.pack import Budget
from easyr1.engines.train import TorchTrain
from easyr1.models import build as building
from easyr1.models import parallel
from easyr1.models.build import ModelSpec, build, build_critic
from easyr1.models.lora import LoraSpec
from easyr1.models.parallel import Sharding, blocks, sharded_parts, table, whole
from easyr1.models.ranks import join
from tests.families import FAMILIES
from tests.family_scenes import world

CPU = torch.device("cpu")
CORE = ("qwen3_moe", "gemma3", "smolvlm")


def spread(spec, kind="policy", trainable=True, fsdp_size=-1):
    """On each rank: what its root held before and after it was sharded, how often it read the model, and the tensors
    that came back whole beside those that were read.
    """
    torch.manual_seed(torch.distributed.get_rank())  # ranks would draw different adapters
    ranks, seen, read = join(CPU, fsdp_size), [], []
    shard, load, whole_model = building.shard, building.load_model, building._whole

    def listen(root, *rest):
        seen.extend(tensor.is_meta for _, tensor in parallel._held(root))
        shard(root, *rest)

    building.shard = listen
    building.load_model = lambda spec: read.append(load(spec)) or read[-1]
    building._whole = lambda *rest: read.append(whole_model(*rest)) or read[-1]
    root = build_critic(spec, ranks) if kind == "critic" else build(spec, trainable, ranks)
    source = dict(parallel._held(read[-1])) if read else {}
    found = {name: whole(tensor).detach().clone() for name, tensor in parallel._held(root)}
    is_part = all(isinstance(parameter, DTensor) for parameter in root.parameters())
    flags = {name: parameter.requires_grad for name, parameter in root.named_parameters()}
    if read:
        assert flags == {name: parameter.requires_grad for name, parameter in read[-1].named_parameters()}
        assert root.training == read[-1].training and root.packed == read[-1].packed
        assert root.plain_head == read[-1].plain_head and root.type_names == read[-1].type_names
        assert {n: m.training for n, m in root.named_modules()} == {n: m.training for n, m in read[-1].named_modules()}
        assert root.model.config.to_dict() == read[-1].model.config.to_dict()
        assert root.model.config._attn_implementation == read[-1].model.config._attn_implementation
    held = sum(parameter.to_local().numel() for parameter in root.parameters())
    return seen, len(read), is_part, {name: tensor.detach() for name, tensor in source.items()}, found, held


def check(spec, world_size=2, **keywords):
    (_, _, _, source, _, _), *_ = results = on_ranks(world_size, spread, spec, *keywords.values())
    total = sum(tensor.numel() for name, tensor in source.items())
    for rank, (seen, read, is_part, _, found, held) in enumerate(results):
        assert all(seen) and len(seen) == len(source)
        assert read == (2 if rank == 0 else 0)
        assert is_part and held < 0.6 * total * (2 / world_size)
        assert found.keys() == source.keys()
        for name, tensor in source.items():
            assert torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype, name


@pytest.mark.parametrize("tied", (False, True))
@pytest.mark.parametrize("kind", ("qwen2", "qwen2_5_vl"))
def test_only_rank_0_reads_a_model_and_all_get_their_part_of_it(kind, tied, tmp_path):
    check(ModelSpec(str(ranked.saved(kind, tmp_path, tie_word_embeddings=tied))))


@pytest.mark.parametrize("kind", ("policy", "critic"))
def test_adapters_and_value_heads_are_rank_0s(kind, tmp_path):
    lora = LoraSpec(rank=4, alpha=8, exclude_modules=None)
    spec = ModelSpec(str(ranked.saved("qwen2_5_vl", tmp_path)), compute_dtype="bfloat16", lora=lora)
    check(spec, kind=kind)


def test_a_frozen_model_and_a_padded_one_and_a_frozen_tower_are_as_rank_0_has_them(tmp_path):
    spec = ModelSpec(str(ranked.saved("qwen2_5_vl", tmp_path)))
    check(replace(spec, packed=False), kind="policy", trainable=False)
    check(replace(spec, freeze_vision_tower=True, gradient_checkpointing=True))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in CORE else [pytest.mark.slow]) for name in FAMILIES]
)
def test_every_family_is_spread(name):
    check(ModelSpec(str(world(name).folder)))


def test_the_parts_are_decoder_layers_and_vision_blocks():
    model = tiny.build("qwen2_5_vl")
    assert blocks(model) == [*model.model.visual.blocks, *model.model.language_model.layers]
    inside = nn.ModuleList([nn.ModuleList([nn.Linear(2, 2)]), nn.Identity()])
    assert blocks(nn.ModuleDict({"a": inside})) == [inside[0][0]]


class Odd(nn.Module):
    """Holds what a model may: buffers that no state dict has, a tensor beside them, a shared weight, odd types."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList([nn.Linear(3, 5), nn.Linear(5, 3)])
        self.head, self.tied = nn.Linear(3, 7, bias=False), nn.Linear(3, 7, bias=False)
        self.tied.weight = self.head.weight
        self.register_buffer("hidden", torch.rand(4).double(), persistent=False)
        self.beside = torch.rand(2)
        self.layers[1].beside = torch.rand(1).bfloat16()


def filled():
    ranks = join(CPU)
    source = Odd(0) if ranks.rank == 0 else None
    with torch.device("meta"):
        root = Odd(1)
    parallel.cast_as(root, ranks.gather(table(source) if source else None)[0])
    parallel.shard(root, ranks, Sharding(), None)
    parallel.fill(root, source, CPU)
    assert root.tied.weight is root.head.weight
    return {name: whole(tensor).detach().clone() for name, tensor in parallel._held(root)}


def test_all_that_a_module_holds_is_handed_on():
    wanted = dict(parallel._held(Odd(0)))
    for found in on_ranks(3, filled):
        assert found.keys() == wanted.keys() >= {"hidden", "beside", "layers.1.beside"}
        for name, tensor in wanted.items():
            assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def each_reads(spec):
    torch.manual_seed(torch.distributed.get_rank())
    root = build(spec, ranks=join(CPU))
    return {name: whole(tensor).detach().clone() for name, tensor in parallel._held(root)}


def test_each_rank_may_read_by_itself(tmp_path):
    spec = ModelSpec(str(ranked.saved("qwen2_5_vl", tmp_path)), lora=LoraSpec(rank=4, alpha=8))
    found = on_ranks(2, each_reads, replace(spec, sharding=Sharding(rank0_init=False)))
    plain = dict(parallel._held(build(spec)))
    for rank in found:
        for name, tensor in plain.items():
            assert torch.equal(rank[name], tensor) or ".lora_A." in name, name
            assert torch.equal(rank[name], found[0][name]), name


def kept_whole(spec):
    """Whether weights are let go of after a pass, by kind of part."""
    from easyr1.models.scored import ModelInputs

    root = build(spec, ranks=join(CPU))
    ids = torch.arange(3, 11)[None]
    root(ModelInputs(ids, torch.arange(8)[None, None], torch.arange(8), attention_mask=torch.ones(1, 8)), ids[0])
    layer = not isinstance(next(root.model.model.layers[0].parameters()), DTensor)
    parallel.reshard(root)
    return layer, all(isinstance(parameter, DTensor) for parameter in root.parameters())


@pytest.mark.parametrize("full_shard", (True, False))
def test_without_full_sharding_weights_stay_whole_until_they_are_let_go(full_shard, tmp_path):
    spec = ModelSpec(str(ranked.saved("qwen2", tmp_path)), packed=False, sharding=Sharding(full_shard=full_shard))
    assert on_ranks(2, kept_whole, spec) == [(not full_shard, True)] * 2


def noted(spec):
    """How many notes of forwards there are before and after each of several passes without gradient."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    scene, ranks = scenes.Scene("qwen2"), join(CPU)
    engine = TorchTrain(build(spec, trainable=False, ranks=ranks), scene.media, 1.0, Budget(samples=1), ranks=ranks)
    parallel.reshard(engine.scored)  # not yet used
    found, groups = [], scene.groups()
    for _ in range(3):
        engine.score(groups)
        states = [part._get_fsdp_state() for part in sharded_parts(engine.scored)]
        of_groups = [group for state in states for group in state._fsdp_param_groups]
        assert all(isinstance(group, FSDPParamGroup) for group in of_groups)
        indices = sum(len(group._post_forward_indices) for group in of_groups)
        found.append((indices, len(states[0]._comm_ctx.post_forward_order)))
    return found


def test_passes_without_gradient_leave_no_notes_behind(tmp_path):
    assert on_ranks(2, noted, ModelSpec(str(ranked.saved("qwen2", tmp_path)))) == [[(0, 0)] * 3] * 2


def joined():
    """Whether models that are spread alike share their groups, and others do not."""
    ranks, again, other = join(CPU, sequence=2), join(CPU, sequence=2), join(CPU, fsdp_size=1, sequence=2)
    torch.distributed.barrier(again.sequence_group)
    alike = again.mesh is ranks.mesh and again.sequence_group is ranks.sequence_group
    return alike, other.mesh is ranks.mesh, other.sequence_group is ranks.sequence_group


def test_models_that_are_spread_alike_share_their_process_groups():
    assert on_ranks(2, joined) == [(True, False, True)] * 2


def test_models_of_different_shape_are_not_taken_for_one_another():
    with pytest.raises(AssertionError):
        parallel.cast_as(nn.Linear(2, 3, bias=False), table(nn.Linear(2, 3)))
    assert sharded_parts(nn.Linear(2, 2)) == []
