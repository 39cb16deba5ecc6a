"""The quickstart on two ranks: it learns, and its first steps are those of one rank."""

from pathlib import Path
from statistics import mean

import pytest
import runs
from commands import run

STEPS = 12
SETTINGS = ("trainer.device=cpu", "trainer.val_before_train=false", "trainer.val_freq=-1")


def quickstart(folder: Path, name: str, *settings: str) -> dict[int, dict[str, float]]:
    """The metrics of each step."""
    place = f"trainer.save_checkpoint_path={name}"
    variables = {"RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1"}
    run("easyr1.cli.main", "quickstart", *SETTINGS, place, *settings, folder=folder, **variables)
    return runs.steps(folder / name)


@pytest.mark.slow
def test_the_quickstart_learns_on_two_ranks_and_starts_as_on_one(tmp_path):
    one = quickstart(tmp_path, "one", "trainer.max_steps=2")
    two = quickstart(tmp_path, "two", f"trainer.max_steps={STEPS}", "trainer.n_gpus_per_node=2")
    assert (tmp_path / "two/logs/rank_1.log").is_file()
    for step in (1, 2):
        told = {name for name in one[step] if name.startswith(("actor/", "reward/", "response_length/", "critic/"))}
        assert {"actor/pg_loss", "actor/grad_norm", "reward/overall", "response_length/mean"} <= told
        for name in told:
            assert two[step][name] == pytest.approx(one[step][name], rel=1e-4, abs=1e-4), (step, name)
    reward = [two[step]["reward/overall"] for step in range(1, STEPS + 1)]
    assert mean(reward[-3:]) > mean(reward[:3]) + 0.15, reward
