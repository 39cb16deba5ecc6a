"""What a run takes up again: exactness, what may change, what is told, and stopping in between."""

import json
import os
import pickle
import signal
import time
from pathlib import Path

import pytest
import runs
import torch

from easyr1 import manifest
from easyr1.errors import CheckpointError, ConfigError


def resumed(folder):
    """What the run said when it went on."""
    events = runs.rows(folder / "run", "events.jsonl")
    return next(event["message"] for event in reversed(events) if event["kind"] == "resume")


def test_a_resumed_run_is_the_straight_run(tmp_path):
    """B14: row order, learning rate, samples, metrics and final weights, over the end of an epoch."""
    common = {"trainer__save_freq": 3, "trainer__val_before_train": "false", "trainer__val_freq": -1, "rows": 10}
    weights, drawn = [], []

    def watch(trainer):
        take = trainer.loader.next
        trainer.loader.next = lambda count=None: drawn[-1].append(take(count)) or drawn[-1][-1]

    for name, stops in (("straight", [6]), ("broken", [3, 6])):
        drawn.append([])
        for stop in stops:
            path = tmp_path / name
            trainer, _ = runs.run(
                runs.arguments(tmp_path, **common, trainer__max_steps=stop, trainer__save_checkpoint_path=path), watch
            )
        weights.append(runs.engine(trainer).scored.model.state_dict())
    assert [[prompt.row for prompt in batch] for batch in drawn[0]] == [[p.row for p in batch] for batch in drawn[1]]
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name
    left, right = (runs.steps(tmp_path / name) for name in ("straight", "broken"))
    assert sorted(left) == sorted(right) == [1, 2, 3, 4, 5, 6]
    for step, metrics in left.items():
        for name, value in metrics.items():
            if not name.startswith(("timing", "perf", "time")):
                assert right[step][name] == value, (step, name)


def test_a_finished_run_does_nothing_and_a_longer_one_goes_on(tmp_path):
    arguments = runs.arguments(tmp_path, trainer__val_before_train="false")
    runs.run(arguments)
    before = runs.rows(tmp_path / "run")
    assert runs.run(arguments) == (None, {}) and runs.rows(tmp_path / "run") == before
    trainer, _ = runs.run([*arguments, "trainer.max_steps=3"])
    assert trainer.step == 3 and sorted(runs.steps(tmp_path / "run")) == [1, 2, 3]


def test_a_run_without_resume_starts_at_zero_and_an_explicit_checkpoint_is_taken_at_any_level(tmp_path):
    arguments = runs.arguments(tmp_path, trainer__val_before_train="false")
    runs.run(arguments)
    trainer, _ = runs.run([*arguments, "trainer.find_last_checkpoint=false", "trainer.max_steps=1"])
    assert trainer.step == 1
    starts: list[int] = []
    for level in ("global_step_1", "global_step_1/actor", ""):  # the last checkpoint of the run folder is step 1's
        other = [*arguments, f"trainer.save_checkpoint_path={tmp_path / 'other'}", "trainer.max_steps=2"]
        loaded = f"trainer.load_checkpoint_path={tmp_path / 'run' / level}"
        trainer, _ = runs.run([*other, loaded], lambda trainer: starts.append(trainer.step))
    assert starts == [1, 1, 1]
    with pytest.raises(ConfigError, match="no checkpoint"):
        runs.run([*arguments, f"trainer.load_checkpoint_path={tmp_path}"])


def test_weights_without_optimizer_resume_and_say_so(tmp_path):
    arguments = runs.arguments(tmp_path, trainer__val_before_train="false", trainer__save_model_only="true")
    runs.run(arguments)
    assert not list((tmp_path / "run").rglob("optim*"))
    trainer, _ = runs.run([*arguments, "trainer.max_steps=3"])
    assert trainer.step == 3
    line = resumed(tmp_path)
    assert "weights, learning-rate" in line and "not the optimizer, which starts anew" in line


