"""`python -m easyr1.examples.arithmetic.prepare [FOLDER] [--rows-only]`: write the rows and the model into FOLDER."""

import sys
from collections.abc import Sequence
from pathlib import Path

from easyr1.examples.arithmetic.rows import write_rows

FOLDER, MODEL = "arithmetic", "smollm2-135m-instruct"
ROWS_ONLY = "--rows-only"


def main(arguments: Sequence[str]) -> int:
    """Rows always; the model unless told otherwise or already there."""
    folders = [argument for argument in arguments if argument != ROWS_ONLY]
    folder = Path(folders[0] if folders else FOLDER).expanduser()
    written = [*write_rows(folder)]
    if ROWS_ONLY not in arguments:
        from easyr1.examples.arithmetic.model import model_folder

        written.append(model_folder(folder / MODEL))
    sys.stdout.write("".join(f"{path}\n" for path in written))
    return 0


if __name__ == "__main__":
    from easyr1.cli.main import run

    sys.exit(run("easyr1.examples.arithmetic.prepare", sys.argv[1:]))
