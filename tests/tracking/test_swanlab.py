"""SwanLab: what its folder holds after an offline run, read back by its own reader, and what it is asked."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from tracked import CONFIG, log_a_run, track

from easyr1.errors import ConfigError
from easyr1.tracking.loggers import Run
from easyr1.tracking.swanlab_logger import init_arguments

ROOT = Path(__file__).parents[2]
STORED = {"swanlab": {"id": "abc123"}}


@pytest.fixture
def swanlab(tmp_path, monkeypatch):
    """The real package, without a login."""
    module = pytest.importorskip("swanlab")
    for name in [name for name in os.environ if name.startswith("SWANLAB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SWANLAB_SAVE_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    return module


def records(folder):
    """What the one run in the folder wrote."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    (file,) = folder.glob("run-*/run-*.swanlab")
    reader = DataStoreReader()
    reader.open(file)
    found = [Record.FromString(data) for data in reader]
    reader.close()
    return found


def test_an_offline_run_is_read_back(swanlab, tmp_path, capfd, caplog):
    identity = log_a_run("swanlab", tmp_path / "run", identity=STORED, resume_step=0)
    assert identity == STORED
    assert not [record for record in caplog.records if record.name.startswith("easyr1")]
    assert capfd.readouterr().out == ""
    folder = tmp_path / "run" / "swanlog"
    found = records(folder)
    (start,) = (record.start for record in found if record.HasField("start"))
    assert (start.project, start.name, start.id) == ("digits", "first", "abc123")
    scalars = [record.scalar for record in found if record.HasField("scalar")]
    rows = [(row.key, row.step, row.value.number) for row in scalars if not math.isnan(row.value.number)]
    assert rows == [
        ("reward/overall", 1, 0.25),
        ("timing_s/save_checkpoint", 1, 2.0),
        ("reward/overall", 2, 0.5),
        ("timing_s/save_checkpoint", 2, 2.0),
    ]
    media = {record.media.key: record.media.value.items for record in found if record.HasField("media")}
    (text,) = media["val/generations"]
    (run,) = folder.glob("run-*")
    assert "| 7 | 3 | 0.5 | 4 |" in (run / "media" / "text" / text.filename).read_text()
    assert [item.caption for item in media["val/pictures"]] == ["row 4: 7 (right: 3)"] * 2
    files = [run / "media" / "image" / item.filename for item in media["val/pictures"]]
    assert [Image.open(file).convert("RGB").getpixel((0, 0)) for file in files] == [(255, 0, 0), (0, 0, 255)]
    assert "seed" in (run / "files" / "config.yaml").read_text()
    assert records(folder)[-1].HasField("finish")


def test_a_run_that_failed_is_shown_as_failed(swanlab, tmp_path):
    for name, failed in (("good", False), ("bad", True)):
        track("swanlab", tmp_path / name).finish(failed=failed)
    good, bad = (records(tmp_path / name / "swanlog")[-1].finish for name in ("good", "bad"))
    assert (good.error, bad.error) == ("", "the run ended by an error") and good.state != bad.state


def test_online_without_a_key_stops_at_once_even_at_a_terminal(swanlab, tmp_path, monkeypatch):
    monkeypatch.setenv("SWANLAB_MODE", "cloud")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    code = f"from easyr1.tracking.loggers import Tracker; Tracker(['swanlab'], {str(tmp_path)!r}, None, {{}})"
    ours, theirs = os.openpty()
    ended = subprocess.run([sys.executable, "-c", code], stdin=theirs, stderr=theirs, timeout=60, check=False)
    os.close(theirs)
    told = os.read(ours, 65536).decode()
    os.close(ours)
    assert ended.returncode == 1
    assert "SwanLab did not start" in told and "SWANLAB_MODE=offline" in told


def asked(folder, environ, stored=None):
    found = init_arguments(Run(folder, config=CONFIG, identity=stored or {}), environ)
    assert found.pop("config") == {**CONFIG["config"], "set_by_user": ["data.seed"]}
    return found


@pytest.mark.parametrize(
    ("environ", "stored", "expected"),
    [
        ({}, None, {}),
        ({}, STORED, {"id": "abc123", "resume": "allow"}),
        ({"SWANLAB_RUN_ID": "mine"}, STORED, {"resume": "allow"}),
        ({"SWANLAB_RUN_ID": "mine", "SWANLAB_RESUME": "must"}, STORED, {}),
        ({"SWANLAB_RESUME": "must"}, STORED, {"id": "abc123"}),
    ],
)
def test_the_stored_run_goes_on_unless_a_variable_says_otherwise(tmp_path, environ, stored, expected):
    found = asked(tmp_path, environ, stored)
    assert {name: found[name] for name in ("id", "resume") if name in found} == expected


def test_names_come_from_the_configuration_and_variables_win(tmp_path):
    plain = {"project": "digits", "name": "first", "log_dir": str(tmp_path / "swanlog")}
    assert asked(tmp_path, {}) == plain
    assert asked(tmp_path, {"SWANLAB_DIR": "logs"}) == plain | {"log_dir": "logs"}
    assert asked(tmp_path, {"SWANLAB_LOG_DIR": "x", "SWANLAB_PROJ_NAME": "y", "SWANLAB_EXP_NAME": "z"}) == {}


def test_a_missing_package_names_the_cures(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "swanlab", None)
    with pytest.raises(ConfigError, match=r'pip install "easyr1\[swanlab\]"'):
        track("swanlab", tmp_path)
