"""Where rows come from: 'path@split', a file, a folder or a hub name -> rows with known columns.

Knows file types, split names and the hub. Does not know what a column means: a picture column stays as it was
stored, bytes or path, and is never decoded here.
"""

import dataclasses
import difflib
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from easyr1.config.paths import locate
from easyr1.data.hub import hub_name, load_dataset
from easyr1.errors import ConfigError, DataError

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger(__name__)

BUILDERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".arrow": "arrow"}
# What the datasets library and model folders leave beside the data.
SIDE_FILES = ("config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
# The words in file and folder names that the hub reads as a split.
SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
SPLIT_NAME = re.compile(r"[A-Za-z]\w*(\.\w+)*(\[[\d:%+-]*\])?")
SHARD_NAME = re.compile(r"(?P<split>\w+(\.\w+)*)-\d{5}-of-\d{5}\.\w+")


@dataclass(frozen=True)
class Rows:
    """A table of rows; picture columns hold what was stored (bytes, path), not pictures."""

    table: "datasets.Dataset"
    spec: str
    folder: Path | None  # folder of the data files, that relative picture paths start from; None for the hub

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.table[number]

    @property
    def columns(self) -> list[str]:
        return list(self.table.column_names)

    def only(self, columns: Sequence[str]) -> "Rows":
        """The same rows with these columns alone, so that reading a row reads nothing else."""
        return dataclasses.replace(self, table=self.table.select_columns(list(columns)))

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process, maybe on another machine, rows are read again from where they came from."""
        return _again, (self.spec, self.columns)

    def require(self, column: str, key: str) -> None:
        """Raise DataError if there is no such column; `key` is the setting that named it."""
        if column in self.columns:
            return
        near = difflib.get_close_matches(column, self.columns, n=1)
        cure = f"did you mean {near[0]!r}?" if near else f"set {key} to the right one."
        raise DataError(f"{self.spec}: no column {column!r} ({key}). Columns found: {', '.join(self.columns)}; {cure}")


def load_rows(spec: str) -> Rows:
    """Rows of a data spec.

    A spec is a file (.parquet, .json, .jsonl, .csv, .arrow), a folder of such files or a name on the Hugging Face
    hub, with an optional '@split' behind it; without it the split is 'train'. A file has the split 'train' only. In
    a folder the splits are told by names, as on the hub: train-0.parquet, test/part.jsonl.
    Raises DataError for anything that cannot be read.
    """
    name, split = parse_spec(spec)
    path = locate(name)
    if path.is_file():
        table, folder = _load_files({"train": [path]}, spec, split), path.parent
    elif path.is_dir():
        table, folder = _load_folder(path, spec, split)
    elif _looks_local(name):
        raise DataError(f"{spec}: there is no file or folder {path}.")
    else:
        table, folder = _load_hub(name, spec, split), None
    if len(table) == 0:
        raise DataError(f"{spec}: split {split!r} has no rows.")
    table.info.features = type(table.features)(_undecoded(dict(table.features)))
    return Rows(table, spec, folder)


def _again(spec: str, columns: Sequence[str]) -> Rows:
    return load_rows(spec).only(columns)


def parse_spec(spec: str) -> tuple[str, str]:
    """'path@split' -> (path, split). An '@' that does not begin a split name belongs to the path.

    >>> parse_spec("hiyouga/geometry3k@test")
    ('hiyouga/geometry3k', 'test')
    >>> parse_spec("/home/a@b/rows.jsonl")
    ('/home/a@b/rows.jsonl', 'train')
    """
    if not spec.strip():
        raise DataError("the data spec is empty; give a file, a folder or a hub name, with '@split' behind it.")
    name, at, split = spec.rpartition("@")
    if not at or Path(spec).expanduser().exists() or not name:
        return spec, "train"
    if SPLIT_NAME.fullmatch(split) and Path(split).suffix not in BUILDERS:
        return name, split
    if "/" not in split and Path(split).suffix not in BUILDERS:
        raise DataError(f"{spec}: {split!r} is no split name; write for example {name}@train.")
    return spec, "train"


def labels(specs: Sequence[str]) -> dict[str, str]:
    """A short name for each spec, for metrics: its last part, and as much more as tells it from the others.

    >>> labels(["hiyouga/math12k@test", "hiyouga/geometry3k@test"])
    {'hiyouga/math12k@test': 'math12k', 'hiyouga/geometry3k@test': 'geometry3k'}
    >>> labels(["set@test", "set@dev"]), labels(["new/test.jsonl", "old/test.jsonl"])
    ({'set@test': 'set-test', 'set@dev': 'set-dev'}, {'new/test.jsonl': 'new-test', 'old/test.jsonl': 'old-test'})
    """
    parts = {spec: _label_parts(spec) for spec in specs}
    deepest = max(len(names) for names, _ in parts.values())
    for depth in range(1, deepest + 1):
        for with_split in (False, True):
            found = {
                spec: "-".join([*names[-depth:], *([split] if with_split else [])])
                for spec, (names, split) in parts.items()
            }
            if len(set(found.values())) == len(found):
                return found
    return {spec: f"{number}-{parts[spec][0][-1]}" for number, spec in enumerate(parts, start=1)}


def _label_parts(spec: str) -> tuple[list[str], str]:
    """The parts of a spec's path, without file type, and its split, all fit for the name of a metric."""
    name, split = parse_spec(spec)
    path = Path(name)
    path = path.with_suffix("") if path.suffix in BUILDERS else path
    words = [re.sub(r"[^\w.]+", "_", part).strip("_.") for part in (*path.parts, split)]
    return [word for word in words[:-1] if word] or ["data"], words[-1]


def _looks_local(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).suffix in BUILDERS


def _load_folder(folder: Path, spec: str, split: str) -> tuple["datasets.Dataset", Path]:
    """Rows of a folder, and the folder that its relative paths start from."""
    if any((folder / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return _load_saved(folder, spec, split), folder
    splits = _files_by_split(folder, spec)
    table = _load_files(splits, spec, split)
    parents = {file.parent for file in splits[split.partition("[")[0]]}
    return table, parents.pop() if len(parents) == 1 else folder


def _load_saved(folder: Path, spec: str, split: str) -> "datasets.Dataset":
    """What Dataset.save_to_disk or DatasetDict.save_to_disk wrote."""
    import datasets

    with _told(spec):
        saved = datasets.load_from_disk(str(folder))
    if isinstance(saved, datasets.Dataset):
        saved = {"train": saved}
    if split not in saved:
        raise DataError(_no_split(spec, split, [str(name) for name in saved]))
    return saved[split]


def _files_by_split(folder: Path, spec: str) -> dict[str, list[Path]]:
    """The data files under a folder, sorted, by split; all are 'train' where no name says a split."""
    hidden = re.compile(r"[._]")
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    found = [path for path in found if not any(hidden.match(part) for part in path.relative_to(folder).parts)]
    files = [path for path in found if path.suffix in BUILDERS and path.name not in SIDE_FILES]
    if not files:
        listed = ", ".join(str(path.relative_to(folder)) for path in found[:5]) or "nothing"
        raise DataError(f"{spec}: no data file ({', '.join(BUILDERS)}) in this folder; found {listed}.")
    by_split: dict[str, list[Path]] = {}
    nameless: list[Path] = []
    for path in files:
        split = _split_of(path.relative_to(folder))
        (by_split.setdefault(split, []) if split else nameless).append(path)
    if not by_split:
        return {"train": nameless}
    if nameless:
        names = ", ".join(str(path.relative_to(folder)) for path in nameless[:5])
        logger.warning("%s: left out, as their names say no split: %s", spec, names)
    return by_split


def _split_of(path: Path) -> str | None:
    """The split that a file's name or folder says, e.g. data/train-00000-of-00002.parquet -> train."""
    shard = SHARD_NAME.fullmatch(path.name)
    if shard and path.parent.name == "data":
        return shard["split"]
    for part in (*path.parent.parts, path.name):
        words = re.split(r"[-._ 0-9]+", part)
        for split, keywords in SPLIT_WORDS.items():
            if any(word in keywords for word in words):
                return split
    return None


def _load_files(splits: dict[str, list[Path]], spec: str, split: str) -> "datasets.Dataset":
    """Rows of one split, out of data files of one type."""
    import datasets

    files = splits.get(split.partition("[")[0])
    if files is None:
        raise DataError(_no_split(spec, split, list(splits)))
    types = sorted({file.suffix for file in files})
    if not BUILDERS.keys() >= set(types):
        raise DataError(f"{spec}: file type {types[0]!r} is not known; known are {', '.join(BUILDERS)}.")
    builders = {BUILDERS[suffix] for suffix in types}
    if len(builders) > 1:
        counts = ", ".join(f"{sum(file.suffix == suffix for file in files)} {suffix}" for suffix in types)
        raise DataError(f"{spec}: files of different types in one split ({counts}); leave one type in the folder.")
    if not any(file.stat().st_size for file in files):
        raise DataError(f"{spec}: {files[0]} is empty.")
    data_files = {split.partition("[")[0]: [escape(str(file)) for file in files]}
    with _told(spec), _quiet():
        return datasets.load_dataset(builders.pop(), data_files=data_files, split=split)


def _load_hub(name: str, spec: str, split: str) -> "datasets.Dataset":
    with _told(spec):
        try:
            return load_dataset(name, split)
        except OSError as error:  # not found, no permission, no network
            raise DataError(
                f"{spec}: no such file or folder here, and {hub_name()} did not give it ({error}). Check the "
                "name; behind a firewall set HF_ENDPOINT to a mirror, or USE_MODELSCOPE_HUB=1; without a network give "
                "a local path, or set HF_HUB_OFFLINE=1 if it was downloaded before."
            ) from error


def _no_split(spec: str, split: str, existing: list[str]) -> str:
    name = parse_spec(spec)[0]
    return f"{spec}: no split {split!r}; there is {', '.join(existing)}. Write for example {name}@{existing[0]}."


@contextmanager
def _told(spec: str) -> Iterator[None]:
    """Turn what the reading of broken or unfit data raises into a DataError that names the spec."""
    from datasets.exceptions import DatasetsError

    try:
        yield
    except (ConfigError, DataError):
        raise
    except (ValueError, OSError, DatasetsError) as error:
        raise DataError(f"{spec}: cannot be read: {error.__cause__ or error}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars of the datasets library while local files are read."""
    from datasets import utils

    if utils.are_progress_bars_disabled():
        yield
        return
    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.enable_progress_bars()


def _undecoded(feature: Any) -> Any:
    """The same feature with the decoding of pictures, sounds and videos off, at any depth."""
    if isinstance(feature, dict):
        return {name: _undecoded(inner) for name, inner in feature.items()}
    if isinstance(feature, list):
        return [_undecoded(inner) for inner in feature]
    if hasattr(feature, "feature"):
        return dataclasses.replace(feature, feature=_undecoded(feature.feature))
    # Columns of mixed types are kept as JSON text, which must be decoded to be a value at all.
    if hasattr(feature, "decode") and type(feature).__name__ != "Json":
        return dataclasses.replace(feature, decode=False)
    return feature
