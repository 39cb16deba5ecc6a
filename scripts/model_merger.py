"""`python3 scripts/model_merger.py --local_dir <checkpoint>/actor` is `easyr1 merge` under EasyR1's name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script finds only its own folder

from easyr1.cli.main import run

if __name__ == "__main__":
    sys.exit(run("easyr1.cli.merge", sys.argv[1:]))
