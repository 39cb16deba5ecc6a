"""Weights spread over ranks: what is sharded, how shards are filled from rank 0, and how tensors become whole again.

The one door to FSDP2. A model is sharded layer by layer below one root, through which alone it is entered. Knows
neither losses nor batches.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from easyr1.models.ranks import Ranks


@dataclass(frozen=True)
class Sharding:
    """How a model is spread over ranks; nothing of it holds for a model that one process has alone."""

    reduce_dtype: torch.dtype = torch.float32  # in which gradients are added over ranks
    full_shard: bool = True  # False: weights stay whole from the first use in a pass to its end
    cpu_offload: bool = False  # shards stay in host memory; means nothing where the computation is there, too
    rank0_init: bool = True  # False: every rank reads all weights by itself


def shard(root: nn.Module, ranks: Ranks, sharding: Sharding, compute_dtype: torch.dtype | None) -> None:
    """Spread the weights of `root` over the mesh, in place. All ranks call it.

    Gradients are sums over ranks, never means: losses already have their denominators over all ranks. With
    `compute_dtype` (None: the weights' own) whole weights have that type, and so has all that is computed with them,
    but for the parts that root names in `exact`.
    """
    assert ranks.mesh is not None
    # Nothing changes in place what the root returns.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    mixed = MixedPrecisionPolicy(
        param_dtype=compute_dtype, reduce_dtype=sharding.reduce_dtype, cast_forward_inputs=False
    )
    exact = MixedPrecisionPolicy(reduce_dtype=sharding.reduce_dtype, cast_forward_inputs=False)
    offload = CPUOffloadPolicy() if sharding.cpu_offload and ranks.mesh.device_type != "cpu" else OffloadPolicy()
    reshard = None if sharding.full_shard else False
    parts = [(part, exact) for part in getattr(root, "exact", ())] + [(part, mixed) for part in blocks(root)]
    for part, precision in [*parts, (root, mixed)]:
        fully_shard(part, mesh=ranks.mesh, reshard_after_forward=reshard, mp_policy=precision, offload_policy=offload)
    for part in sharded_parts(root):
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)  # gloo has no other, and a mean would have to be undone
    root.register_forward_pre_hook(_note_entry)


def _note_entry(root: nn.Module, _: object) -> None:
    root.was_entered = True  # type: ignore[assignment]


def blocks(module: nn.Module) -> list[nn.Module]:
    """The repeated parts of a model: members of its outermost lists, as decoder layers and vision blocks are."""
    if isinstance(module, nn.ModuleList):
        # A list has no forward of its own, so lists in lists are opened.
        return [
            part for member in module for part in (blocks(member) if isinstance(member, nn.ModuleList) else [member])
        ]
    return [part for child in module.children() for part in blocks(child) if any(True for _ in part.parameters())]


def sharded_parts(root: nn.Module) -> list[FSDPModule]:
    """The parts that FSDP2 takes for units, the root among them; none where the model is not sharded."""
    return [module for module in root.modules() if isinstance(module, FSDPModule)]


def reshard(root: nn.Module) -> None:
    """After whole passes: let go of whole weights that one without gradient has left behind, which would not see a
    change of shards, and of what FSDP2 notes of each forward until a backward comes. Gradients that were not yet added
    over ranks are lost.
    """
    if isinstance(root, FSDPModule) and getattr(root, "was_entered", False):  # FSDP2 is not ready before
        root.reset_iter_state()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in full: of a DTensor all parts, put together by all its ranks at once; others as they are."""
    if not isinstance(tensor, DTensor):
        return tensor
    there = tensor.detach().to(tensor.device_mesh.device_type)
    assert isinstance(there, DTensor)
    return there.full_tensor()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor, in the same memory; others as they are."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def table(root: nn.Module) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Name -> shape and type of all that `fill` hands on."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in _held(root)}


def hand_on(tensors: Iterable[torch.Tensor]) -> None:
    """Rank 0's numbers, in place, to all ranks; all of them call it."""
    for tensor in tensors:
        dist.broadcast(tensor.data, 0)


@torch.no_grad()
def fill(root: nn.Module, source: nn.Module | None, device: torch.device, offload: bool = False) -> None:
    """Give a sharded `root` on the meta device the tensors of rank 0's `source`: weights, buffers and the tensors that
    modules keep beside them. All ranks call it; none but rank 0 holds more than one whole tensor at a time.

    With `offload` the shards lie in host memory.
    """
    root.to_empty(device=torch.device("cpu") if offload else device)
    given = dict(_held(source)) if source is not None else {}
    for name, tensor in list(_held(root)):
        full = given[name].detach().to(device).contiguous() if given else _empty(tensor, device)
        dist.broadcast(full, 0)
        if isinstance(tensor, DTensor):
            part = distribute_tensor(full, tensor.device_mesh, tensor.placements, src_data_rank=None)
            local(tensor).copy_(local(part))
        else:
            owner, _, own = name.rpartition(".")
            setattr(root.get_submodule(owner), own, full)
    left = [name for name, tensor in _held(root) if tensor.is_meta]
    assert not left, left


def _empty(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)


def _held(root: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters (a shared one once), buffers, and tensors that are mere attributes, under full names."""
    yield from root.named_parameters()
    yield from root.named_buffers(remove_duplicate=False)
    for prefix, module in root.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                yield (f"{prefix}.{name}" if prefix else name), value


def cast_as(root: nn.Module, wanted: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
    """Give the tensors of a `root` on the meta device the types of `wanted`, a table of a root of the same shape."""
    own = table(root)
    assert {name: shape for name, (shape, _) in own.items()} == {name: shape for name, (shape, _) in wanted.items()}
    for name, parameter in root.named_parameters():
        if parameter.dtype != wanted[name][1]:
            parameter.data = parameter.data.to(wanted[name][1])
    for name, tensor in list(_held(root)):
        if not isinstance(tensor, nn.Parameter) and tensor.dtype != wanted[name][1]:
            owner, _, attribute = name.rpartition(".")
            setattr(root.get_submodule(owner), attribute, tensor.to(wanted[name][1]))


def reduce_gradients(root: nn.Module, now: bool) -> None:
    """Whether the next backward pass adds gradients over ranks, or each rank keeps its own until one does."""
    for part in sharded_parts(root):
        part.set_requires_gradient_sync(now, recurse=False)
        part.set_is_last_backward(now)
