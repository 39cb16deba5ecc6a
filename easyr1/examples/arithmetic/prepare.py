"""`python -m easyr1.examples.arithmetic.prepare [FOLDER]`: write model and rows of the example below FOLDER."""

import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = "arithmetic"


def main(arguments: Sequence[str]) -> int:
    from easyr1.examples.arithmetic.model import model_folder
    from easyr1.examples.arithmetic.rows import write_rows

    folder = Path(arguments[0] if arguments else FOLDER).expanduser()
    written = (model_folder(folder / "smollm2-135m-instruct"), *write_rows(folder))
    sys.stdout.write("".join(f"{path}\n" for path in written))
    return 0


if __name__ == "__main__":
    from easyr1.cli.main import run

    sys.exit(run("easyr1.examples.arithmetic.prepare", sys.argv[1:]))
