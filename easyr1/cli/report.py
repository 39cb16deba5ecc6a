"""`easyr1 report FOLDER`: the page of a run, written anew from its files."""

import sys
from collections.abc import Sequence
from pathlib import Path

from easyr1.cli.options import DRY_RUN, split
from easyr1.errors import ConfigError
from easyr1.tracking.report import write_report

HELP = """\
usage: easyr1 report [--dry-run] FOLDER

Writes report.html and report.json of a run anew from its files; the page needs no network and no server.

  easyr1 report checkpoints/easy_r1/demo

  --dry-run  name the page that would be written
"""


def main(arguments: Sequence[str]) -> int:
    options, arguments = split(arguments, [DRY_RUN])
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        raise ConfigError("report", "give one run folder, for example easyr1 report checkpoints/easy_r1/demo")
    if options:
        sys.stdout.write(f"{Path(arguments[0]).absolute() / 'report.html'}\n")
        return 0
    sys.stdout.write(f"{write_report(Path(arguments[0]))}\n")
    return 0
