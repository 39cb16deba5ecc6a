"""The quickstart in bfloat16 from end to end: it learns what float32 weights learn."""

import json
from pathlib import Path

import pytest
from commands import run

STEPS = 40
BF16 = ("worker.actor.fsdp.torch_dtype=bf16", "worker.actor.optim.strategy=adamw_bf16")


def accuracy(folder: Path, name: str, *settings: str) -> tuple[float, float]:
    """Validation accuracy before and after a quickstart with `settings`."""
    settings = (*settings, f"trainer.max_steps={STEPS}", f"trainer.save_checkpoint_path={name}")
    run("easyr1.cli.main", "quickstart", *settings, folder=folder, EASYR1_CACHE=str(folder / "cache"))
    found = json.loads((folder / name / "report.json").read_text())["validation"]["accuracy"]
    return found["first"], found["last"]


@pytest.mark.slow
def test_bfloat16_weights_learn_what_float32_weights_learn(tmp_path):
    """Measured: 0.34 -> 0.85 in float32 and 0.33 -> 0.88 in bfloat16; after 70 steps 0.94 and 0.90."""
    before, exact = accuracy(tmp_path, "fp32")
    coarse_before, coarse = accuracy(tmp_path, "bf16", *BF16)
    assert exact >= before + 0.3
    assert abs(coarse_before - before) < 0.1
    assert abs(coarse - exact) < 0.1
