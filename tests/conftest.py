"""Settings that must stand before torch loads: one thread, no spinning, no network; and a torchvision that imports."""

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

SHIM = Path(__file__).parent / "torchvision_on_cpu"

for name, value in {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "EASYR1_CACHE": str(Path(tempfile.gettempdir()) / "easyr1_tests"),
}.items():
    os.environ.setdefault(name, value)

if importlib.util.find_spec("vllm") is not None:  # which brings a torchvision along
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # its sampler would be compiled at first use
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SHIM), os.environ.get("PYTHONPATH"))))
    shim = importlib.util.spec_from_file_location("torchvision_on_cpu", SHIM / "sitecustomize.py")
    sys.modules["torchvision_on_cpu"] = importlib.util.module_from_spec(shim)
    shim.loader.exec_module(sys.modules["torchvision_on_cpu"])
