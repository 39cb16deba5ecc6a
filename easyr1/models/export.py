"""A checkpoint of ours -> a folder that transformers loads like any other model; adapters are merged into their base.

Takes only files that the checkpoint's manifest vouches for, and shows its result when all of it is written. Knows the
shape of a checkpoint folder, not the trainer that writes it.
"""

import json
import logging
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PreTrainedModel

from easyr1.data.model_files import FILES_FOLDER, TOKENIZER_FILES, ModelFiles, model_folder
from easyr1.errors import CheckpointError, ConfigError, DataError, first_line
from easyr1.manifest import check_contents, refuse_pickled, sync
from easyr1.models.build import DTYPES, auto_class
from easyr1.models.lora import ADAPTER_FOLDER, CONFIG_FILE, TENSORS_FILE, merged_from
from easyr1.models.shards import MODEL_FOLDER, OPTIM_FOLDER, load_shards, shapes

log = logging.getLogger(__name__)

UNREAD = (OPTIM_FOLDER, f"{FILES_FOLDER}/config.json")  # the latter is written anew by an export in its place
FILE_SIZE = "5GB"  # of one file of weights in the result
WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
OPENING = ("model.safetensors", "model.safetensors.index.json", TENSORS_FILE)  # no model can be loaded without one

Phase = Callable[[str], AbstractContextManager[object]]  # tells what is being done while it lasts


def export(
    checkpoint: Path,
    output: Path | None = None,
    *,
    base: str | None = None,
    dtype: str | None = None,
    adapter_only: bool = False,
    trust_remote_code: bool = False,
    phase: Phase = lambda name: nullcontext(),
    dry_run: bool = False,
) -> Path:
    """Write the policy of a checkpoint (global_step_<k>, or the actor folder in it) as a Hugging Face folder.

    `output` is <actor>/huggingface by default, `dtype` the precision of the trained weights, `base` the folder or hub
    name that adapters are merged into, in the place of the recorded one. Returns the folder, which a `dry_run` only
    names. ConfigError for a wrong call; CheckpointError, naming the file, for a checkpoint or base that cannot be
    used; `output` is then as before.
    """
    actor = find_actor(checkpoint)
    if dtype is not None and (dtype not in DTYPES or adapter_only):
        allowed = "an adapter keeps its own" if adapter_only else f"give one of {', '.join(DTYPES)}"
        raise ConfigError("--dtype", f"{dtype!r} cannot be taken: {allowed}")
    with phase("checking the checkpoint"):
        check_contents(actor.parent, below=f"{actor.name}/", but=UNREAD)
    source = _source(actor, base, trust_remote_code)
    target = _target(source, output, adapter_only)
    if dry_run:
        return target
    with _unfinished(target) as new:
        if adapter_only:
            _copy_adapter(source, new)
        else:
            _write_model(source, new, dtype, phase)
        ModelFiles(source.files, source.files, source.files, trust_remote_code=True).copy(new)
        _put_in_place(new, target)
    return target


def find_actor(given: Path) -> Path:
    """The actor folder that a path means. ConfigError for another folder, CheckpointError for another program's."""
    path = given.expanduser().absolute()
    if not path.is_dir():
        raise ConfigError("CHECKPOINT", f"there is no folder {path}")
    if path.name == "critic":
        raise ConfigError("CHECKPOINT", f"{path} is a value model; the language model is {path.with_name('actor')}")
    steps = sorted((int(child.name[12:]), child) for child in path.glob("global_step_*") if child.name[12:].isdigit())
    if steps:
        names = ", ".join(child.name for _, child in steps)
        raise ConfigError("CHECKPOINT", f"{path} is a run folder ({names}); give one step, such as {steps[-1][1]}")
    refuse_pickled(path)
    actor = path if path.name == "actor" else path / "actor"
    if not actor.is_dir():
        raise ConfigError("CHECKPOINT", f"{path} is no checkpoint; give global_step_<k> or the actor folder in it")
    return actor


@dataclass(frozen=True)
class _Source:
    """What a checkpoint offers; `config` and `files` (tokenizer, processor, ...) are folders, the base's if need be.

    `base` is None where the weights are complete by themselves and none was given.
    """

    actor: Path
    config: Path
    files: Path
    adapter: Path | None
    base: str | None
    trust_remote_code: bool


