"""Checkpoint folders: whole or not there, found, refused, pruned. The engine is a stand-in that writes two files."""

import errno
import json
import os
import pickle
import resource
import shutil
import signal
from contextlib import nullcontext

import pytest

from easyr1 import manifest
from easyr1.errors import CheckpointError, ConfigError
from easyr1.trainer.checkpoint import Checkpoints


class Engine:
    """Writes weights and an optimizer's state; may run out of space on the way."""

    def __init__(self, fails_at=None, error=None):
        self.fails_at = fails_at
        self.error = error or OSError(errno.ENOSPC, "No space left on device")

    def save(self, folder, model_only=False):
        for name in ("model", "optim"):
            if self.fails_at == name:
                raise self.error
            (folder / name).mkdir(parents=True)
            (folder / name / "shard.safetensors").write_bytes(os.urandom(1000))


def copy_model_files(actor):
    (actor / "huggingface").mkdir()
    (actor / "huggingface" / "config.json").write_text("{}")


def save(checkpoints, step, score=None, **engine):
    return checkpoints.save(step, {"actor": Engine(**engine)}, {"config": {}}, score, copy_model_files)


def load(checkpoints, folder):
    """As a resume does it."""
    checkpoints.check(folder)
    return checkpoints.read_state(folder)


@pytest.fixture
def run(tmp_path):
    """A run folder with checkpoints of the steps 1 and 2."""
    checkpoints = Checkpoints(tmp_path / "run")
    for step in (1, 2):
        save(checkpoints, step)
    return tmp_path / "run"


def steps(run):
    return sorted(path.name.removeprefix("global_step_") for path in run.glob("global_step_*"))


def test_a_checkpoint_has_the_originals_shape_and_a_manifest_of_every_file(run):
    folder = run / "global_step_2"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {
        "actor/model/shard.safetensors",
        "actor/optim/shard.safetensors",
        "actor/huggingface/config.json",
        "trainer_state.json",
        "manifest.json",
    }
    listing = json.loads((folder / "manifest.json").read_text())
    assert set(listing["files"]) == files - {"manifest.json"} and listing["format_version"] == 1
    assert listing["files"]["actor/model/shard.safetensors"]["size"] == 1000
    record = json.loads((run / "checkpoint_tracker.json").read_text())
    assert record == {
        "best_global_step": None,  # nothing was validated
        "best_val_reward_score": None,
        "last_global_step": 2,
        "last_actor_path": str(folder / "actor"),
        "last_val_reward_score": None,
    }


def test_everything_is_on_the_disk_before_the_folder_gets_its_name(tmp_path, monkeypatch):
    events = []
    fsync, rename = os.fsync, type(tmp_path).rename

    def noted(descriptor):
        events.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(manifest.os, "fsync", noted)
    monkeypatch.setattr(type(tmp_path), "rename", lambda path, to: (events.append("renamed"), rename(path, to))[1])
    save(Checkpoints(tmp_path / "run"), 1)
    at = events.index("renamed")
    written = ["shard.safetensors", "shard.safetensors", "config.json", "trainer_state.json"]
    folders = ["model", "optim", "huggingface", "actor", "global_step_1.unfinished"]
    assert sorted(events[:at]) == sorted([*written, "manifest.json", *folders])
    assert all(events.index(name) < events.index("manifest.json") for name in written)
    assert events[at + 1 :] == ["run", "checkpoint_tracker.json.unfinished", "run"]


@pytest.mark.parametrize("name", ("manifest.json", "actor/optim/shard.safetensors", "trainer_state.json"))
def test_an_incomplete_checkpoint_is_passed_over_with_a_warning_and_refused_by_name(run, caplog, name):
    (run / "global_step_2" / name).unlink()
    assert Checkpoints(run).find(None, True) == run / "global_step_1"
    assert "global_step_2 is incomplete" in caplog.text and name in caplog.text
    with pytest.raises(CheckpointError, match=rf"global_step_2 is incomplete: {name}"):
        Checkpoints(run).find(str(run / "global_step_2"), True)


def test_a_file_cut_short_makes_a_checkpoint_incomplete(run, caplog):
    shard = run / "global_step_2" / "actor/model/shard.safetensors"
    shard.write_bytes(shard.read_bytes()[:500])
    assert Checkpoints(run).find(None, True) == run / "global_step_1"
    assert "has 500 bytes, 1000 were written" in caplog.text


