"""A folder that can be trusted: its files on the disk for good, and a manifest of them that is written last.

The manifest lists every file with its size and SHA-256. A folder without one was never finished. Knows nothing of what
the files hold.
"""

import hashlib
import json
import os
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from easyr1.errors import CheckpointError

MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = 1
CHUNK_BYTES = 4 << 20
HASH_THREADS = 8  # hashing releases the interpreter's lock
SEEN_TIMEOUT_S = 120.0  # a network folder may show for a minute what it was
LOOK_S = 0.2


@dataclass(frozen=True)
class Entry:
    """What a file was when it was written."""

    size: int  # bytes
    sha256: str


def write_manifest(folder: Path) -> None:
    """Force every file and folder below `folder` to the disk, then the manifest of all files."""
    files = list_files(folder)
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        entries = dict(zip(files, pool.map(lambda name: _sync_and_describe(folder / name), files), strict=True))
    listing = {name: asdict(entry) for name, entry in entries.items()}
    manifest = folder / MANIFEST_FILE
    manifest.write_text(json.dumps({"format_version": FORMAT_VERSION, "files": listing}, indent=2), encoding="utf-8")
    sync(manifest)
    for path in (*folder.rglob("*"), folder):
        if path.is_dir():
            sync(path)


@dataclass(frozen=True)
class Listing:
    """What one machine sees of a folder's files."""

    node: str
    sizes: Mapping[str, int]  # relative path -> bytes


def wait_for_files(folder: Path, listings: Iterable[Listing], timeout_s: float = SEEN_TIMEOUT_S) -> None:
    """Until this machine sees all that others see below `folder`, in full size: network folders may show it late.

    A file is as large as whoever sees the most of it says; its writer sees it whole. CheckpointError naming the file
    and a node that sees it, when the time is over.
    """
    wanted: dict[str, tuple[int, str]] = {}
    for listing in listings:
        for name, size in listing.sizes.items():
            wanted[name] = max(wanted.get(name, (-1, "")), (size, listing.node))
    end = time.monotonic() + timeout_s
    for name, (size, node) in wanted.items():
        while (found := _size(folder / name)) != size:
            if time.monotonic() > end:
                what = "does not see it" if found is None else f"sees {found}"
                raise CheckpointError(
                    f"{folder / name} has {size} bytes on node {node}, and this machine {what} after {timeout_s:g} s: "
                    "all nodes need one shared folder there"
                )
            time.sleep(LOOK_S)


def file_sizes(folder: Path) -> dict[str, int]:
    """Relative path -> bytes of every file below `folder` but the manifest."""
    sizes = {name: _size(folder / name) for name in list_files(folder)}
    return {name: size for name, size in sizes.items() if size is not None}


def _size(path: Path) -> int | None:
    """In bytes; None where there is no such file. Network folders look anew for a file that is opened."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return None


def read_manifest(folder: Path) -> dict[str, Entry]:
    """Relative path -> what the file was. CheckpointError without a manifest that this version can read."""
    file = folder / MANIFEST_FILE
    if not file.is_file():
        raise CheckpointError(f"{folder} is incomplete: {MANIFEST_FILE}, which is written last, is missing")
    manifest = read_json(file)
    try:
        version = manifest["format_version"]
        if version == FORMAT_VERSION:
            return {name: Entry(**entry) for name, entry in manifest["files"].items()}
    except (TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{file} is damaged ({error!r})") from error
    raise CheckpointError(
        f"{folder} has format version {version}, this version of easyr1 reads {FORMAT_VERSION}; "
        "read it with the version that wrote it"
    )


def check_complete(folder: Path, below: str = "", but: Collection[str] = ()) -> None:
    """Every file under the path `below` is there in its full size; reads no content.

    What is called or lies in a part of a path in `but` ("optim", "huggingface/config.json") is left out. Raises
    CheckpointError that names the first file that is not there.
    """
    for name, entry in _entries(folder, below, but).items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{folder} is incomplete: {name} is missing")
        if path.stat().st_size != entry.size:
            raise CheckpointError(
                f"{folder} is incomplete: {name} has {path.stat().st_size} bytes, {entry.size} were written"
            )


def check_contents(folder: Path, below: str = "", but: Collection[str] = ()) -> None:
    """As `check_complete`, and each file is what was written."""
    check_complete(folder, below, but)
    entries = _entries(folder, below, but)
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        digests = pool.map(lambda name: _sha256_of_checked(folder / name), entries)
        for (name, entry), digest in zip(entries.items(), digests, strict=True):
            if digest != entry.sha256:
                raise CheckpointError(f"{folder / name} is damaged: its content is not what was written")


def refuse_pickled(folder: Path) -> None:
    """CheckpointError for a checkpoint of EasyR1 or veRL, whose files are pickled."""
    pickled = sorted(folder.rglob("*_world_size_*_rank_*.pt")) or sorted(folder.glob("dataloader.pt"))
    if pickled:
        raise CheckpointError(
            f"{folder} was written by EasyR1 or veRL: {pickled[0].relative_to(folder)} is a pickle, which could run "
            "any code and is never read. Merge it with the program that wrote it, then start from the merged folder: "
            "worker.actor.model.model_path=<merged folder>"
        )


def _entries(folder: Path, below: str, but: Collection[str]) -> dict[str, Entry]:
    entries = read_manifest(folder).items()
    left_out = tuple(f"/{part}/" for part in but)
    return {
        name: entry
        for name, entry in entries
        if name.startswith(below) and not any(part in f"/{name}/" for part in left_out)
    }


def _sha256_of_checked(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error


def foreign_files(folder: Path) -> list[str]:
    """Files below `folder` that its manifest does not list."""
    known = read_manifest(folder)
    return [name for name in list_files(folder) if name not in known]


def list_files(folder: Path) -> list[str]:
    """Relative paths of all files below `folder` but the manifest, in order."""
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return sorted(name for name in paths if name != MANIFEST_FILE)


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Force a file's content, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> Any:
    """What a JSON file of a checkpoint holds. CheckpointError if it is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged ({error})") from error


def write_synced(path: Path, values: Mapping[str, Any]) -> None:
    """Write JSON under a temporary name, force it to the disk, and put it in place in one go."""
    new = path.with_name(f"{path.name}.unfinished")
    new.write_text(json.dumps(values, indent=2), encoding="utf-8")
    sync(new)
    new.replace(path)
    sync(path.parent)


def _sync_and_describe(path: Path) -> Entry:
    sync(path)
    return Entry(path.stat().st_size, sha256(path))
