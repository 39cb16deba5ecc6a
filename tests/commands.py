"""Commands as a user types them, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(*command: str, folder: Path = ROOT, status: int = 0, **environment: str) -> str:
    """Output of `python -m ...` in `folder`, both streams together; fails unless it ends with `status`."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
    )
    assert done.returncode == status, done.stdout
    return done.stdout