def _source(actor: Path, base: str | None, trust_remote_code: bool) -> _Source:
    adapter = actor / ADAPTER_FOLDER if (actor / ADAPTER_FOLDER / CONFIG_FILE).is_file() else None
    if adapter is None and (name := next((name for name in shapes(actor / MODEL_FOLDER) if ".lora_A." in name), "")):
        raise CheckpointError(f"{actor} holds adapters ({name}) but no {ADAPTER_FOLDER}/{CONFIG_FILE}")
    files = actor / FILES_FOLDER
    has_config = (files / "config.json").is_file()
    has_tokenizer = any(path.is_file() for pattern in TOKENIZER_FILES for path in files.glob(pattern))
    found = files
    if not (has_config and has_tokenizer):
        lacks = f"{files} holds no {'tokenizer' if has_config else 'config.json'}"
        if base is None:
            raise CheckpointError(f"{lacks}; name a model that does with --model_path")
        log.warning("%s; it is taken from %s", lacks, base)
        found = _files_of(base)
    elif base is not None and adapter is None:
        log.warning("--model_path is not needed: %s holds the whole model", actor)
    if adapter is not None and base is None:
        base = json.loads((adapter / CONFIG_FILE).read_text(encoding="utf-8"))["base_model_name_or_path"]
    config, files = (files if has_config else found), (files if has_tokenizer else found)
    return _Source(actor, config, files, adapter, base, trust_remote_code)


def _files_of(base: str) -> Path:
    try:
        return ModelFiles.find(base).model
    except ConfigError as error:
        raise ConfigError("--model_path", str(error).removeprefix(f"{error.key}: ")) from error


def _target(source: _Source, output: Path | None, adapter_only: bool) -> Path:
    """The folder to write. ConfigError for one that would harm the checkpoint, the base, or what is there."""
    if adapter_only and source.adapter is None:
        raise ConfigError("--adapter_only", f"{source.actor} was trained without LoRA, so it has no adapter")
    if adapter_only and output is None:
        raise ConfigError("--output_path", f"is needed; without one, the adapter lies in {source.adapter} already")
    target = (output or source.actor / FILES_FOLDER).expanduser().resolve()
    step, own = source.actor.parent.resolve(), (source.actor / FILES_FOLDER).resolve()
    if target.exists() and not target.is_dir():
        raise ConfigError("--output_path", f"{target} is a file")
    if step.is_relative_to(target) or (target.is_relative_to(step) and (target != own or adapter_only)):
        raise ConfigError("--output_path", f"{target} belongs to the run or holds it; give another folder")
    bases = {source.base, _trained_from(source.actor.parent)} - {None}
    if any(Path(base).expanduser().resolve() == target for base in bases if base):
        raise ConfigError("--output_path", f"{target} is the model that training started from; give another folder")
    other = "config.json" if adapter_only else CONFIG_FILE
    if (target / other).is_file():
        kinds = ("a model", "an adapter") if adapter_only else ("an adapter", "a model")
        raise ConfigError("--output_path", f"{target} holds {kinds[0]} ({other}); give another folder for {kinds[1]}")
    return target


def _trained_from(step: Path) -> str | None:
    """The model that the run started from, as far as the checkpoint's configuration tells."""
    try:
        state = json.loads((step / "trainer_state.json").read_text(encoding="utf-8"))
        return state["config"]["worker"]["actor"]["model"]["model_path"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _copy_adapter(source: _Source, folder: Path) -> None:
    assert source.adapter is not None
    for name in (CONFIG_FILE, TENSORS_FILE):
        shutil.copyfile(source.adapter / name, folder / name)


def _write_model(source: _Source, folder: Path, dtype: str | None, phase: Phase) -> None:
    """Weights and configuration, under the names of the model's files. CheckpointError where tensors do not fit."""
    with _told("the configuration", source.config, "Is --trust_remote_code needed?"):
        config = AutoConfig.from_pretrained(source.config, trust_remote_code=source.trust_remote_code)
        empty = _empty_model(config, torch.float32, source.trust_remote_code)
    names = _names(empty)
    with phase("reading the weights" if source.adapter is None else "merging the adapter into its base"):
        tensors = _read_weights(source, empty, names) if source.adapter is None else _merge(source, config, names)
    kept = _main_dtype(tensors.values()) if dtype is None else DTYPES[dtype]
    if dtype is not None:
        for name, tensor in tensors.items():
            tensors[name] = tensor.to(kept) if tensor.is_floating_point() else tensor
    whole = {name: tensors[first] for name, first in names.items()}
    tensors.clear()
    with phase("writing the weights"):
        _empty_model(config, kept, source.trust_remote_code).save_pretrained(
            folder, state_dict=whole, max_shard_size=FILE_SIZE
        )
    for path in folder.glob("*.safetensors"):  # which are written for their owner alone
        path.chmod((folder / "config.json").stat().st_mode)


def _empty_model(config: Any, dtype: torch.dtype, trust_remote_code: bool) -> PreTrainedModel:
    """The model without weights, of the class in which it was trained."""
    with torch.device("meta"):
        return auto_class(config).from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)


