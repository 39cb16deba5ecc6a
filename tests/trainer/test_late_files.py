"""Files that ranks of other machines write and this one sees late: no checkpoint counts as whole without them."""

import json
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from easyr1 import manifest
from easyr1.config.schema import Config
from easyr1.errors import CheckpointError
from easyr1.manifest import Listing
from easyr1.trainer.assemble import _copy_model_files
from easyr1.trainer.checkpoint import Checkpoints
from easyr1.trainer.rank import ModelFiles

THEIRS = "actor/model/shard-2.safetensors"
LATE_S = 0.5


class Elsewhere:
    """A group of two ranks, of which the second one wrote THEIRS on a machine of its own."""

    def __init__(self, size: int = 1000) -> None:
        self.size = size

    def call_all(self, method: str, *arguments: Path) -> list:
        if method == "files.write":
            return [None, None]
        assert method == "files.seen"
        own = ModelFiles({}).seen(*arguments)
        return [own, Listing("far", {**own.sizes, THEIRS: self.size})]


class Engine:
    """Writes the shard of this machine at once; that of the other one shows up late and, at first, in part."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes

    def save(self, folder: Path, model_only: bool = False) -> None:
        (folder / "model").mkdir(parents=True)
        (folder / "model/shard-1.safetensors").write_bytes(bytes(500))
        threading.Thread(target=self._show, args=[folder.parent / THEIRS]).start()

    def _show(self, path: Path) -> None:
        for size in self.sizes:
            time.sleep(LATE_S)
            path.write_bytes(bytes(size))


def save(run: Path, sizes: tuple[int, ...]) -> Path:
    inputs = SimpleNamespace(config=Config(), chat=SimpleNamespace(copy_files=lambda folder: None))
    copy = partial(_copy_model_files, inputs, Elsewhere())  # type: ignore[arg-type]
    return Checkpoints(run).save(1, {"actor": Engine(sizes)}, {"config": {}}, None, copy)


def test_a_manifest_lists_what_shows_up_late_and_grows(tmp_path):
    folder = save(tmp_path, (400, 1000))
    files = json.loads((folder / "manifest.json").read_text())["files"]
    assert files[THEIRS]["size"] == 1000 and files["actor/model/shard-1.safetensors"]["size"] == 500


@pytest.mark.parametrize(
    ("sizes", "told"), [((), "this machine does not see it after 1 s"), ((400,), "this machine sees 400 after 1 s")]
)
def test_what_never_shows_up_whole_is_named_with_its_node(tmp_path, monkeypatch, sizes, told):
    wait = partial(manifest.wait_for_files, timeout_s=1.0)
    monkeypatch.setattr("easyr1.trainer.assemble.wait_for_files", wait)
    with pytest.raises(CheckpointError, match=rf"{THEIRS} has 1000 bytes on node far, and {told}"):
        save(tmp_path, sizes)
    assert not list(tmp_path.glob("global_step_*"))


def test_what_a_rank_that_sees_a_part_says_counts_less_than_what_its_writer_does(tmp_path):
    (tmp_path / "shard").write_bytes(bytes(10))
    listings = [Listing("writer", {"shard": 10}), Listing("other", {"shard": 3})]
    manifest.wait_for_files(tmp_path, listings, 0.0)
    manifest.wait_for_files(tmp_path, listings[::-1], 0.0)
