"""A run that is killed at any point and started again ends bit by bit where an undisturbed one ends.

Every run is a process of its own; the kill is a real SIGKILL.
"""

import json
import os
import random
import shutil
import signal

import numpy as np
import pytest
import runs
import torch

from easyr1.engines import train
from easyr1.rewards import worker
from easyr1.trainer import checkpoint

STEPS, KILLED_IN = 5, 3  # 8 rows, 4 prompts a step: step 3 is the first of the second epoch
SETTINGS = {
    "trainer__max_steps": STEPS,
    "trainer__save_freq": 1,
    "trainer__save_limit": 2,
    "trainer__val_freq": 2,
    "worker__actor__optim__lr_scheduler_type": "cosine",
    "worker__actor__optim__lr_warmup_steps": 2,
    "algorithm__kl_type": "adaptive",
    "algorithm__kl_horizon": 100,
    "algorithm__kl_target": 0.001,
}
FILTERED = {
    "algorithm__online_filtering": "true",
    "algorithm__filter_key": "overall",
    "algorithm__filter_low": 0.01,
    "algorithm__filter_high": 0.99,
    "data__mini_rollout_batch_size": 3,
}

DROPPING = {"worker__actor__model__lora__rank": 4, "worker__actor__model__lora__dropout": 0.5}


def die(*_args, **_kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner, name, when=lambda *args: True, act=die):
    """Make `owner.name` act before it works."""
    work = getattr(owner, name)

    def wrapped(*args, **kwargs):
        if when(*args):
            act(*args, **kwargs)
        return work(*args, **kwargs)

    setattr(owner, name, wrapped)


def after(owner, name, when=lambda *args: True):
    """Make `owner.name` die after it has worked."""
    work = getattr(owner, name)

    def wrapped(*args, **kwargs):
        found = work(*args, **kwargs)
        if when(*args):
            die()
        return found

    setattr(owner, name, wrapped)


def in_step(trainer):
    return lambda *_: trainer.saved_step == KILLED_IN - 1  # after validation and save of the step before


def saving(trainer):
    return lambda *_: trainer.step == KILLED_IN


def in_sampling(trainer):
    def half_way(prompts, sampling, tick):
        engine.generate(prompts, sampling, lambda done, *_: die() if done >= 2 else None)

    engine = type("Engine", (), {"generate": staticmethod(trainer.collector.rollout.generate)})
    before(trainer.collector.rollout, "generate", in_step(trainer), half_way)


def in_reward(trainer):
    before(worker.RewardProcess, "receive", in_step(trainer))  # the samples are sent, the scores on their way


def in_update(trainer):
    after(trainer.actor.engine, "update", lambda *_: trainer.step == KILLED_IN)  # after the first of two


def before_the_weights(trainer):
    before(trainer.actor.engine, "save", saving(trainer))


def after_the_weights(trainer):
    after(train, "save_shards", saving(trainer))


def before_the_state(trainer):
    before(trainer, "copy_model_files", saving(trainer))


def before_the_manifest(trainer):
    before(checkpoint, "write_manifest", saving(trainer))


def after_the_manifest(trainer):
    after(checkpoint, "write_manifest", saving(trainer))


def before_the_tracker(trainer):
    before(checkpoint, "write_synced", saving(trainer))


def after_the_tracker(trainer):
    after(checkpoint, "write_synced", saving(trainer))


def in_pruning(trainer):
    def some(folder, *_args, **_kwargs):
        (folder / "trainer_state.json").unlink()
        die()

    before(shutil, "rmtree", lambda folder, *_: str(folder).endswith(".deleted"), some)


POINTS = [
    in_sampling,
    in_reward,
    in_update,
    before_the_weights,
    after_the_weights,
    before_the_state,
    before_the_manifest,
    after_the_manifest,
    before_the_tracker,
    after_the_tracker,
    in_pruning,
]


