"""Settings that must stand before torch loads: one thread, no spinning, no network."""

import os
import tempfile
from pathlib import Path

for name, value in {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "EASYR1_CACHE": str(Path(tempfile.gettempdir()) / "easyr1_tests"),
}.items():
    os.environ.setdefault(name, value)
