"""`easyr1 quickstart` as a user types it, with few steps: fresh folders, overrides, the page at the end."""

import json
from pathlib import Path

import pytest
from commands import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("quickstart")


def quickstart(folder: Path, *settings: str, status: int = 0) -> str:
    cache = str(folder / "cache")
    return run("easyr1.cli.main", "quickstart", *settings, folder=folder, status=status, EASYR1_CACHE=cache)


def same_numbers(folder: Path, run_folder: Path) -> None:
    """An evaluation of the checkpoint gets what the run's own validation of that step logged."""
    run("easyr1.cli.main", "eval", f"trainer.load_checkpoint_path={run_folder / 'last'}", folder=folder)
    found = json.loads((run_folder / "eval" / "global_step_1" / "summary.json").read_text())["overall"]
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    (logged,) = [row for row in rows if row["step"] == 1 and "val/reward_score" in row]
    for name, value in found["scores"].items():
        assert value == pytest.approx(logged[f"val/{name}_reward"], abs=1e-12)
    assert found["tokens"] == pytest.approx(logged["val_response_length/mean"])
    assert found["maj@1"]["value"] == found["pass@1"]["value"] == found["scores"]["accuracy"] > 0


@pytest.mark.slow
def test_every_quickstart_is_a_run_of_its_own_and_can_be_resumed(folder):
    shown = quickstart(folder, "trainer.max_steps=1", "trainer.val_freq=-1")
    assert "[Step 1] train" in shown and "accuracy" in shown.splitlines()[-1]
    (run,) = (folder / "checkpoints" / "quickstart").iterdir()
    assert f"report: {run / 'report.html'}" in shown
    assert "data:image/png" in (run / "report.html").read_text()
    same_numbers(folder, run)
    quickstart(folder, "trainer.max_steps=1", "trainer.save_checkpoint_path=named", "trainer.val_before_train=false")
    assert len(list((folder / "checkpoints" / "quickstart").iterdir())) == 1
    again = quickstart(folder, "trainer.max_steps=1", "trainer.save_checkpoint_path=named", status=2)
    assert "already holds a run" in again
    shown = quickstart(folder, "trainer.max_steps=2", f"trainer.load_checkpoint_path={run / 'global_step_1'}")
    assert "step 1 of 2 is done" in shown and "[Step 2] train" in shown
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(steps) == 2


def test_mistakes_are_told_before_anything_is_built(folder):
    shown = quickstart(folder, "data.rollout_batch_sise=3", status=2)
    assert "data.rollout_batch_size" in shown and len(shown.splitlines()) == 1
