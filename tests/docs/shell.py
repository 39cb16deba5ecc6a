"""Commands of a documented block, tried without a GPU, without a network and without training.

A command that trains is made a dry run. The other commands of easyr1 are called as they stand and must end with 0.
Of make, pip and bash it is checked that the target, the extra and the script exist. Others have to be marked.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import ROOT

from easyr1.cli.main import main

HAVE_DRY_RUN = ("train", "eval")
SPELLINGS = {  # of commands of easyr1
    ".venv/bin/easyr1": ["easyr1"],
    "python3 -m verl.trainer.main": ["easyr1", "train"],
    "python -m verl.trainer.main": ["easyr1", "train"],
    "python3 -m easyr1.cli.main": ["easyr1"],
    "python -m easyr1.cli.main": ["easyr1"],
}
EXTRA = re.compile(r"(?:easyr1|\.|easyr1-[\w.]+\.whl)\[(?P<names>[\w,]+)\]")
NOTHING_TO_TRY = {"git", "cd", "source", "."}


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command; variables are replaced, comments left out."""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = shlex.split(os.path.expandvars(line), comments=True)
        if words:
            yield words


def try_commands(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises AssertionError with the command that does not work."""
    syntax(text)
    for words in commands(text):
        if words[0] == "export":
            words = words[1:]
        while words and re.match(r"[A-Z_][A-Z0-9_]*=", words[0]):
            name, _, value = words.pop(0).partition("=")
            monkeypatch.setenv(name, value)
        if words:
            try_command(words)


def try_command(words: list[str]) -> None:
    for spelling, plain in SPELLINGS.items():
        if " ".join(words).startswith(spelling + " "):
            words = plain + words[len(spelling.split()) :]
    if words[0] == "easyr1":
        dry = [] if words[1] not in HAVE_DRY_RUN or "--dry-run" in words else ["--dry-run"]
        assert main([*words[1:], *dry]) == 0, shlex.join(words)
    elif words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets, f"no make target {words[1]}"
    elif words[0] == "bash":
        assert Path(words[1]).is_file(), f"no script {words[1]}"
        syntax(Path(words[1]).read_text())
    elif "pip" in words[:3]:
        asked = {name for match in EXTRA.finditer(" ".join(words)) for name in match["names"].split(",")}
        assert asked <= extras(), f"no extras {asked}"
    else:
        assert words[0] in NOTHING_TO_TRY, f"cannot be tried here, mark its block as not run: {shlex.join(words)}"


def extras() -> set[str]:
    """Names under [project.optional-dependencies]; Python 3.10 reads no TOML."""
    text = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    return set(re.findall(r"^([\w-]+) = \[", text.partition("\n[")[0], re.MULTILINE))


def syntax(text: str) -> None:
    result = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
