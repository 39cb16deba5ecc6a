"""Trackio: what its database holds after a run, read back by its own reader, and what it is asked with a stand-in."""

import math
import sys
from pathlib import Path

import pytest
from PIL import Image
from tracked import CONFIG, log_a_run, track

from easyr1.errors import ConfigError
from easyr1.tracking.loggers import Run
from easyr1.tracking.trackio_logger import init_arguments


@pytest.fixture(scope="module")
def trackio(tmp_path_factory):
    """The real package, which reads its folder when it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio")))
        for name in ("TRACKIO_SPACE_ID", "TRACKIO_PROJECT", "TRACKIO_SERVER_URL"):
            patch.delenv(name, raising=False)
        yield pytest.importorskip("trackio")


def test_a_run_and_its_resumption_are_read_back(trackio, tmp_path, capsys, caplog):
    from trackio.sqlite_storage import SQLiteStorage
    from trackio.utils import MEDIA_DIR

    identity = log_a_run("trackio", tmp_path)
    assert log_a_run("trackio", tmp_path, steps=(3,), identity=identity, resume_step=2) == identity
    assert not [record for record in caplog.records if record.name.startswith("easyr1")]
    assert capsys.readouterr().out == ""
    assert SQLiteStorage.get_runs("digits") == ["first"]
    rows = SQLiteStorage.get_logs("digits", "first")
    rewards = [(row["step"], row["reward/overall"]) for row in rows if "reward/overall" in row]
    assert rewards == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert math.isnan(next(row["actor/grad_norm"] for row in rows if "actor/grad_norm" in row))
    assert [row["timing_s/save_checkpoint"] for row in rows if "timing_s/save_checkpoint" in row] == [2.0] * 3
    first, second = next(row["val/generations"]["_value"] for row in rows if "val/generations" in row)
    assert (first["prompt"], first["response"], first["scores/overall"]) == ("Which | digit?", "7", 0.5)
    assert first["image_1"] == ""
    file = Path(MEDIA_DIR) / second["image_2"]["file_path"]
    assert Image.open(file).convert("RGB").getpixel((0, 0)) == (0, 0, 255)
    assert SQLiteStorage.get_run_config("digits", "first")["data"] == {"seed": 7}


@pytest.mark.parametrize(
    ("stored", "environ", "expected"),
    [
        ({}, {}, ("digits", "first", "never")),
        ({"trackio": {"project": "p", "name": "n", "id": "1"}}, {}, ("p", "n", "allow")),
        ({"trackio": {"project": "p", "name": "n", "id": "1"}}, {"TRACKIO_PROJECT": "mine"}, ("mine", "n", "allow")),
    ],
)
def test_the_stored_run_goes_on(tmp_path, stored, environ, expected):
    asked = init_arguments(Run(tmp_path, config=CONFIG, identity=stored), environ)
    assert (asked["project"], asked["name"], asked["resume"]) == expected
    assert asked["config"] == {**CONFIG["config"], "set_by_user": ["data.seed"]}


def test_a_missing_package_names_the_cures(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ConfigError, match=r'pip install "easyr1\[trackio\]"'):
        track("trackio", tmp_path)