def test_a_damaged_file_is_named_and_nothing_else_is_taken_in_its_place(run):
    shard = run / "global_step_2" / "actor/model/shard.safetensors"
    data = bytearray(shard.read_bytes())
    data[700] ^= 1
    shard.write_bytes(data)
    checkpoints = Checkpoints(run)
    found = checkpoints.find(None, True)
    with pytest.raises(CheckpointError, match=r"actor/model/shard\.safetensors is damaged"):
        load(checkpoints, found)
    load(Checkpoints(run), run / "global_step_1")


def test_a_checkpoint_in_the_making_is_none(run, caplog):
    (run / "global_step_3.unfinished").mkdir()
    assert Checkpoints(run).find(None, True) == run / "global_step_2"
    save(Checkpoints(run), 4)
    assert "3.unfinished" not in steps(run)


def test_a_first_checkpoint_that_was_never_finished_does_not_stop_a_start(tmp_path, caplog):
    (tmp_path / "run" / "global_step_1.unfinished").mkdir(parents=True)
    assert Checkpoints(tmp_path / "run").find(None, True) is None
    assert "never finished" in caplog.text
    assert Checkpoints(tmp_path / "nothing").find(None, True) is None


def test_a_run_whose_checkpoints_are_all_broken_does_not_start_anew_by_itself(run):
    for step in (1, 2):
        (run / f"global_step_{step}" / "manifest.json").unlink()
    with pytest.raises(ConfigError, match=r"no complete checkpoint.*find_last_checkpoint=false"):
        Checkpoints(run).find(None, True)
    assert Checkpoints(run).find(None, False) is None


@pytest.mark.parametrize("given", ("global_step_1", "global_step_1/actor", "global_step_1/"))
def test_a_checkpoint_is_named_at_any_level(run, given):
    assert Checkpoints(run).find(str(run / given), True) == run / "global_step_1"


