"""SwanLab: what its folder holds after an offline run, and what it is asked."""

import os

import pytest
from tracked import log_a_run

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


def test_offline_run(swanlab, tmp_path, capsys, caplog):
    identity = log_a_run("swanlab", tmp_path / "run")
    for path in sorted((tmp_path / "run").rglob("*")):
        print(path)
    assert 0, (identity, caplog.messages, capsys.readouterr().out)
