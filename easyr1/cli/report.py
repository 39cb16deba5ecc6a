"""`easyr1 report FOLDER ...`: the page of a run, anew from its files; of several runs also one that compares them."""

import sys
from collections.abc import Sequence
from pathlib import Path

from easyr1.cli.options import DRY_RUN, split
from easyr1.errors import ConfigError
from easyr1.tracking import comparison
from easyr1.tracking.loggers import EVENTS_FILE, METRICS_FILE
from easyr1.tracking.report import HTML_FILE, JSON_FILE, write_report

HELP = f"""\
usage: easyr1 report [--dry-run] FOLDER [FOLDER ...]

Writes report.html and report.json of a run anew from its files; the page needs no network and no server.
Of several runs, {comparison.MAX_RUNS} at the most, it also writes {comparison.HTML_FILE} where it is called:
their curves over each other and the settings in which they differ.

  easyr1 report checkpoints/easy_r1/demo
  easyr1 report checkpoints/easy_r1/grpo checkpoints/easy_r1/dapo

  --dry-run  name the pages that would be written
"""


def main(arguments: Sequence[str]) -> int:
    options, arguments = split(arguments, [DRY_RUN])
    folders = [Path(argument) for argument in arguments]
    if not folders or not all(folder.is_dir() for folder in folders):
        missing = next((f"{folder} is no folder; " for folder in folders if not folder.is_dir()), "")
        raise ConfigError("report", f"{missing}give a run folder, for example easyr1 report checkpoints/easy_r1/demo")
    for folder in folders:
        if not any((folder / name).exists() for name in (METRICS_FILE, EVENTS_FILE, JSON_FILE)):
            raise ConfigError("report", f"{folder} holds no run: none of {METRICS_FILE}, {EVENTS_FILE}, {JSON_FILE}")
    compares = len({folder.resolve() for folder in folders}) > 1
    if len(folders) > comparison.MAX_RUNS:
        raise ConfigError(
            "report", f"{len(folders)} runs are too many for one page; give {comparison.MAX_RUNS} at most"
        )
    page = Path(comparison.HTML_FILE).absolute()
    if options:
        pages = [folder.absolute() / HTML_FILE for folder in folders] + [page] * compares
    else:
        pages = [write_report(folder) for folder in folders]
        pages += [comparison.write_comparison(folders, page)] if compares else []
    sys.stdout.write("".join(f"{path}\n" for path in pages))
    return 0
