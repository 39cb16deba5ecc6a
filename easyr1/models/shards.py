"""Named tensors <-> a folder of safetensors files that any number of ranks can write and read.

The door to torch.distributed.checkpoint: every rank writes its part of each sharded tensor, and reads the parts that
it needs, however many ranks there were. Its safetensors storage holds tensors and JSON only; nothing is unpickled.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from easyr1.errors import CheckpointError, first_line

MODEL_FOLDER, OPTIM_FOLDER = "model", "optim"  # in an engine's folder of a checkpoint
FILE_BYTES = 2 << 30  # a file is put together in memory before it is written
NUM_NAMES_SHOWN = 3


@dataclass(frozen=True)
class Shape:
    """What a folder holds under a name."""

    size: tuple[int, ...]
    dtype: torch.dtype


def save_shards(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write the tensors, whole ones and DTensors. All ranks call it. CheckpointError if it cannot be written."""
    files = _files(tensors) or None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=files, save_distributed=True)
        with _alone():
            save({name: tensor.detach() for name, tensor in tensors.items()}, storage_writer=writer)
    except (CheckpointException, SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder} cannot be written: {_reason(error)}") from error


def load_shards(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Fill the tensors in place. All ranks call it. CheckpointError unless the folder holds exactly these tensors."""
    _check_same(folder, tensors)
    try:
        with _alone():
            load(
                {name: tensor.detach() for name, tensor in tensors.items()},
                storage_reader=HuggingFaceStorageReader(str(folder)),
            )
    except (CheckpointException, SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder} cannot be read: {_reason(error)}") from error


def shapes(folder: Path) -> dict[str, Shape]:
    """Name -> shape of every tensor in the folder. CheckpointError if a file is no safetensors file."""
    if not folder.is_dir():
        return {}
    try:
        metadata = HuggingFaceStorageReader(str(folder)).read_metadata()
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"a file in {folder} is no safetensors file: {_reason(error)}") from error
    return {
        name: Shape(tuple(entry.size), entry.properties.dtype)
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def _files(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Name -> number of the file that it goes into, from 1; a new file where FILE_BYTES are full."""
    numbers, filled, number = {}, 0, 1
    for name, tensor in tensors.items():
        if filled and filled + tensor.nbytes > FILE_BYTES:
            filled, number = 0, number + 1
        filled += tensor.nbytes
        numbers[name] = number
    return numbers


def _check_same(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    there = shapes(folder)
    wrong = {
        "missing": [name for name in tensors if name not in there],
        "unknown": [name for name in there if name not in tensors],
        "of another shape": [
            f"{name} {list(there[name].size)} instead of {list(tensor.shape)}"
            for name, tensor in tensors.items()
            if name in there and there[name].size != tuple(tensor.shape)
        ],
    }
    told = [
        f"{len(names)} weights {what} ({', '.join(names[:NUM_NAMES_SHOWN])})" for what, names in wrong.items() if names
    ]
    if told:
        raise CheckpointError(f"{folder} belongs to another model: {'; '.join(told)}")


@contextmanager
def _alone() -> Iterator[None]:
    """Without a process group the library works alone, as wanted, but warns of it."""
    with warnings.catch_warnings():
        if not dist.is_initialized():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield


def _reason(error: BaseException) -> str:
    """The first line of what happened; of a failure on several ranks, that of the first."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    return first_line(error)
