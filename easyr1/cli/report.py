"""`easyr1 report FOLDER`: the page of a run, written anew from its files."""

import sys
from collections.abc import Sequence
from pathlib import Path

from easyr1.errors import ConfigError
from easyr1.tracking.report import write_report


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        raise ConfigError("report", "give one run folder, for example easyr1 report checkpoints/easy_r1/demo")
    sys.stdout.write(f"{write_report(Path(arguments[0]))}\n")
    return 0