def test_the_coefficient_of_a_kl_in_the_loss_adapts_and_is_resumed(tmp_path):
    settings = {"algorithm__kl_type": "adaptive", "algorithm__kl_horizon": 100, "algorithm__kl_target": 10.0}
    common = runs.arguments(tmp_path, **settings, trainer__val_before_train="false")
    runs.run([*common, "trainer.max_steps=2"])
    runs.run([*common, "trainer.max_steps=3"])
    found = [runs.steps(tmp_path / "run")[step]["actor/kl_coef"] for step in (1, 2, 3)]
    factor = 1 - 0.2 * 12 / 100  # far below the target
    assert found == pytest.approx([0.01, 0.01 * factor, 0.01 * factor**2])


def test_later_checkpoints_of_an_abandoned_run_are_set_aside(tmp_path):
    settings = {"trainer__save_freq": 1, "trainer__val_freq": 1, "trainer__val_before_train": "false"}
    runs.run(runs.arguments(tmp_path, **settings, trainer__max_steps=3))
    back = runs.arguments(tmp_path, **settings, trainer__load_checkpoint_path=tmp_path / "run" / "global_step_1")
    before = sorted((tmp_path / "run").glob("global_step_*")), len(runs.rows(tmp_path / "run"))
    runs.run([*back, "trainer.val_only=true"])  # evaluates, and takes nothing away
    assert sorted((tmp_path / "run").glob("global_step_*")) == before[0]
    assert len(runs.rows(tmp_path / "run")) >= before[1]
    runs.run([*back, "trainer.max_steps=2"])
    names = {path.name for path in (tmp_path / "run").glob("global_step_*")}
    assert names == {"global_step_1", "global_step_2", "global_step_2.superseded", "global_step_3.superseded"}
    record = json.loads((tmp_path / "run" / "checkpoint_tracker.json").read_text())
    assert record["last_global_step"] == 2 and record["best_global_step"] in (1, 2)
    runs.run(runs.arguments(tmp_path, **settings, trainer__max_steps=1, trainer__find_last_checkpoint="false"))
    assert {row["step"] for row in runs.rows(tmp_path / "run")} == {1}
    assert (tmp_path / "run" / "metrics-superseded.jsonl").exists()


def test_a_checkpoint_without_critic_is_told(tmp_path):
    runs.run(runs.arguments(tmp_path, trainer__val_before_train="false"))
    named = {"trainer__load_checkpoint_path": "last", "trainer__max_steps": 3}
    with pytest.raises(CheckpointError, match=r"without a critic.*adv_estimator"):
        runs.run(runs.arguments(tmp_path, algorithm__adv_estimator="gae", **named))


def test_one_line_says_what_came_back(tmp_path):
    settings = {"trainer__val_before_train": "false", "algorithm__online_filtering": "true"}
    settings |= {"data__mini_rollout_batch_size": 3, "algorithm__filter_low": 0.01, "algorithm__filter_high": 0.99}
    runs.run(runs.arguments(tmp_path, **settings))
    runs.run(runs.arguments(tmp_path, **settings, trainer__max_steps=3))
    line = resumed(tmp_path)
    for part in ("weights", "optimizer", "learning-rate schedule", "KL coefficient", "random states", "epoch 1, row "):
        assert part in line
    assert "1 group that waits" in line and "of step 2" in line and "step 2 of 3 is done" in line


def test_a_run_goes_on_by_itself_only_with_the_settings_that_decide_what_is_learnt(tmp_path):
    common = {"trainer__val_before_train": "false"}
    runs.run(runs.arguments(tmp_path, **common))
    other = runs.arguments(tmp_path, **common, worker__actor__optim__lr=5e-4, algorithm__kl_coef=0.1)
    with pytest.raises(ConfigError) as told:
        runs.run([*other, "trainer.max_steps=3"])
    for part in ("optim.lr: 0.001 then, 0.0005 now", "kl_coef: 0.01 then, 0.1 now", "load_checkpoint_path="):
        assert part in str(told.value)
    assert "batch" not in str(told.value)
    trainer, _ = runs.run([*other, "trainer.max_steps=3", "trainer.load_checkpoint_path=last"])
    assert trainer is not None and trainer.step == 3
    free = {"trainer__save_freq": 1, "trainer__val_freq": 1, "trainer__logger": "['file','console']"}
    free |= {"worker__actor__micro_batch_size_per_device_for_update": 2, "trainer__total_epochs": 2}
    trainer, _ = runs.run([*other, *(f"{key.replace('__', '.')}={value}" for key, value in free.items())][:-1])
    assert trainer is None  # done already: it was compared, and nothing stopped it