def _names(model: PreTrainedModel) -> dict[str, str]:
    """Name of every saved tensor -> the first of the names that its tensor has; two where it is tied."""
    firsts: dict[torch.Tensor, str] = {}
    every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    named = {name: firsts.setdefault(tensor, name) for name, tensor in every}
    return {name: named[name] for name in model.state_dict()}


def _read_weights(source: _Source, model: PreTrainedModel, names: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """First name -> tensor, as trained. CheckpointError unless the checkpoint holds exactly the model's tensors."""
    folder = source.actor / MODEL_FOLDER
    there, state = shapes(folder), model.state_dict()
    tensors = {
        name: torch.empty(state[name].shape, dtype=there[name].dtype if name in there else torch.float32)
        for name in dict.fromkeys(names.values())
    }
    load_shards(folder, tensors)
    return tensors


def _merge(source: _Source, config: Any, names: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """First name -> tensor of the base with the adapter in it, in float32: a bfloat16 base would round the sum."""
    assert source.adapter is not None and source.base is not None
    with _told("the model that was trained", source.base, "Say with --model_path in which folder it lies now"):
        model, report = auto_class(config).from_pretrained(
            model_folder(source.base, weights=True),
            config=config,
            dtype=torch.float32,
            trust_remote_code=source.trust_remote_code,
            output_loading_info=True,
        )
        if lost := sorted(report["missing_keys"]):
            raise ValueError(f"{len(lost)} weights are missing there, {lost[0]} for one")
    try:
        merged = merged_from(model, source.adapter)
    except DataError as error:
        raise CheckpointError(f"{error}; name the model that was trained with --model_path") from error
    return {name: merged[name] for name in dict.fromkeys(names.values())}


def _main_dtype(tensors: Iterable[torch.Tensor]) -> torch.dtype:
    """The precision of most numbers."""
    sizes: dict[torch.dtype, int] = {}
    for tensor in tensors:
        if tensor.is_floating_point():
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel()
    return max(sizes, key=lambda dtype: sizes[dtype])


@contextmanager
def _told(what: str, given: str | Path, cure: str) -> Iterator[None]:
    """What transformers raises for missing and foreign files, as a CheckpointError."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = _broken_file(given) or first_line(error)
        raise CheckpointError(f"{what} cannot be loaded from {given} ({reason}). {cure}") from error


def _broken_file(folder: str | Path) -> str:
    """Which file of weights is no safetensors file, or nothing."""
    faults = map(_fault_of, sorted(Path(folder).expanduser().glob("*.safetensors")))
    return next(filter(None, faults), "")


def _fault_of(file: Path) -> str:
    try:
        with safe_open(file, framework="pt"):
            return ""
    except (SafetensorError, OSError) as error:
        return f"{file.name}: {error}"


@contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """A new folder on the disk of `target` that is gone afterwards. CheckpointError where it takes no more."""
    folder = target / ".unfinished" if target.is_dir() else target.with_name(f".{target.name}.unfinished")
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        yield folder
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{target} cannot be written ({error}); what was there is as it was") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _put_in_place(new: Path, target: Path) -> None:
    """Move all files of `new` into `target`, in whose place nothing half can be loaded; as before if it fails.

    The file that opens the weights goes first and comes last. Other files in `target` stay.
    """
    names = sorted((path.relative_to(new) for path in new.rglob("*") if path.is_file()), key=_is_opening)
    for path in (*(new / name for name in names), new):
        sync(path)
    if not target.exists():
        new.rename(target)
        sync(target.parent)
        return
    old = new / ".old"
    stale = [path.relative_to(target) for path in target.iterdir() if WEIGHTS.fullmatch(path.name)]
    replaced = sorted({name for name in (*names, *stale) if (target / name).is_file()}, key=_is_opening, reverse=True)
    kept, placed = [], []
    try:
        for name in replaced:
            (old / name).parent.mkdir(parents=True, exist_ok=True)
            move = Path.replace if name in stale or _is_opening(name) else shutil.copyfile
            move(target / name, old / name)
            kept.append(name)
        for name in names:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).replace(target / name)
            placed.append(name)
    except BaseException:  # Ctrl-C, too
        for name in set(placed) - set(kept):
            (target / name).unlink()
        for name in reversed(kept):
            (old / name).replace(target / name)
        raise
    sync(target)


def _is_opening(name: Path) -> bool:
    return name.as_posix() in OPENING
