"""`python3 -m verl.trainer.main config=... key=value ...` is `easyr1 train config=... key=value ...`."""

import sys

from easyr1.cli.main import run

if __name__ == "__main__":
    sys.exit(run("easyr1.cli.train", sys.argv[1:]))