def test_a_changed_setting_is_told_before_rows_and_model_are_read(tmp_path):
    runs.run(runs.arguments(tmp_path, trainer__val_before_train="false"))
    (tmp_path / "rows8.jsonl").write_text("no rows")
    arguments = runs.arguments(tmp_path, trainer__max_steps=3, worker__rollout__n=4)
    with pytest.raises(ConfigError, match=r"rollout\.n: 3 then, 4 now"):
        runs.run(arguments)


def send(number, owner, name, when):
    """Send this process the signal when `owner.name` is called and `when()` holds, once."""
    work, sent = getattr(owner, name), []

    def wrapped(*args, **kwargs):
        if when() and not sent:
            sent.append(number)
            os.kill(os.getpid(), number)
        return work(*args, **kwargs)

    setattr(owner, name, wrapped)


STOPS = {
    "sampling": lambda trainer: (trainer.collector.rollout, "generate", lambda: trainer.step == 2),
    "reward": lambda trainer: (trainer.collector, "score", lambda: trainer.step == 2),
    "update": lambda trainer: (trainer.actor.engine, "update", lambda: trainer.step == 2),
    "validation": lambda trainer: (trainer.val_collector, "score", lambda: trainer.step == 2),
    "save": lambda trainer: (trainer.actor.engine, "save", lambda: True),
}


@pytest.mark.parametrize("number", (signal.SIGTERM, signal.SIGINT))
@pytest.mark.parametrize("where", STOPS)
def test_a_stopped_run_saves_its_last_whole_step_and_goes_on_exactly(tmp_path, where, number):
    settings = {"trainer__max_steps": 4, "trainer__val_freq": 2, "trainer__val_before_train": "false"}
    settings |= {"trainer__save_freq": 2 if where == "save" else -1}
    straight = runs.arguments(tmp_path, **settings, trainer__save_checkpoint_path=tmp_path / "straight")
    weights = runs.engine(runs.run(straight)[0]).scored.model.state_dict()
    arguments = runs.arguments(tmp_path, **settings)
    status = runs.run_forked(arguments, lambda trainer: send(number, *STOPS[where](trainer)))
    assert os.waitstatus_to_exitcode(status) == 128 + number
    stopped = next(row for row in runs.rows(tmp_path / "run", "events.jsonl") if row["kind"] == "stopped")
    assert stopped["step"] == 2 and "step 2 of 4 is saved" in stopped["message"]
    assert {path.name for path in (tmp_path / "run").glob("global_step_*")} == {"global_step_2"}
    if where in ("validation", "update"):  # it was cut short, or not begun
        assert "val/reward_score" not in runs.steps(tmp_path / "run")[2]
    trainer, _ = runs.run(arguments)
    for name, tensor in runs.engine(trainer).scored.model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    left, right = runs.steps(tmp_path / "straight"), runs.steps(tmp_path / "run")
    for step, metrics in left.items():  # the validation that was owed is there, too
        same = {name: value for name, value in metrics.items() if not name.startswith(("timing", "perf", "time"))}
        assert same.items() <= right[step].items()
    records = [json.loads((tmp_path / name / "checkpoint_tracker.json").read_text()) for name in ("straight", "run")]
    assert records[0]["best_val_reward_score"] <= records[1]["best_val_reward_score"]  # saved more often


@pytest.mark.parametrize("second", ("update", "save"))
def test_a_second_signal_leaves_at_once(tmp_path, second):
    def never_saves(trainer):
        update = trainer.actor.engine.update

        def first(*args, **kwargs):
            os.kill(os.getpid(), signal.SIGINT)
            return update(*args, **kwargs)

        def slow(*_args, **_kwargs):
            os.kill(os.getpid(), signal.SIGINT)
            if second == "update":
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)

        trainer.actor.engine.update = slow if second == "update" else first
        trainer.actor.engine.save = slow

    status = runs.run_forked(runs.arguments(tmp_path), never_saves)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGINT
    assert not list((tmp_path / "run").glob("global_step_*"))


