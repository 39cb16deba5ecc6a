"""Ten real geometry problems: each family trains on them, stops, and goes on as if it had not stopped."""

import os
from pathlib import Path

import pytest
import runs
import torch

from tests.families import FAMILIES, PACKED

GEOMETRY3K = Path(
    os.environ.get("EASYR1_GEOMETRY3K", Path(__file__).resolve().parents[3] / "shared" / "data" / "geometry3k-mini")
)
KINDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "smolvlm", "llava_next", "gemma3", "qwen3_5")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not GEOMETRY3K.is_dir(), reason="no geometry3k-mini (EASYR1_GEOMETRY3K)"),
]


def arguments(folder: Path, name: str, out: str, **settings) -> list[str]:
    """A run of 10 rows, 4 a step, that keeps its second step."""
    if not (folder / name).exists():
        FAMILIES[name].save(folder / name)
    settings = {
        "data__train_files": GEOMETRY3K / "train.jsonl",
        "data__val_files": GEOMETRY3K / "train.jsonl",
        "data__max_prompt_length": 512,
        "trainer__val_before_train": "false",
        "trainer__val_freq": -1,
        "trainer__save_freq": 2,
        "trainer__save_checkpoint_path": folder / out,
        "trainer__max_steps": 3,
    } | settings
    return runs.arguments(folder, name, **settings)


@pytest.mark.parametrize("name", KINDS)
def test_two_steps_then_resumed_equals_three_in_one_go(tmp_path, name):
    straight, _ = runs.run(arguments(tmp_path, name, "straight"))
    resumed, _ = runs.run(
        arguments(tmp_path, name, "again", trainer__load_checkpoint_path=tmp_path / "straight/global_step_2")
    )
    assert straight is not None and resumed is not None
    steps, again = runs.steps(tmp_path / "straight"), runs.steps(tmp_path / "again")
    assert max(steps) == max(again) == 3
    assert all(steps[step]["actor/grad_norm"] > 0 for step in (1, 2, 3))
    assert steps[3]["actor/pg_loss"] == again[3]["actor/pg_loss"]
    scored, other = runs.engine(straight).scored, runs.engine(resumed).scored
    assert scored.packed == (FAMILIES[name].layout == PACKED)
    after = other.model.state_dict()
    for weight, tensor in scored.model.state_dict().items():
        assert torch.equal(tensor, after[weight]), weight
