"""What a light command may not cost: heavy imports and seconds."""

import subprocess
import sys
import time

import pytest
from python_files import ROOT

HEAVY = ("torch", "ray", "transformers", "datasets", "vllm")
HELP_LIMIT_S = 2.0  # half of it is promised; the rest is for busy machines


def python(*arguments: str) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(
    "module", ["easyr1", "easyr1.config.schema", "easyr1.config.resolve", "easyr1.tracking.report"]
)
def test_a_light_module_loads_nothing_heavy(module):
    loaded = python("-c", f"import sys, {module}; print(*[name for name in {HEAVY} if name in sys.modules])")
    assert loaded.split() == []


def test_help_answers_at_once():
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        assert "train" in python("-m", "easyr1.cli.main", "--help")
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < HELP_LIMIT_S
