"""`easyr1 init`: a small project that runs, to be filled with one's own data."""

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from easyr1.cli.options import DRY_RUN, split
from easyr1.config.paths import PACKAGE
from easyr1.errors import ConfigError

HELP = """\
usage: easyr1 init [--dry-run] [FOLDER] [model=FOLDER_OR_HUB_NAME]

Writes a project for your own data into FOLDER (here, if none is given): settings with comments, a reward file, a
prompt template, a few rows with pictures, and a README with the commands to go on with. Never overwrites a file.

  easyr1 init my_project
  easyr1 init my_project model=Qwen/Qwen2.5-VL-3B-Instruct
  easyr1 check config=my_project/config.yaml

  --dry-run  name the files that would be written
"""
SOURCES = PACKAGE / "examples" / "own_data"
FILES = ("config.yaml", "prompt.jinja", "reward.py", "README.md")
DATA = ("data/train.jsonl", "data/val.jsonl", "data/images")
MODEL_KEY = "model="


def main(arguments: Sequence[str]) -> int:
    """Write the files and say how to go on; ConfigError where one of them is there already."""
    options, rest = split(arguments, [DRY_RUN])
    models = [argument.removeprefix(MODEL_KEY) for argument in rest if argument.startswith(MODEL_KEY)]
    folders = [argument for argument in rest if not argument.startswith(MODEL_KEY)]
    if len(folders) > 1 or len(models) > 1 or any("=" in folder for folder in folders):
        raise ConfigError("init", f"takes one FOLDER and one model=..., not {shlex.join(rest)}")
    folder = Path(folders[0] if folders else ".").expanduser().absolute()
    if models == [""]:
        raise ConfigError("init", "model= names nothing; give a folder or a name on the hub, or leave it out")
    if folder.exists() and not folder.is_dir():
        raise ConfigError("init", f"{folder} is a file; give a folder")
    taken = [name for name in (*FILES, *DATA) if (folder / name).exists()]
    if taken:
        raise ConfigError("init", f"{folder} holds {', '.join(taken)} already; give another folder, or move them")
    if options:
        sys.stdout.write("".join(f"{folder / name}\n" for name in (*FILES, *DATA)))
        return 0
    write(folder, models[0] if models else None)
    sys.stdout.write(f"wrote {', '.join((*FILES, *DATA))} into {folder}\n{next_steps(folder, bool(models))}")
    return 0


def write(folder: Path, model: str | None) -> None:
    """All files; paths in them are absolute, so that the commands work wherever they are typed."""
    from easyr1.examples.own_data.rows import write_rows

    try:
        (folder / "data").mkdir(parents=True, exist_ok=True)
        for name in FILES:
            text = (SOURCES / name).read_text(encoding="utf-8")
            (folder / name).write_text(filled(name, text, folder, model), encoding="utf-8")
        write_rows(folder / "data")
    except OSError as error:
        raise ConfigError("init", f"{folder} cannot be written: {error}") from error


def filled(name: str, text: str, folder: Path, model: str | None) -> str:
    """The text of a file with the project's folder and its model in place."""
    if name == "config.yaml":
        there = model is not None and Path(model).expanduser().is_dir()
        model = str(Path(str(model)).expanduser().absolute()) if there else model
        text = text.replace("'MODEL'", "null" if model is None else in_yaml(model))
        return re.sub("'FOLDER/(.*?)'", lambda found: in_yaml(f"{folder}/{found[1]}"), text)
    if name == "README.md":
        text = text if model is None else text.replace(" worker.actor.model.model_path=MODEL", "")
        return text.replace("config=FOLDER/config.yaml", f"config={shlex.quote(f'{folder}/config.yaml')}").replace(
            "FOLDER", str(folder)
        )
    return text


def in_yaml(text: str) -> str:
    """As a quoted value.

    >>> in_yaml("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


def next_steps(folder: Path, has_model: bool) -> str:
    """The commands to go on with."""
    config = f"config={shlex.quote(str(folder / 'config.yaml'))}"
    model = "" if has_model else " worker.actor.model.model_path=MODEL"
    return f"next:\n  easyr1 check {config}\n  easyr1 train {config}{model}\n"
