"""The reader of source files lies beside the tests of structure."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "structure"))