def test_a_run_stopped_before_its_first_step_saves_nothing_and_starts_again(tmp_path):
    arguments = runs.arguments(tmp_path)
    status = runs.run_forked(
        arguments, lambda trainer: send(signal.SIGTERM, trainer.val_collector, "score", lambda: True)
    )
    assert os.waitstatus_to_exitcode(status) == 143
    assert not list((tmp_path / "run").glob("global_step_*"))
    assert runs.run(arguments)[0].step == 2


def test_signals_are_the_callers_again_after_a_run(tmp_path):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    runs.run(runs.arguments(tmp_path, trainer__max_steps=1))
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


class Bomb:
    """Something whose unpickling leaves a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_a_pickle_in_the_place_of_any_file_is_never_run(tmp_path):
    """Not even where the manifest was forged to vouch for it."""
    settings = {"worker__actor__model__lora__rank": 2, "algorithm__adv_estimator": "gae"}
    runs.run(runs.arguments(tmp_path, trainer__max_steps=1, trainer__val_before_train="false", **settings))
    folder, mark = tmp_path / "run" / "global_step_1", tmp_path / "mark"
    resumed = runs.arguments(tmp_path, trainer__val_before_train="false", **settings)
    bomb = pickle.dumps(Bomb(mark))
    names = manifest.list_files(folder)
    assert {"actor/model", "actor/optim", "critic/model", "actor/lora_adapter"} <= {
        str(Path(name).parent) for name in names
    }
    for name in names:
        kept = (folder / name).read_bytes()
        (folder / name).write_bytes(bomb)
        manifest.write_manifest(folder)
        if not {"huggingface", "lora_adapter"} & set(Path(name).parts):  # which no resume reads
            with pytest.raises(CheckpointError):
                runs.run(resumed)
        (folder / name).write_bytes(kept)
        manifest.write_manifest(folder)
        assert not mark.exists(), name
    runs.run(resumed)  # all is whole again
    pickle.loads(bomb)
    assert mark.exists()  # the bomb was live


@pytest.mark.parametrize("where", ("update", "validation"))
def test_a_run_stopped_in_its_last_step_still_gets_its_last_validation(tmp_path, where):
    arguments = runs.arguments(tmp_path, trainer__max_steps=3, trainer__val_before_train="false", trainer__val_freq=-1)
    status = runs.run_forked(arguments, lambda trainer: send(signal.SIGTERM, *LAST[where](trainer)))
    assert os.waitstatus_to_exitcode(status) == 143
    assert "val/reward_score" not in runs.steps(tmp_path / "run")[3]
    _, result = runs.run(arguments)
    assert "val/reward_score" in result and runs.steps(tmp_path / "run")[3]["val/reward_score"]
    record = json.loads((tmp_path / "run" / "checkpoint_tracker.json").read_text())
    assert record["best_global_step"] == 3 and record["best_val_reward_score"] == result["val/reward_score"]
    before = runs.rows(tmp_path / "run")
    assert runs.run(arguments) == (None, {}) and runs.rows(tmp_path / "run") == before  # once is enough


LAST = {
    "update": lambda trainer: (trainer.actor.engine, "update", lambda: trainer.step == 3),
    "validation": lambda trainer: (trainer.val_collector, "score", lambda: True),
}


def everything(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*.json*")) if path.is_file()}


@pytest.mark.parametrize(
    ("settings", "error"),
    (
        ({"worker__actor__model__override_config__num_hidden_layers": 1}, CheckpointError),
        ({"data__rollout_batch_size": 2}, ConfigError),
    ),
    ids=("another model", "another order of rows"),
)
def test_a_start_that_fails_changes_nothing(tmp_path, settings, error):
    common = {"trainer__save_freq": 1, "trainer__val_before_train": "false"}
    runs.run(runs.arguments(tmp_path, **common, trainer__max_steps=3))
    before = everything(tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").glob("global_step_*")}
    with pytest.raises(error):
        runs.run(
            runs.arguments(
                tmp_path, **common, **settings, trainer__load_checkpoint_path=tmp_path / "run/global_step_1"
            )
        )
    assert {path.name for path in (tmp_path / "run").glob("global_step_*")} == names
    after = everything(tmp_path / "run")
    changed = {str(name) for name in before if after[name] != before[name]}
    assert changed <= {"config.json", "events.jsonl"}
    runs.run(runs.arguments(tmp_path, **common, trainer__max_steps=4))
    assert sorted(runs.steps(tmp_path / "run")) == [1, 2, 3, 4]


def test_a_checkpoint_of_another_run_starts_a_run_of_its_own(tmp_path):
    common = {"trainer__val_before_train": "false", "trainer__save_freq": 1}
    runs.run(runs.arguments(tmp_path, **common, trainer__save_checkpoint_path=tmp_path / "other"))
    runs.run(runs.arguments(tmp_path, **common, trainer__max_steps=1))
    named = {"trainer__load_checkpoint_path": tmp_path / "other" / "global_step_2", "trainer__max_steps": 3}
    runs.run(runs.arguments(tmp_path, **common, **named))
    assert sorted(runs.steps(tmp_path / "run")) == [3]  # its own first step belongs to another run
    names = {path.name for path in (tmp_path / "run").glob("global_step_*")}
    assert names == {"global_step_1.superseded", "global_step_3"}


def test_a_stopped_run_says_how_to_go_on(tmp_path):
    runs.run(runs.arguments(tmp_path, trainer__val_before_train="false", trainer__save_freq=1))
    arguments = runs.arguments(
        tmp_path,
        trainer__val_before_train="false",
        trainer__max_steps=4,
        trainer__load_checkpoint_path=tmp_path / "run" / "global_step_1",
    )
    runs.run_forked(
        arguments, lambda trainer: send(signal.SIGTERM, trainer.actor.engine, "update", lambda: trainer.step == 3)
    )
    stopped = next(row for row in runs.rows(tmp_path / "run", "events.jsonl") if row["kind"] == "stopped")
    assert stopped["message"].endswith(f"trainer.load_checkpoint_path={tmp_path / 'run' / 'global_step_3'}")


def test_a_run_folder_that_cannot_be_is_told_before_rows_are_read(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(ConfigError, match=r"trainer\.save_checkpoint_path: .*run cannot be a folder"):
        runs.run(runs.arguments(tmp_path))


@pytest.mark.parametrize("error", [OSError("No space left on device"), ValueError("odd rows of an older run")])
def test_a_report_that_cannot_be_written_stops_no_run(tmp_path, monkeypatch, error):
    def full(_folder):
        raise error

    monkeypatch.setattr("easyr1.trainer.loop.write_report", full)
    trainer, _ = runs.run(runs.arguments(tmp_path))
    assert trainer.step == 2
    assert any(
        "report could not be written" in row.get("message", "") for row in runs.rows(tmp_path / "run", "events.jsonl")
    )


def test_more_epochs_go_on_as_more_steps_do(tmp_path):
    arguments = runs.arguments(tmp_path, trainer__max_steps="null", trainer__val_before_train="false")
    runs.run([*arguments, "trainer.total_epochs=1"])  # 8 rows, 4 a step
    assert runs.run([*arguments, "trainer.total_epochs=1"]) == (None, {})
    trainer, _ = runs.run([*arguments, "trainer.total_epochs=2"])
    assert trainer.step == 4 and sorted(runs.steps(tmp_path / "run")) == [1, 2, 3, 4]


def test_a_resumed_run_is_the_same_run_in_its_tracker_and_one_of_its_own_from_another_folder(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    common = {"trainer__logger": "['file','wandb']", "trainer__val_before_train": "false", "trainer__val_freq": -1}
    ids = []
    for settings in (
        {"trainer__max_steps": 1},
        {"trainer__max_steps": 2},
        {"trainer__max_steps": 3, "trainer__logger": "['file']"},  # not logged to, and not forgotten
        {"trainer__max_steps": 4},
        {
            "trainer__max_steps": 5,
            "trainer__save_checkpoint_path": tmp_path / "other",
            "trainer__load_checkpoint_path": tmp_path / "run",
        },
    ):
        trainer, _ = runs.run(runs.arguments(tmp_path, **common | settings))
        state = json.loads((trainer.checkpoints.folder / f"global_step_{trainer.step}/trainer_state.json").read_text())
        ids.append(state["trackers"]["wandb"]["id"])
    assert len(set(ids[:4])) == 1 and ids[4] != ids[0]
