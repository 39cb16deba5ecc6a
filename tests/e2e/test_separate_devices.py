"""Whole commands whose answers other ranks sample than those that train: what is logged and saved is the same."""

import os
import signal
from pathlib import Path
from typing import Any

import commands
import pytest
import runs
from test_ranks import same_metrics, same_weights

from easyr1.cluster.failure import RankError
from easyr1.cluster.watch import alive

pytestmark = pytest.mark.slow

COMMON = {"trainer__val_freq": 2, "worker__actor__optim__lr": 1e-4}
ADAPTERS = {"worker__actor__model__lora__rank": 4, "algorithm__adv_estimator": "remax"}


def arguments(folder: Path, run: str, kind: str, number: int, steps: int, **settings: Any) -> list[str]:
    """Of a command with `number` ranks that sample alone; 0: the one that trains does."""
    where = {"trainer__save_checkpoint_path": folder / run, "trainer__max_steps": steps}
    if number:
        where |= {"worker__hybrid_engine": "false", "worker__rollout__n_gpus": number}
    return runs.arguments(folder, kind, **COMMON | settings | where)


@pytest.mark.parametrize(
    ("kind", "settings", "train", "number", "starts"),
    (("qwen2_5_vl", {}, 1, 2, (2, 3)), ("qwen2", ADAPTERS, 2, 1, (3,))),
)
def test_ranks_that_only_sample_make_no_difference(tmp_path, kind, settings, train, number, starts):
    """Nor does it when the same command goes on from its checkpoint."""
    runs.run(arguments(tmp_path, "shared", kind, 0, 3, trainer__val_before_train="false", **settings))
    settings = settings | {"trainer__n_gpus_per_node": train}
    for steps in starts:
        command = arguments(tmp_path, "apart", kind, number, steps, trainer__val_before_train="false", **settings)
        commands.run("easyr1.cli.main", "train", *command, RAY_ADDRESS="local", OMP_NUM_THREADS="1")
    shared, apart = (runs.steps(tmp_path / run) for run in ("shared", "apart"))
    same_metrics(shared, apart)
    assert ("balance/rollout_generate" in apart[1]) == (number > 1)
    same_weights(*(tmp_path / run / "global_step_3/actor/model" for run in ("shared", "apart")))
    assert all((tmp_path / "apart/logs" / f"sampler_{rank}.log").is_file() for rank in range(number))


def test_a_sampler_that_dies_ends_the_run_with_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "local")
    pids = []

    def kill_it_while_it_samples(trainer):
        group, train = trainer.collector.rollout.group, trainer.actor.engine.group
        pids.extend(rank.identity.pid for one in (group, train) for rank in one.watch.ranks)
        start = group._start

        def started(method, *arguments):
            call = start(method, *arguments)
            if method == "rollout.generate":
                os.kill(pids[0], signal.SIGKILL)
            return call

        group._start = started

    with pytest.raises(RankError, match=r"sampler 0 \(node .*\) died in rollout.generate[^$]*sampler_0.log"):
        runs.run(arguments(tmp_path, "run", "qwen2", 1, 2), kill_it_while_it_samples)
    assert len(pids) == 2 and not any(map(alive, pids))