def draw_every_step(trainer):
    """Take a number from each generator of the process, as code of others may, and log them."""
    credit = trainer.credit

    def drawn(groups, clock):
        numbers = {"draws/python": random.random(), "draws/numpy": float(np.random.rand())}
        return credit(groups, clock) | numbers | {"draws/torch": float(torch.rand(()))}

    trainer.credit = drawn


def both(*plans):
    return lambda trainer: [plan(trainer) for plan in plans]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Arguments -> the folder of an undisturbed run with them."""
    made = {}

    def folder(name, settings):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            assert runs.run_forked(runs.arguments(made[name], **settings), draw_every_step) == 0
        return made[name]

    return folder


def assert_same_run(left, right):
    """Metrics of every step, and everything in the last checkpoint."""
    ours, theirs = runs.steps(left), runs.steps(right)
    assert sorted(ours) == sorted(theirs) == list(range(STEPS + 1))
    for step, metrics in ours.items():
        for name, value in metrics.items():
            if not name.startswith(("timing", "perf", "time")):
                assert theirs[step][name] == value, (step, name)
    folders = [folder / f"global_step_{STEPS}" for folder in (left, right)]
    for part in ("model", "optim"):
        tensors, others = (runs.read_shards(folder / "actor" / part) for folder in folders)
        assert tensors and tensors.keys() == others.keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, others[name]), (part, name)
    states = [json.loads((folder / "trainer_state.json").read_text()) for folder in folders]
    for name in ("step", "loader", "kl", "waiting_groups", "random", "validated"):
        assert states[0][name] == states[1][name], name
    for name in ("best_global_step", "best_val_reward_score", "last_global_step"):
        assert states[0]["record"][name] == states[1]["record"][name]


def resume(arguments, folder):
    """Start the run again in a process of its own; what it found and what it did."""

    def watch(trainer):
        note = {"start": trainer.step, "loaded": trainer.saved_step, "taken": 0}
        take = trainer.take_step

        def counted():
            note["taken"] += 1
            (folder / "note.json").write_text(json.dumps(note))
            return take()

        trainer.take_step = counted

    assert runs.run_forked(arguments, both(draw_every_step, watch)) == 0
    return json.loads((folder / "note.json").read_text())


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.__name__)
def test_a_killed_run_ends_as_if_it_had_not_been(tmp_path, straight, point):
    reference = straight("plain", SETTINGS)
    arguments = runs.arguments(tmp_path, **SETTINGS)
    status = runs.run_forked(arguments, both(draw_every_step, point))
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    note = resume(arguments, tmp_path)
    renamed = point in (before_the_tracker, after_the_tracker, in_pruning)  # the third step counts from there on
    assert note["start"] == note["loaded"] == (KILLED_IN if renamed else KILLED_IN - 1)
    assert note["taken"] == STEPS - note["start"] < STEPS
    assert_same_run(reference / "run", tmp_path / "run")
    left = {path.name for path in (tmp_path / "run").glob("global_step_*")}
    assert left == {path.name for path in (reference / "run").glob("global_step_*")}  # no debris, no superseded ones


@pytest.mark.parametrize("point", (in_sampling, in_reward, in_update, after_the_manifest), ids=lambda p: p.__name__)
@pytest.mark.parametrize("settings", (FILTERED, DROPPING), ids=("waiting groups", "dropout"))
def test_what_waits_and_random_states_survive_a_kill(tmp_path, straight, settings, point):
    reference = straight(f"with{id(settings)}", SETTINGS | settings)
    arguments = runs.arguments(tmp_path, **SETTINGS, **settings)
    status = runs.run_forked(arguments, both(draw_every_step, point))
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if settings is FILTERED:
        state = json.loads((tmp_path / "run" / f"global_step_{KILLED_IN - 1}" / "trainer_state.json").read_text())
        assert state["waiting_groups"]
    note = resume(arguments, tmp_path)
    assert note["start"] == KILLED_IN - 1 and note["taken"] == STEPS - note["start"]
    assert_same_run(reference / "run", tmp_path / "run")
