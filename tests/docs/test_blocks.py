"""Blocks of code on the pages work: they are run, dry-run or loaded, or say why they are not."""

import ast
import json
import logging
import os
import re
import sys
from pathlib import Path

import jinja2
import pytest
import yaml
from pages import ROOT, Block, blocks, pages
from rich.console import Console
from shell import syntax, try_commands

from easyr1.cli.main import main
from easyr1.config.load import load
from easyr1.tracking.loggers import LOGGERS, Tracker

SECTIONS = {"data", "worker", "algorithm", "trainer"}
CHECKOUT = ("examples", "scripts", "verl", "Makefile", "pyproject.toml")
SET_BY_COMMANDS = ("TQDM_DISABLE", "RAY_DEDUP_LOGS_SKIP_REGEX")
SHOWN_ONLY = {"", "text", "dockerfile", "bibtex", "make", "diff"}
PROGRAMS = re.compile(r"(easyr1|python3?|pip|make|bash|ray|docker|apptainer|export) ")


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A folder that looks like a checkout, to be filled by the blocks of a page; the process is left as it was."""
    monkeypatch.setattr(logging.getLogger(), "handlers", logging.getLogger().handlers[:])
    for name in SET_BY_COMMANDS:
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    for name in CHECKOUT:
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def look_at(block: Block) -> None:
    """Whether it could be run at all."""
    if block.language == "bash":
        syntax(block.text)
    elif block.language == "python":
        ast.parse(block.text)
    elif block.language == "yaml":
        yaml.safe_load(block.text)
    elif block.language in ("json", "jsonl"):
        for text in block.text.splitlines() if block.language == "jsonl" else [block.text]:
            json.loads(text)
    elif block.language == "jinja":
        jinja2.Environment().parse(block.text)
    else:
        assert block.language in SHOWN_ONLY, f"how is {block.language} tried?"


def run(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if block.language == "bash":
        try_commands(block.text, monkeypatch)
    elif block.language == "python":
        exec(compile(block.text, str(block), "exec"), {"__name__": "block"})
    elif block.language == "yaml" and set(yaml.safe_load(block.text)) <= SECTIONS:
        file = folder / "block.yaml"
        file.write_text(block.text)
        load([f"config={file}"])


def save(block: Block, folder: Path) -> None:
    file = folder / block.words
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(block.text)


def attempt(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do with a block what its mark says; an error names its place."""
    try:
        look_at(block)
        if block.mark == "file":
            save(block, folder)
        elif not block.mark:
            run(block, folder, monkeypatch)
    except Exception as error:
        raise AssertionError(f"{block}: {error}") from error


@pytest.mark.parametrize("page", [page for page in pages() if blocks(page)])
def test_blocks_work(page, checkout, monkeypatch):
    before = set(sys.modules)
    for block in blocks(page):
        attempt(block, checkout, monkeypatch)
    for name in set(sys.modules) - before:  # modules that a page saved as files
        if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(checkout)):
            del sys.modules[name]


@pytest.mark.parametrize("page", pages())
def test_what_is_not_run_says_why(page):
    for block in blocks(page):
        if block.mark == "not run":
            assert len(block.words) >= 10, f"{block}: not run, for what reason?"
        if not block.language and not block.mark:
            found = [line for line in block.text.splitlines() if PROGRAMS.match(line)]
            assert not found, f"{block}: commands belong into a block of the language bash"


def test_a_block_that_does_not_work_is_seen(checkout, monkeypatch):
    wrong = (
        ("bash", "easyr1 train data.no_such_key=1"),
        ("bash", "make no-such-target"),
        ("bash", "pip install 'easyr1[nothing]'"),
        ("bash", "rm -rf everything"),
        ("python", "import no_such_module"),
        ("yaml", "data: {no_such_key: 1}"),
    )
    for language, text in wrong:
        with pytest.raises(AssertionError, match="page:7: "):
            attempt(Block("page", 7, language, text), checkout, monkeypatch)
    assert (checkout / "Makefile").exists()


def test_the_tracker_of_the_page_meets_all_that_a_run_asks_of_one(checkout, monkeypatch):
    block = next(block for block in blocks("docs/extend.md") if "class CountingLogger" in block.text)
    names: dict = {"__name__": "block"}
    exec(compile(block.text, str(block), "exec"), names)
    monkeypatch.setitem(LOGGERS, "counting", names["CountingLogger"])
    tracker = Tracker(["counting"], checkout, Console(), {})
    assert "counting (counts.json)" in tracker.whereabouts()
    tracker.log({"reward/overall": 0.5}, 3)
    tracker.log_samples([], 3)
    tracker.event("warning", message="nothing")
    assert tracker.identity() == {}
    tracker.finish()
    assert json.loads((checkout / "counts.json").read_text()) == {"3": 1}


@pytest.mark.slow
def test_the_files_of_the_first_page_train(checkout):
    """Rows, prompt, reward and settings of docs/start.md, with a tiny model in place of a real one."""
    import tiny

    for block in blocks("docs/start.md"):
        if block.mark == "file":
            save(block, checkout)
    model = f"worker.actor.model.model_path={tiny.save('qwen2', checkout / 'model')}"
    assert main(["check", "config=my_run.yaml", model]) == 0
    short = ["data.max_response_length=8", "trainer.max_steps=2", f"trainer.save_checkpoint_path={checkout / 'run'}"]
    assert main(["train", "config=my_run.yaml", model, *short]) == 0
    assert (checkout / "run" / "global_step_2").is_dir() and (checkout / "run" / "report.html").is_file()
