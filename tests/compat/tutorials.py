"""Tutorials of the original, as plain text: their commands, YAML blocks, Python files and templates, unchanged.

Text copied from a page may have lost its line breaks; `unglued` puts back those that a shell needs.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from commands import ROOT

FOLDER = ROOT.parent / "shared" / "seeds"
PROGRAM = re.compile(r"(python3?|bash|docker|git|cd|pip|conda|apptainer|ray) (?=\S)|export (?=\w+=)")
IN_PROSE = re.compile(r"(?:bash examples/[\w/]+\.sh|export \w+=[\w:/.-]*[\w/])")
SECTION = re.compile(r"(data|algorithm|worker|trainer):$")
PYTHON_FILE = re.compile(r"# (\S+\.py)$")
PYTHON_LINE = re.compile(r"\s|$|import |from |def |REWARD_|\)|#")
TEMPLATE = re.compile(r"\{# examples/format_prompt/")
SCRIPT = "#!/bin/bash"


@dataclass(frozen=True)
class Piece:
    """Some lines of a tutorial."""

    kind: str  # "command", "script", "yaml", "python" or "template"
    text: str
    where: str
    name: str = ""  # of a Python file


def unglued(line: str) -> str:
    r"""The line with its breaks put back: behind a backslash, and before an assignment that touches what is before it.

    >>> unglued('A="1"B="$A"'), unglued("X=1 \\Y=2"), unglued("export A=<a>export B=<b>")
    ('A="1"\nB="$A"', 'X=1 \\\nY=2', 'export A=<a>\nexport B=<b>')
    """
    line = re.sub(r'"(?=[A-Z_]+=)', '"\n', line)
    line = re.sub(r"(?<=\S)(?=export )", "\n", line)
    line = re.sub(r"(?<=\d)(?=[A-Z]{2,}[A-Z_]+=\d+ [^\x00-\x7f])", "\n# ", line)  # prose behind a command
    return re.sub(r"\\(?=\S)", "\\\\\n", line)


def pieces() -> list[Piece]:
    """All of all tutorials, in order."""
    return [piece for file in sorted(FOLDER.glob("*.txt")) for piece in _pieces(file)]


def _pieces(file: Path) -> list[Piece]:
    lines = file.read_text(encoding="utf-8").splitlines()
    found, at = [], 0
    while at < len(lines):
        kind, end = _kind_and_end(lines, at)
        where = f"{file.name}:{at + 1}"
        if kind:
            name = match[1] if (match := PYTHON_FILE.match(lines[at])) else ""
            found.append(Piece(kind, "\n".join(lines[at:end]).rstrip(), where, name))
        else:
            found += [Piece("command", text, where) for text in IN_PROSE.findall(lines[at])]
        at = end
    return found


def _kind_and_end(lines: list[str], at: int) -> tuple[str, int]:
    """What begins in a line, and the line behind it; "" for prose."""
    line = lines[at]
    if line == SCRIPT:
        start = next(place for place in range(at, len(lines)) if lines[place].startswith("python3"))
        return "script", _command_end(lines, start)
    if re.match(r"(CUDA_VISIBLE_DEVICES|RUN_DIR|export WANDB_\w+)=", line):
        return "script", _run_of(lines, at, re.compile(r"CUDA_VISIBLE_DEVICES=|RUN_DIR=|export "))
    if PROGRAM.match(line):
        return "command", _command_end(lines, at)
    if SECTION.match(line):
        return "yaml", _run_of(lines, at, re.compile(r"\s|$"))
    if PYTHON_FILE.match(line) or line.startswith("from transformers import"):
        return "python", _run_of(lines, at, re.compile(PYTHON_LINE.pattern + r"|model = "))
    if TEMPLATE.match(line):
        return "template", _run_of(lines, at, re.compile(r"\S"))
    return "", at + 1


def _command_end(lines: list[str], at: int) -> int:
    while lines[at].endswith("\\"):
        at += 1
    return at + 1


def _run_of(lines: list[str], at: int, fitting: re.Pattern[str]) -> int:
    end = at + 1
    while end < len(lines) and fitting.match(lines[end]):
        end += 1
    return end
