"""What is shipped beside the code says the same as pyproject.toml, and the wheel holds all that a command needs."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from pages import ROOT
from python_files import project_files
from shell import EXTRA, extras

PYPROJECT = (ROOT / "pyproject.toml").read_text()
PAGES_WITH_VERSIONS = ("README.md", "README.zh.md", "docs/start.md")
RUN_BY_US = ("3.11", "2.13.0", "5.19.0", "0.32.0")  # Python, torch, transformers, vLLM


def dependencies() -> list[str]:
    """As written in pyproject.toml."""
    text = PYPROJECT.partition("\ndependencies = [")[2].partition("\n]")[0]
    return re.findall(r'"([^"]+)"', text)


def ranges() -> dict[str, str]:
    """Package -> versions that are allowed."""
    vllm = re.search(r'vllm = \["vllm([^"]+)"\]', PYPROJECT)
    python = re.search(r'requires-python = "([^"]+)"', PYPROJECT)
    assert vllm and python
    named = dict(re.fullmatch(r"([\w-]+)(.*)", one).groups() for one in dependencies())
    return {"Python": python[1], "torch": named["torch"], "transformers": named["transformers"], "vLLM": vllm[1]}


def test_requirements_are_the_dependencies():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == dependencies()


@pytest.mark.parametrize("page", PAGES_WITH_VERSIONS)
def test_pages_name_the_versions_that_are_supported(page):
    rows = [line for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    for (package, allowed), run in zip(ranges().items(), RUN_BY_US, strict=True):
        row = next(row for row in rows if row.startswith(f"| {package}"))
        assert f"| `{allowed}` |" in row and run in row, row


@pytest.mark.parametrize("file", ["Dockerfile", "apptainer.def"])
def test_recipes_of_containers_name_what_exists(file):
    text = (ROOT / file).read_text()
    assert "Not built by us" in text
    asked = {name for match in EXTRA.finditer(text.replace("/opt/src", ".")) for name in match["names"].split(",")}
    assert "vllm" in asked and asked <= extras()
    copied = re.findall(r"^(?:COPY |    )(\S+) /opt/src", text, re.MULTILINE)
    assert copied and all((ROOT / name).exists() for name in copied)
    if file == "apptainer.def":  # what a build reads, and no more
        assert {"pyproject.toml", "README.md", "LICENSE", "easyr1"} == set(copied)


def shipped_files() -> set[str]:
    """What belongs to the package."""
    return {name for name in project_files() if name.startswith("easyr1/")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from what git knows, as in a clean clone."""
    if not shipped_files():
        pytest.skip("no git checkout")
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in {*shipped_files(), "pyproject.toml", "README.md", "LICENSE"}:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(target), str(source)], check=True)
    return next(target.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The folder of programs of an environment that has the wheel; its dependencies are those of this one."""
    folder = tmp_path_factory.mktemp("env")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True)
    library = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (library / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


def run(program: Path, *arguments: str, folder: Path, status: int = 0) -> str:
    environment = {**os.environ, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [str(program), *arguments], cwd=folder, env=environment, text=True, capture_output=True, check=False
    )
    assert result.returncode == status, result.stderr
    return result.stdout + result.stderr


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == shipped_files()
    text = zipfile.ZipFile(wheel).read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert "License-Expression: Apache-2.0" in text and "Provides-Extra: vllm" in text
    plain = [line for line in re.findall(r"Requires-Dist: (.*)", text) if "extra ==" not in line]
    asked = [dict(re.fullmatch(r"([\w-]+)(.*)", line).groups() for line in lines) for lines in (plain, dependencies())]
    parts = [{name: sorted(versions.split(",")) for name, versions in one.items()} for one in asked]
    assert parts[0] == parts[1]


@pytest.mark.slow
def test_the_installed_wheel_works_far_from_a_checkout(installed, tmp_path):
    where = run(installed / "python", "-c", "import easyr1; print(easyr1.__file__)", folder=tmp_path)
    assert where.startswith(str(installed.parent))
    assert "quickstart" in run(installed / "easyr1", "--help", folder=tmp_path)
    settings = ["config=examples/config.yaml", "data.format_prompt=./examples/format_prompt/r1v.jinja"]
    settings += ["worker.reward.reward_function=./examples/reward_function/r1v.py:compute_score"]
    assert "dry run" in run(installed / "easyr1", "train", *settings, "--dry-run", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    run(installed / "easyr1", "init", "mine", folder=tmp_path)
    assert (tmp_path / "mine" / "reward.py").is_file()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward/overall": 0.5}\n')
    (tmp_path / "config.json").write_text("{}")
    run(installed / "easyr1", "report", str(tmp_path), folder=tmp_path)
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")[:2000]
