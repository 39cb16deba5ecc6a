"""The door to the hubs: models and data sets that come from there, and what we publish.

Hugging Face, or the mirror that HF_ENDPOINT names; with USE_MODELSCOPE_HUB=1 everything comes from ModelScope. Knows
names and folders. Does not know what is in the files.
"""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from easyr1.errors import ConfigError, first_line

if TYPE_CHECKING:
    import datasets

SWITCH = "USE_MODELSCOPE_HUB"


def uses_modelscope() -> bool:
    return os.environ.get(SWITCH, "").strip().lower() in ("1", "true", "yes", "on")


def hub_name() -> str:
    """The hub that names are looked up in, for messages."""
    return "ModelScope" if uses_modelscope() else "the Hugging Face hub"


def download_model(name: str, patterns: Sequence[str]) -> Path:
    """The folder of a hub model with the files that match; those that are there already are not fetched again.

    All parts of a run that ask for the same files get the same revision. Raises OSError or ValueError.
    """
    return _download(name, tuple(patterns), uses_modelscope())


@functools.cache
def _download(name: str, patterns: tuple[str, ...], from_modelscope: bool) -> Path:
    if from_modelscope:
        with _modelscope() as (fetch_model, _):
            return Path(fetch_model(name, allow_patterns=list(patterns)))
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns)))
    except OSError as error:  # whose message has many lines
        raise OSError(" ".join(str(error).split())) from error


def load_dataset(name: str, split: str) -> "datasets.Dataset":
    """A split of a hub data set. Raises OSError, ValueError or DatasetsError."""
    import datasets

    if not uses_modelscope():
        return datasets.load_dataset(name, split=split)
    with _modelscope() as (_, fetch_dataset):
        folder = fetch_dataset(name)
    return datasets.load_dataset(str(folder), split=split)  # reads a repository's folder as the hub would


@contextmanager
def _modelscope() -> Iterator[tuple[Callable[..., str], Callable[..., str]]]:
    """ModelScope's downloads of models and of data sets; what it raises of its own becomes an OSError."""
    try:
        from modelscope.hub import errors  # pyright: ignore[reportMissingImports]
        from modelscope.hub.snapshot_download import (  # pyright: ignore[reportMissingImports]
            dataset_snapshot_download,
            snapshot_download,
        )
    except ImportError as error:
        raise ConfigError(
            SWITCH,
            f"it is set, but the package modelscope cannot be imported ({error}); pip install 'easyr1[modelscope]', "
            "or unset it to use Hugging Face",
        ) from error
    own = tuple(kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception))
    try:
        yield snapshot_download, dataset_snapshot_download
    except (OSError, *own) as error:
        raise OSError(" ".join(str(error).split())) from error


def upload(folder: Path, name: str) -> str:
    """Upload all files of `folder` to the model OWNER/NAME, made private if it is new. Returns its address."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of whichever client the hub uses

    hub = HfApi()
    try:
        address = hub.create_repo(name, repo_type="model", private=True, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=folder)
    except (HTTPError, OSError, ValueError) as error:
        reason = first_line(error)
        raise ConfigError(
            "--hf_upload_path",
            f"{name} cannot be uploaded ({reason}); the model itself is complete in {folder}. HF_TOKEN or `hf auth "
            "login` gives access",
        ) from error
    return str(address)
