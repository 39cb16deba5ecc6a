"""One run folder for all ranks: what is said where a rank does not see it."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from easyr1.cluster.parcel import Outcome, failed, pack, unpack
from easyr1.cluster.ray_group import check_folder
from easyr1.cluster.worker import Beat, Identity, Worker
from easyr1.errors import CheckpointError, ConfigError


def rank(number):
    """The methods of a rank, without its process."""
    worker = Worker.__new__(Worker)
    worker.seat = SimpleNamespace(rank=number)
    return worker


@dataclass
class TwoRanks:
    """Rank 1 looks for its folders below `other`."""

    other: Path | None = None
    watch: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(
            ranks=[SimpleNamespace(identity=Identity(k, f"node{k}", "", 1, f"10.0.0.{k}")) for k in range(2)]
        )
    )

    def call_all(self, method, file, *arguments):
        name = method.removeprefix("rank.")
        second = file if self.other is None else str(self.other / Path(file).name)
        arguments = [*arguments[:1], *([0.2] if name == "read_token" else [])]
        return [getattr(rank(0), name)(file, *arguments), getattr(rank(1), name)(second, *arguments)]


def test_a_shared_folder_is_found_shared_and_left_clean(tmp_path):
    check_folder(TwoRanks(), tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


def test_a_folder_that_is_not_shared_is_told_with_the_node(tmp_path):
    with pytest.raises(
        ConfigError, match=r"rank 1 on node node1 \(10\.0\.0\.1\) does not see what rank 0 wrote"
    ) as told:
        check_folder(TwoRanks(other=tmp_path), tmp_path / "run")
    assert told.value.key == "trainer.save_checkpoint_path"
    assert "one shared folder" in str(told.value)


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(ConfigError, match="rank 0 cannot write to"):
        check_folder(TwoRanks(), tmp_path / "run")


def test_a_token_that_shows_late_is_waited_for(tmp_path):
    file = str(tmp_path / "token")
    threading.Timer(0.3, rank(0).write_token, (file, "abc")).start()
    assert rank(1).read_token(file, "abc", 5.0) == ""
    assert rank(1).read_token(file, "xyz", 5.0) == f"{file} holds something else"


def test_outcomes_travel():
    assert unpack(pack(Outcome({"a": 1}, Beat(3)))) == Outcome({"a": 1}, Beat(3))
    outcome = unpack(pack(failed(CheckpointError("torn"), Beat())))
    assert type(outcome.for_user) is CheckpointError and str(outcome.for_user) == "torn"
    assert outcome.trace.endswith("CheckpointError: torn\n")
    assert failed(KeyError("x"), Beat()).for_user is None