def test_best_and_last_are_names_in_this_run_and_behind_another(tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    checkpoints = Checkpoints(run)
    for step, score in ((1, 0.2), (2, 0.9), (3, 0.5)):
        save(checkpoints, step, score)
    for where, prefix in ((run, ""), (other, f"{run}/")):
        assert Checkpoints(where).find(f"{prefix}best", True) == run / "global_step_2"
        assert Checkpoints(where).find(f"{prefix}last", True) == run / "global_step_3"
    assert Checkpoints(other).find(str(run), True) == run / "global_step_3"


@pytest.mark.parametrize("given", ("global_step_9", "nowhere", "global_step_1/actor/model", "best"))
def test_a_wrong_path_stops(run, given):
    with pytest.raises(ConfigError, match=r"load_checkpoint_path"):
        Checkpoints(run).find(str(run / given), True)


def test_a_wrong_step_names_those_that_are_there(run):
    with pytest.raises(ConfigError, match=r"checkpoints of steps 1, 2"):
        Checkpoints(run).find(str(run / "global_step_9"), True)


def test_a_checkpoint_of_easyr1_is_refused_by_name(tmp_path):
    actor = tmp_path / "global_step_5" / "actor"
    actor.mkdir(parents=True)
    (actor / "model_world_size_1_rank_0.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"actor/model_world_size_1_rank_0\.pt is a pickle.*model_path"):
        Checkpoints(tmp_path).find(str(tmp_path / "global_step_5"), True)


def test_a_later_format_asks_for_the_version_that_wrote_it(run):
    file = run / "global_step_2" / "manifest.json"
    file.write_text(file.read_text().replace('"format_version": 1', '"format_version": 7'))
    with pytest.raises(CheckpointError, match="format version 7, this version of easyr1 reads 1"):
        Checkpoints(run).find(str(run / "global_step_2"), True)


class Bomb:
    """Something whose unpickling leaves a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_a_pickle_in_any_file_is_never_run(run, tmp_path):
    mark = tmp_path / "mark"
    bomb = pickle.dumps(Bomb(mark))
    folder = run / "global_step_2"
    for name in [*manifest.list_files(folder), "manifest.json"]:
        kept = (folder / name).read_bytes()
        (folder / name).write_bytes(bomb)
        with nullcontext() if "huggingface" in name else pytest.raises(CheckpointError):
            load(Checkpoints(run), Checkpoints(run).find(str(folder), True))
        (folder / name).write_bytes(kept)
        assert not mark.exists()
    pickle.loads(bomb)
    assert mark.exists()  # the bomb was live


@pytest.mark.parametrize("where", ("model", "optim", "huggingface", "state", "manifest", "tracker"))
def test_a_full_disk_is_one_clear_error_and_the_checkpoint_before_is_intact(run, monkeypatch, where):
    full = OSError(errno.ENOSPC, "No space left on device")

    def fail(*_args, **_kwargs):
        raise full

    checkpoints = Checkpoints(run)
    load(checkpoints, run / "global_step_2")
    copy = fail if where == "huggingface" else copy_model_files
    if where in ("manifest", "tracker"):
        name = {"manifest": "write_manifest", "tracker": "write_synced"}[where]
        monkeypatch.setattr(f"easyr1.trainer.checkpoint.{name}", fail)
    if where == "state":
        monkeypatch.setattr("easyr1.trainer.checkpoint.json.dumps", fail)
    engine = Engine(where if where in ("model", "optim") else None)
    with pytest.raises(CheckpointError, match=r"step 3 could not be saved.*No space left.*global_step_2 is intact"):
        checkpoints.save(3, {"actor": engine}, {}, None, copy)
    monkeypatch.undo()
    assert not list(run.glob("*.unfinished"))  # its space is free again
    found = Checkpoints(run).find(None, True)
    load(Checkpoints(run), found)
    assert found.name == ("global_step_3" if where == "tracker" else "global_step_2")


def test_a_real_limit_on_file_size_is_told_likewise(run):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
            save(Checkpoints(run), 3)
        except CheckpointError as error:
            status = 0 if "File too large" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert steps(run) == ["1", "2"]


@pytest.mark.parametrize("error", (RuntimeError("rank 1 died"), KeyboardInterrupt()))
def test_an_error_of_another_kind_is_passed_on_and_leaves_nothing_but_the_checkpoint_before(run, error):
    checkpoints = Checkpoints(run, limit=1)
    with pytest.raises(type(error)) as caught:
        save(checkpoints, 3, fails_at="optim", error=error)
    assert caught.value is error
    assert steps(run) == ["1", "2"]
    assert Checkpoints(run).find(None, True) == run / "global_step_2"
    save(checkpoints, 3)
    assert steps(run) == ["3"]


def test_the_limit_counts_over_restarts_and_keeps_best_and_last(tmp_path):
    run = tmp_path / "run"
    for step, score in ((1, 0.1), (2, 0.8), (3, 0.3), (4, None), (5, 0.2)):
        checkpoints = Checkpoints(run, limit=2)  # a restart each time
        found = checkpoints.find(None, True)
        if found is not None:
            load(checkpoints, found)
        save(checkpoints, step, score)
    assert steps(run) == ["2", "5"]
    assert json.loads((run / "checkpoint_tracker.json").read_text())["best_global_step"] == 2


def test_the_new_checkpoint_is_there_before_an_old_one_goes(run, monkeypatch):
    seen = []
    monkeypatch.setattr("easyr1.trainer.checkpoint.shutil.rmtree", lambda path, **_: seen.append((path, steps(run))))
    save(Checkpoints(run, limit=1), 3)
    assert seen and all("3" in there for _, there in seen)


def test_what_no_run_wrote_is_never_deleted(run, caplog):
    (run / "global_step_1" / "actor" / "huggingface" / "model.safetensors").write_bytes(b"an export")
    (run / "global_step_7x").mkdir()
    (run / "notes").mkdir()
    save(Checkpoints(run, limit=1), 3)
    assert steps(run) == ["1", "3", "7x"] and (run / "notes").is_dir()
    assert "model.safetensors" in caplog.text and "not deleted" in caplog.text


def test_an_export_into_a_checkpoint_does_not_damage_it(run):
    (run / "global_step_2" / "actor" / "huggingface" / "config.json").write_text('{"dtype": "bfloat16"}')
    found = Checkpoints(run).find(None, True)
    assert found == run / "global_step_2" and load(Checkpoints(run), found)["step"] == 2


def test_the_best_that_is_gone_is_the_best_no_more(tmp_path):
    run = tmp_path / "run"
    save(Checkpoints(run), 1, 0.9)
    for path in sorted((run / "global_step_1").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (run / "global_step_1").rmdir()
    checkpoints = Checkpoints(run)
    save(checkpoints, 2, 0.5)
    assert checkpoints.record.best_global_step == 2


def test_a_best_that_somebody_deleted_is_not_waited_for(tmp_path):
    run = tmp_path / "run"
    checkpoints = Checkpoints(run)
    save(checkpoints, 1, 0.9)
    save(checkpoints, 2, 0.1)
    shutil.rmtree(run / "global_step_1")
    checkpoints = Checkpoints(run)
    load(checkpoints, run / "global_step_2")
    assert checkpoints.record.best_global_step is None and checkpoints.record.last_global_step == 2
    save(checkpoints, 3, 0.5)
    assert checkpoints.record.best_global_step == 3


def test_the_validation_of_a_checkpoint_that_is_there_already_counts(run):
    checkpoints = Checkpoints(run)
    load(checkpoints, run / "global_step_2")
    checkpoints.note_score(2, 0.4)
    record = json.loads((run / "checkpoint_tracker.json").read_text())
    assert record["best_global_step"] == 2 and record["best_val_reward_score"] == 0.4


def test_a_step_that_is_made_anew_takes_its_place_and_nothing_is_lost(run):
    kept = (run / "global_step_2" / "actor/model/shard.safetensors").read_bytes()
    for _ in range(2):
        checkpoints = Checkpoints(run)
        checkpoints.set_aside_after(run / "global_step_1")
        save(checkpoints, 2)
    assert steps(run) == ["1", "2", "2.superseded", "2.superseded-2"]
    assert (run / "global_step_2.superseded" / "actor/model/shard.safetensors").read_bytes() == kept


def test_a_new_start_in_an_old_folder_that_dies_before_its_first_save_can_start_again(run):
    checkpoints = Checkpoints(run)
    checkpoints.set_aside_after(checkpoints.find(None, False))
    assert Checkpoints(run).find(None, True) is None
    assert json.loads((run / "checkpoint_tracker.json").read_text())["last_global_step"] is None


def test_a_run_folder_behind_a_link_is_the_same_run(run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    assert Checkpoints(tmp_path / "link").is_own(run / "global_step_2")
    assert Checkpoints(run).is_own(tmp_path / "link" / ".." / "run" / "global_step_2")


def test_the_oldest_go_first(tmp_path):
    run = tmp_path / "run"
    for step in range(1, 6):
        save(Checkpoints(run), step)
    save(Checkpoints(run, limit=2), 6)
    assert steps(run) == ["5", "6"]


def test_the_record_of_another_run_is_not_taken_up(tmp_path):
    save(Checkpoints(tmp_path / "other"), 7, 0.9)
    checkpoints = Checkpoints(tmp_path / "run")
    load(checkpoints, tmp_path / "other" / "global_step_7")
    save(checkpoints, 8, 0.1)
    assert checkpoints.record.best_global_step == 8


def test_a_validation_after_the_save_is_known_to_the_next_start(run):
    checkpoints = Checkpoints(run)
    assert not load(checkpoints, run / "global_step_2").get("validated")
    checkpoints.note_score(2, 0.4)
    again = Checkpoints(run)
    assert load(again, run / "global_step_2")["validated"] and again.record.best_val_reward_score == 0.4


def test_a_tracker_that_a_crash_left_behind_is_made_good(tmp_path):
    run = tmp_path / "run"
    checkpoints = Checkpoints(run)
    save(checkpoints, 1, 0.1)
    before = (run / "checkpoint_tracker.json").read_text()
    save(checkpoints, 2, 0.9)
    (run / "checkpoint_tracker.json").write_text(before)
    again = Checkpoints(run)
    again.read_state(again.find(None, True))
    assert (run / "checkpoint_tracker.json").read_text() == before
    again.make_tracker_good()
    assert json.loads((run / "checkpoint_tracker.json").read_text())["best_global_step"] == 2
    assert Checkpoints(run).find("best", True) == run / "global_step_2"


def test_what_cannot_be_deleted_stays_and_the_run_goes_on(run, monkeypatch, caplog):
    def busy(*_args, **_kwargs):
        raise OSError(errno.EBUSY, "Device or resource busy")

    (run / "global_step_9.deleted").mkdir()
    monkeypatch.setattr("easyr1.trainer.checkpoint.shutil.rmtree", busy)
    save(Checkpoints(run, limit=1), 3)
    assert "cannot be deleted" in caplog.text and "3" in steps(run)


def test_a_linked_checkpoint_is_not_deleted(run, tmp_path):
    (run / "global_step_1").rename(tmp_path / "elsewhere")
    (run / "global_step_1").symlink_to(tmp_path / "elsewhere")
    save(Checkpoints(run, limit=1), 3)
    assert steps(run) == ["1", "3"] and (tmp_path / "elsewhere" / "manifest.json").is_file()


def test_a_changed_state_is_told_as_damage_before_anything_is_compared(run):
    file = run / "global_step_2" / "trainer_state.json"
    file.write_text(file.read_text().replace('"config"', '"confih"'))
    with pytest.raises(CheckpointError, match=r"trainer_state\.json is damaged"):
        Checkpoints(run).read_state(run / "global_step_2")


def test_a_step_that_is_there_already_is_set_aside_not_overwritten(run):
    kept = (run / "global_step_2" / "actor/model/shard.safetensors").read_bytes()
    save(Checkpoints(run), 2)
    assert (run / "global_step_2.superseded" / "actor/model/shard.safetensors").read_bytes() == kept
