"""Every command explains itself at once, and docs/commands.md says the same."""

import re
import subprocess
import sys

import pytest
from commands import ROOT

from easyr1.cli.main import COMMANDS, COMPUTING, EXIT_STATUSES, main, run

DOCUMENT = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")


def help_of(name, capsys):
    try:
        assert main([name, "--help"]) == 0
    except SystemExit as end:  # of argparse
        assert end.code == 0
    return capsys.readouterr().out


def section_of(name):
    """The part of the document under the command's own heading."""
    return DOCUMENT.partition(f"\n## `easyr1 {name}`\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_teaches_by_example_and_stands_in_the_document(name, capsys):
    shown, section = help_of(name, capsys), section_of(name)
    assert shown.startswith(f"usage: easyr1 {name}") and shown.count(f"  easyr1 {name}") >= 1
    assert set(OPTION.findall(shown)) - {"--help"} == set(OPTION.findall(section)) - {"--help"}
    if name != "merge":  # argparse writes that one, differently in each version of Python
        assert shown.partition("\n\n")[0].removeprefix("usage: ") in section
    if name not in ("check", "env"):  # they write nothing anyway
        assert "--dry-run" in shown


def test_the_document_lists_every_command_and_every_exit_status():
    assert re.findall(r"^## `easyr1 (\w+)`$", DOCUMENT, re.MULTILINE) == list(COMMANDS)
    rows = dict(re.findall(r"^\| (\d+) \| (.+) \|$", DOCUMENT, re.MULTILINE))
    assert {int(status): meaning for status, meaning in rows.items()} == EXIT_STATUSES


def test_help_loads_nothing_heavy():
    code = f"""
import sys
from easyr1.cli.main import main
for name in {list(COMMANDS)}:
    try:
        main([name, "--help"])
    except SystemExit:
        pass
heavy = ("torch", "transformers", "ray", "datasets", "vllm")
sys.stderr.write(" ".join(name for name in heavy if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == "" and done.stdout.count("usage: easyr1") == len(COMMANDS)


def test_a_misspelt_command_or_option_names_the_nearest(capsys):
    for wrong, right in (("trian", "train"), ("evaluate", "eval"), ("quick-start", "quickstart")):
        assert main([wrong]) == 2
        assert f"did you mean '{right}'?" in capsys.readouterr().err
    for command in COMPUTING:
        assert main([command, "--dryrun" if command != "check" else "--depe"]) == 2
        assert f"did you mean '{'--dry-run' if command != 'check' else '--deep'}'?" in capsys.readouterr().err


def test_the_old_names_have_the_same_help(capsys):
    assert run("easyr1.cli.train", ["--help"]) == 0  # what verl.trainer.main calls
    assert capsys.readouterr().out == help_of("train", capsys)


def test_the_quickstart_is_shown_and_nothing_is_built(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EASYR1_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert main(["quickstart", "--dry-run", "trainer.max_steps=7"]) == 0
    shown = capsys.readouterr().err
    assert "7 (trainer.max_steps)" in shown and "384 (48 prompts x 8 answers)" in shown
    assert not list(tmp_path.iterdir())
