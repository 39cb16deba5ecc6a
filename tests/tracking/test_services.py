"""Trackers that lack a package or a login are found out before anything heavy is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

from easyr1.errors import ConfigError
from easyr1.tracking import services
from easyr1.tracking.loggers import LOGGERS
from easyr1.tracking.services import SERVICES, is_installed, start, unready

ROOT = Path(__file__).parents[2]


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A home and a working directory without any login; every tracker is installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(services, "is_installed", lambda name: True)
    return {"HOME": str(tmp_path)}


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_a_login_those_that_need_one_say_how_to_get_it(nowhere):
    found = unready(nowhere)
    assert set(found) == {"wandb", "swanlab"}
    for name, cures in {
        "wandb": ("`wandb login`", "WANDB_API_KEY", "WANDB_MODE=offline"),
        "swanlab": ("`swanlab login`", "SWANLAB_API_KEY", "SWANLAB_MODE=offline"),
    }.items():
        assert all(cure in found[name] for cure in (*cures, "trainer.logger=['console','file']"))
    assert "HF_TOKEN" in unready({**nowhere, "TRACKIO_SPACE_ID": "me/runs"})["trackio"]


@pytest.mark.parametrize(
    ("name", "variable", "value"),
    [
        ("wandb", "WANDB_API_KEY", "k"),
        ("wandb", "WANDB_IDENTITY_TOKEN_FILE", "f"),
        ("wandb", "WANDB_MODE", "offline"),
        ("wandb", "WANDB_MODE", "disabled"),
        ("swanlab", "SWANLAB_API_KEY", "k"),
        ("swanlab", "SWANLAB_MODE", "local"),
        ("swanlab", "SWANLAB_MODE", "offline"),
    ],
)
def test_a_variable_is_enough(nowhere, name, variable, value):
    assert name not in unready({**nowhere, variable: value})
    assert name in unready({**nowhere, variable: "" if value == "k" else "online" if "MODE" in variable else ""})


@pytest.mark.parametrize(
    ("name", "file", "text", "others"),
    [
        ("wandb", ".netrc", "machine api.wandb.ai login user password k", "machine github.com login a password b"),
        ("wandb", "wandb/settings", "[default]\nmode = offline", "[default]\nproject = p"),
        ("wandb", ".config/wandb/settings", "[default]\napi_key = k", ""),
        ("swanlab", ".swanlab/.netrc", "machine https://api.swanlab.cn", " "),
        ("swanlab", ".env", "SWANLAB_API_KEY=k", "OTHER=1"),
    ],
)
def test_a_file_is_enough(nowhere, tmp_path, name, file, text, others):
    write(tmp_path / file, others)
    assert name in unready(nowhere)
    write(tmp_path / file, text)
    assert name not in unready(nowhere)


def test_the_login_of_another_server_does_not_count(nowhere, tmp_path):
    write(tmp_path / ".netrc", "machine api.wandb.ai login user password k")
    assert "wandb" in unready({**nowhere, "WANDB_BASE_URL": "https://own.example/x"})
    write(tmp_path / ".netrc", "machine own.example login user password k")
    assert "wandb" not in unready({**nowhere, "WANDB_BASE_URL": "https://own.example/x"})


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setattr(services, "is_installed", lambda name: False)
    assert set(unready({})) == set(SERVICES) == set(LOGGERS) - {"console", "file"}
    assert all(f'pip install "easyr1[{name}]"' in text for name, text in unready({}).items())


def test_a_folder_with_the_name_of_a_package_is_none(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "of_old_runs").mkdir()
    assert not is_installed("of_old_runs")
    assert is_installed("rich")


def test_a_failing_start_names_the_cures_and_asks_nobody(capsys):
    def ask():
        sys.stdout.write("a banner")
        return input("key? ")

    with pytest.raises(ConfigError, match=r"SwanLab did not start \(.*EOF.*swanlab login"):
        start("swanlab", ask)
    told = capsys.readouterr()
    assert told.out == "" and "a banner" in told.err


def test_no_tracker_is_loaded_to_find_out():
    code = (
        "import sys; from easyr1.trainer.known import code_facts; code_facts(); "
        f"sys.exit(any(name in sys.modules for name in {[*SERVICES, 'torch']}))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(("name", "cure"), [("swanlab", "SWANLAB_MODE=offline"), ("wandb", "WANDB_MODE=offline")])
def test_a_command_stops_before_torch_is_loaded(tmp_path, name, cure):
    for file in ("rows.jsonl", "reward.py"):
        (tmp_path / file).write_text("")
    arguments = [
        "train",
        *(f"data.{part}_files={tmp_path / 'rows.jsonl'}" for part in ("train", "val")),
        f"worker.reward.reward_function={tmp_path / 'reward.py'}:compute_score",
        "worker.actor.model.model_path=some/model",
        f"trainer.logger=['console','{name}']",
    ]
    code = (
        "import sys; from easyr1.cli.main import main; from easyr1.tracking import services\n"
        "services.is_installed = lambda name: True\n"
        f"status = main({arguments})\n"
        "sys.exit(9 if 'torch' in sys.modules else status)\n"
    )
    environ = {"HOME": str(tmp_path), "PATH": "", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    started = {"cwd": tmp_path, "env": environ, "capture_output": True, "text": True, "timeout": 60, "check": False}
    stopped = subprocess.run([sys.executable, "-c", code], **started)
    assert stopped.returncode == 2, stopped.stderr
    assert cure in stopped.stderr and len(stopped.stderr.splitlines()) == 1
