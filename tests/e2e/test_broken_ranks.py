"""A rank that is killed or stands still ends the command, soon and with its name, and the next start goes on."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import commands
import pytest
import runs
import torch

pytestmark = pytest.mark.slow

STEPS = 3
SETTINGS = {
    "trainer__max_steps": STEPS,
    "trainer__save_freq": 1,
    "trainer__val_freq": -1,
    "trainer__val_before_train": "false",
    "worker__actor__optim__lr": 1e-4,
}
SOON_S = 60  # from the signal to the end of the command, which first kills all ranks and leaves Ray
SCORING_S = 90  # that the reward takes in which a rank dies
METHODS = {
    "sampling": "in rollout.generate",
    "reward": "between two calls",
    "update": "in actor.update",
    "save": "in actor.save",
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    """The run folder of one rank without any trouble; the model and rows lie beside it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    runs.run(runs.arguments(folder, "qwen2_5_vl", **SETTINGS))
    return folder


def broken(folder: Path, run: Path, where: str, number: str, **settings: Any) -> tuple[int, str, float]:
    """Exit status and output of a command on two ranks that something happens to, and seconds from then to its end."""
    arguments = runs.arguments(
        folder,
        "qwen2_5_vl",
        **SETTINGS | settings,
        trainer__n_gpus_per_node=2,
        trainer__save_checkpoint_path=run,
        trainer__logger="['console','file']",
    )
    if where == "reward":
        last = f"    if os.path.exists({str(run / 'slow')!r}):\n        time.sleep({SCORING_S})\n    lengths ="
        (folder / "reward.py").write_text("import os, time\n" + runs.REWARD.replace("    lengths =", last))
    done = subprocess.run(
        [sys.executable, str(commands.ROOT / "tests/broken_ranks.py"), where, number, *arguments],
        env=os.environ
        | {"PYTHONPATH": str(commands.ROOT), "COLUMNS": "200", "OMP_NUM_THREADS": "1", "RAY_ADDRESS": "local"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=170,
    )
    end = time.time()
    return done.returncode, done.stdout, end - json.loads((run / "hit.json").read_text())


def resumed_is_undisturbed(folder: Path, run: Path) -> None:
    """One rank goes on from what two have left."""
    runs.run(runs.arguments(folder, "qwen2_5_vl", **SETTINGS, trainer__save_checkpoint_path=run))
    straight, again = runs.steps(folder / "run"), runs.steps(run)
    assert sorted(again) == sorted(straight)
    for step in straight:
        for name in ("actor/pg_loss", "actor/grad_norm", "reward/overall", "response_length/mean"):
            assert again[step][name] == pytest.approx(straight[step][name], abs=1e-4), (step, name)
    last = f"global_step_{STEPS}/actor/model"
    weights, others = runs.read_shards(folder / "run" / last), runs.read_shards(run / last)
    assert max(float((weights[name] - others[name]).abs().max()) for name in weights) < 1e-4
    assert not torch.equal(
        *(runs.read_shards(folder / f"run/global_step_{step}/actor/model")["lm_head.weight"] for step in (1, STEPS))
    )


def nobody_left(run: Path) -> None:
    pids = json.loads((run / "ranks.json").read_text())
    end = time.monotonic() + 5
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < end:
        time.sleep(0.1)
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def told(output: str, what: str) -> bool:
    """Whether the error is about rank 1 alone, and says what happened to it where."""
    return re.search(rf"rank 1 \(node [^)]*\) {re.escape(what)}", output) is not None and "Traceback" not in output


@pytest.mark.parametrize("where", ("sampling", "reward", "update", "save"))
def test_a_killed_rank_ends_the_run_which_goes_on_with_the_next_start(undisturbed, tmp_path, where):
    run = tmp_path / "run"
    status, output, seconds = broken(undisturbed, run, where, "SIGKILL")
    assert status == 1 and seconds < SOON_S < SCORING_S, (seconds, output)
    assert told(output, f"died {METHODS[where]}"), output
    nobody_left(run)
    assert (run / "global_step_1/manifest.json").is_file() and not (run / "global_step_2/manifest.json").is_file()
    resumed_is_undisturbed(undisturbed, run)


@pytest.mark.parametrize("where", ("sampling", "update", "save"))
def test_a_rank_that_stands_still_ends_the_run_after_the_hang_timeout(undisturbed, tmp_path, where):
    """In a call in which ranks work by themselves, and in those in which they need one another."""
    run = tmp_path / "run"
    status, output, seconds = broken(undisturbed, run, where, "SIGSTOP", trainer__hang_timeout_s=8)
    assert status == 1 and seconds < SOON_S, (seconds, output)
    assert told(output, f"hangs {METHODS[where]}") and "trainer.hang_timeout_s=8" in output, output
    nobody_left(run)
    resumed_is_undisturbed(undisturbed, run)


@pytest.mark.parametrize(("where", "saved"), (("sampling", 1), ("update", 2)))
def test_sigterm_saves_the_last_whole_step_of_two_ranks(undisturbed, tmp_path, where, saved):
    run = tmp_path / "run"
    never = {"trainer__save_freq": -1}
    status, output, seconds = broken(undisturbed, run, f"{where}-driver", "SIGTERM", **never)
    assert status == 143 and seconds < SOON_S, (seconds, output)
    assert "the same command goes on from there" in output and "Traceback" not in output, output
    assert [path.name for path in run.glob("global_step_*")] == [f"global_step_{saved}"]
    nobody_left(run)
    resumed_is_undisturbed(undisturbed, run)
