"""Files and folders that the configuration names: whether they are there. Opens none of them."""

import re
from pathlib import Path

from easyr1.config.paths import find_file
from easyr1.config.schema import Config
from easyr1.errors import ConfigError

DATA_SUFFIXES = (".parquet", ".json", ".jsonl", ".csv", ".arrow")
_STEP = re.compile(r"global_step_\d+")


def check_files(config: Config, dry_run: bool) -> list[str]:
    """Raises ConfigError for a file that is not there; returns notes on models that a dry run can do without."""
    data = config.data
    for key, specs in (("data.train_files", data.train_files), ("data.val_files", data.val_files)):
        for spec in (specs,) if isinstance(specs, str) else specs:
            _check_rows(key, spec)
        if not specs:
            raise ConfigError(key, "no data named; give a Hugging Face name, a file or a folder")
    for key, path in (
        ("data.format_prompt", data.format_prompt),
        ("data.override_chat_template", data.override_chat_template),
        ("data.image_dir", data.image_dir),
    ):
        if path is not None:
            _check_kind(key, find_file(path, key), folder=key == "data.image_dir")
    _check_reward(config.worker.reward.reward_function)
    _check_checkpoint(config.trainer.load_checkpoint_path)
    return _check_models(config, dry_run)


def looks_local(path: str) -> bool:
    """Whether `path` cannot be a Hugging Face name such as owner/name, or is there on this machine."""
    shaped = path.startswith(("/", ".", "~", "examples/")) or path.endswith(DATA_SUFFIXES) or path.count("/") > 1
    return shaped or Path(path).expanduser().exists()


def _check_rows(key: str, spec: str) -> None:
    path, at, _ = spec.rpartition("@")
    path = path if at else spec
    if looks_local(path) and not Path(spec).expanduser().exists():
        find_file(path, key)


def _check_kind(key: str, path: Path, folder: bool) -> None:
    if path.is_dir() != folder:
        raise ConfigError(
            key, f"{str(path)!r} is a {'file' if folder else 'folder'}, not a {'folder' if folder else 'file'}"
        )


def _check_reward(spec: str | None) -> None:
    key = "worker.reward.reward_function"
    if spec is None:
        raise ConfigError(key, "there is no reward; name a Python file and a function, file.py:function")
    path, colon, _ = spec.rpartition(":")
    _check_kind(key, find_file(path if colon else spec, key), folder=False)


def _check_checkpoint(path: str | None) -> None:
    """A checkpoint, its actor's or critic's part, a run folder, whose last checkpoint is meant, or best or last."""
    key = "trainer.load_checkpoint_path"
    if path is None or Path(path).name in ("best", "last"):
        return
    folder = find_file(path, key)
    is_step = _STEP.fullmatch((folder.parent if folder.name in ("actor", "critic") else folder).name)
    if folder.is_dir() and (is_step or any(_STEP.fullmatch(step.name) for step in folder.glob("global_step_*"))):
        return
    above = [parent for parent in folder.parents if _STEP.fullmatch(parent.name)]
    hint = f"; did you mean {str(above[0])!r}?" if above else ""
    raise ConfigError(key, f"{path!r} is no checkpoint (global_step_<number>) and holds none{hint}")


def _check_models(config: Config, dry_run: bool) -> list[str]:
    """Folders of models and tokenizers; a hub name is not looked up."""
    worker = config.worker
    if worker.actor.model.model_path is None:
        raise ConfigError("worker.actor.model.model_path", "no model named; give a Hugging Face name or a folder")
    paths = (
        ("worker.actor.model.model_path", worker.actor.model.model_path),
        ("worker.actor.model.tokenizer_path", worker.actor.model.tokenizer_path),
        ("worker.critic.model.model_path", worker.critic.model.model_path),
        ("worker.critic.model.tokenizer_path", worker.critic.model.tokenizer_path),
    )
    errors = [error for key, path in paths if path is not None and (error := _model_error(key, path)) is not None]
    if errors and not dry_run:
        raise errors[0]
    return [f"a real start would stop: {error}" for error in errors]


def _model_error(key: str, path: str) -> ConfigError | None:
    """What is wrong with the folder of a model or tokenizer; nothing is known of a hub name."""
    if not looks_local(path):
        return None
    try:
        folder = find_file(path, key)
        _check_kind(key, folder, folder=True)
    except ConfigError as error:
        return error
    if key.endswith("model_path") and not (folder / "config.json").is_file():
        return ConfigError(key, f"{path!r} holds no config.json, so it is not a Hugging Face model folder")
    return None
