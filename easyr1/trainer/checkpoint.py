"""Checkpoint folders of a run: written under a temporary name, renamed, recorded, and only then old ones pruned.

<run folder>/checkpoint_tracker.json
<run folder>/global_step_<k>/actor/...           weights, optimizer, huggingface/ (configuration, tokenizer)
<run folder>/global_step_<k>/critic/...          weights and optimizer of the critic, where there is one
<run folder>/global_step_<k>/trainer_state.json  configuration, data position, KL coefficient, groups that wait, ...
<run folder>/global_step_<k>/manifest.json       every file with its size and checksum, written last
"""

import json
import logging
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, Protocol

from easyr1.data.model_files import FILES_FOLDER
from easyr1.errors import CheckpointError, ConfigError
from easyr1.manifest import (
    MANIFEST_FILE,
    check_complete,
    check_contents,
    foreign_files,
    read_json,
    refuse_pickled,
    sync,
    write_manifest,
    write_synced,
)

log = logging.getLogger(__name__)

TRACKER_FILE = "checkpoint_tracker.json"
STATE_FILE = "trainer_state.json"
UNREAD = (FILES_FOLDER,)  # no resume reads it, and an export may change it
LOAD_KEY = "trainer.load_checkpoint_path"
FIND_KEY = "trainer.find_last_checkpoint"
DEBRIS = re.compile(r"global_step_\d+\.(unfinished|deleted)")


class Saved(Protocol):
    """What can be put into a folder."""

    def save(self, folder: Path, model_only: bool = False) -> None: ...


@dataclass(frozen=True)
class Record:
    """What checkpoint_tracker.json says, under EasyR1's names."""

    best_global_step: int | None = None
    best_val_reward_score: float | None = None
    last_global_step: int | None = None
    last_actor_path: str | None = None
    last_val_reward_score: float | None = None  # None where that step is not validated; ours


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path, limit: int = -1, model_only: bool = False) -> None:
        self.folder = folder
        self.limit = limit
        self.model_only = model_only
        self.record = Record()
        self._told: set[Path] = set()

    def find(self, path: str | None, find_last: bool) -> Path | None:
        """The checkpoint to resume from: the one at `path`, else with `find_last` the run folder's last complete one.

        `path` may be global_step_<k>, its actor folder, a run folder, or best or last (of the run folder, or behind
        another's path). ConfigError where there is none, CheckpointError that names what an incomplete one lacks.
        """
        if path is not None:
            return self._named(path)
        return last_complete(self.folder) if find_last else None

    def _named(self, given: str) -> Path:
        path = Path(given).expanduser()
        if path.name in ("best", "last") and not path.exists():
            run = self.folder if len(path.parts) == 1 else path.parent
            return self._best_of(run) if path.name == "best" else self._last_of(run)
        folder = path.parent if path.name in ("actor", "critic") else path
        if not folder.is_dir():
            raise ConfigError(LOAD_KEY, f"there is no folder {folder.absolute()}{_checkpoints_at(folder.parent)}")
        if step_of(folder) is None:
            return self._last_of(folder)
        check_readable(folder)
        return folder

    def _last_of(self, run: Path) -> Path:
        found = last_complete(run)
        if found is None:
            raise ConfigError(
                LOAD_KEY,
                f"{run.absolute()} holds no checkpoint; give a folder global_step_<k>, its actor, a run folder, "
                "best or last",
            )
        return found

    def _best_of(self, run: Path) -> Path:
        step = (_read_record(run) or Record()).best_global_step
        if step is None:
            raise ConfigError(
                LOAD_KEY, f"{run.absolute()} has no best checkpoint: none was validated{_checkpoints_at(run)}"
            )
        return self._named(str(step_folder(run, step)))

    def read_state(self, folder: Path) -> dict[str, Any]:
        """The trainer's state in a checkpoint. Of an own one, its record of best and last is taken up.

        The tracker knows more where the step was validated after it was saved. Nothing is written.
        """
        check_contents(folder, below=STATE_FILE, but=UNREAD)
        state = read_json(folder / STATE_FILE)
        if not self.is_own(folder):
            return state
        self.record, tracker = Record(**state["record"]), _read_record(self.folder) or Record()
        if tracker.last_global_step == state["step"] and tracker.last_val_reward_score is not None:
            self.record, state = tracker, state | {"validated": True}
        best = self.record.best_global_step
        if best is not None and not (step_folder(self.folder, best) / MANIFEST_FILE).is_file():
            self.record = replace(self.record, best_global_step=None, best_val_reward_score=None)
        return state

    def make_tracker_good(self) -> None:
        """Once a state was read: a run may have died between its last checkpoint and the tracker."""
        last, tracker = self.record.last_global_step, _read_record(self.folder) or Record()
        if last is not None and last > (tracker.last_global_step or 0):
            self._write(self.record)

    def check(self, folder: Path) -> None:
        """Every file that a resume reads is what was written; CheckpointError names the first that is not."""
        check_contents(folder, but=UNREAD)

    def is_own(self, folder: Path) -> bool:
        return folder.resolve().parent == self.folder.resolve()

    def save(
        self,
        step: int,
        engines: Mapping[str, Saved],
        state: Mapping[str, Any],
        val_score: float | None,
        copy_model_files: Callable[[Path], object],
    ) -> Path:
        """Write the checkpoint of `step`; `val_score` is the validation score of this very step, if there is one.

        CheckpointError if it cannot be written; the checkpoints before it are as they were.
        """
        target = step_folder(self.folder, step)
        unfinished = target.with_name(f"{target.name}.unfinished")
        record = self._with(step, val_score)
        try:
            for path in _debris(self.folder):
                _delete(path)
            unfinished.mkdir(parents=True, exist_ok=True)
            for name, engine in engines.items():
                engine.save(unfinished / name, self.model_only)
            copy_model_files(unfinished / "actor")
            whole = {"step": step, **state, "record": asdict(record)}
            (unfinished / STATE_FILE).write_text(json.dumps(whole, indent=2), encoding="utf-8")
            write_manifest(unfinished)
            self._put_in_place(unfinished, target)
            self._write(record)
        except (OSError, CheckpointError) as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise CheckpointError(
                f"the checkpoint of step {step} could not be saved ({error}); {self._left()}. Free some space, or "
                "lower trainer.save_limit, and start again"
            ) from error
        except BaseException:  # the ranks have failed, or the run is to end
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        try:
            self._prune()
        except OSError as error:
            log.warning("%s: older checkpoints stay (%s)", self.folder, error)
        return target

    def note_score(self, step: int, val_score: float) -> None:
        """The validation of the last step, whose checkpoint is there already."""
        try:
            self._write(self._with(step, val_score))
        except OSError as error:
            raise CheckpointError(f"{self.folder / TRACKER_FILE} cannot be written ({error})") from error

    def _with(self, step: int, val_score: float | None) -> Record:
        best_step, best_score = self.record.best_global_step, self.record.best_val_reward_score
        if val_score is not None and (best_score is None or val_score > best_score):
            best_step, best_score = step, val_score
        return Record(best_step, best_score, step, str(step_folder(self.folder, step) / "actor"), val_score)

    def _put_in_place(self, unfinished: Path, target: Path) -> None:
        if target.exists():
            _set_aside(target)
        unfinished.rename(target)
        sync(self.folder)

    def _write(self, record: Record) -> None:
        write_synced(self.folder / TRACKER_FILE, asdict(record))
        self.record = record

    def _left(self) -> str:
        """What there is to go on from."""
        last = self.record.last_global_step
        return "there is no earlier one" if last is None else f"{step_folder(self.folder, last)} is intact"

    def _prune(self) -> None:
        """Delete the oldest checkpoints beyond the limit; best and last stay and count. What others wrote stays."""
        if self.limit < 0:
            return
        kept = {self.record.best_global_step, self.record.last_global_step}
        steps = [
            step for step in steps_in(self.folder) if step in kept or self._is_ours(step_folder(self.folder, step))
        ]
        surplus = len(steps) - max(self.limit, 1)
        for step in [step for step in steps if step not in kept][: max(surplus, 0)]:
            folder = step_folder(self.folder, step)
            doomed = folder.with_name(f"{folder.name}.deleted")
            folder.rename(doomed)  # so that what a crash leaves of it is not taken for a checkpoint
            _delete(doomed)

    def _is_ours(self, folder: Path) -> bool:
        """Whether all of it was written by a run; if not, that is said once."""
        try:
            foreign = foreign_files(folder)
        except CheckpointError as error:
            foreign, why = [MANIFEST_FILE], str(error)
        else:
            why = f"{folder} holds files that no run wrote ({', '.join(foreign[:3])})"
        if folder.is_symlink():
            foreign, why = [folder.name], f"{folder} is a link"
        if foreign and folder not in self._told:
            log.warning("%s; it is not deleted and not counted by trainer.save_limit", why)
            self._told.add(folder)
        return not foreign

    def set_aside_after(self, start: Path | None) -> None:
        """Before training: rename this folder's checkpoints of steps after `start` to global_step_<k>.superseded.

        `start` is what `find` gave; from None, or a checkpoint of another folder, all steps are made anew.
        """
        first = step_of(start) or 0 if start is not None and self.is_own(start) else 0
        superseded = [step for step in steps_in(self.folder) if step > first]
        for step in superseded:
            _set_aside(step_folder(self.folder, step))
        if superseded:
            self._write(self.record)


def last_complete(run_folder: Path) -> Path | None:
    """The last complete checkpoint; incomplete ones are passed over with a warning. None where no run ever saved.

    ConfigError where there were checkpoints and none is complete: a new start would hide that.
    """
    steps = steps_in(run_folder)
    for step in reversed(steps):
        fault = _fault(step_folder(run_folder, step))
        if fault is None:
            return step_folder(run_folder, step)
        log.warning("%s; it is passed over", fault)
    debris = [path.name for path in _debris(run_folder)]
    if debris:
        log.warning("%s: %s was never finished; it is passed over", run_folder, ", ".join(debris))
    if steps or (_read_record(run_folder) or Record()).last_global_step is not None:
        raise ConfigError(
            FIND_KEY,
            f"{run_folder} holds no complete checkpoint any more; name one with {LOAD_KEY}, or set {FIND_KEY}=false "
            "to start anew",
        )
    return None


def check_readable(folder: Path) -> None:
    """CheckpointError unless the folder holds a complete checkpoint of ours; reads no content."""
    refuse_pickled(folder)
    check_complete(folder, but=UNREAD)


def _fault(folder: Path) -> CheckpointError | None:
    try:
        check_readable(folder)
    except CheckpointError as error:
        return error
    return None


def _delete(folder: Path) -> None:
    """A run goes on where something cannot be deleted; the next save tries again."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        log.warning("%s cannot be deleted (%s)", folder, error)


def _set_aside(folder: Path) -> None:
    names = (
        folder.with_name(f"{folder.name}.superseded{suffix}") for suffix in chain([""], map("-{}".format, count(2)))
    )
    target = next(name for name in names if not name.exists())
    folder.rename(target)
    log.warning("%s was set aside as %s: this run makes that step anew", folder, target.name)


def step_folder(run_folder: Path, step: int) -> Path:
    return run_folder / f"global_step_{step}"


def step_of(folder: Path) -> int | None:
    """The step in a checkpoint folder's name, or None if it is no such folder.

    >>> step_of(Path("run/global_step_160")), step_of(Path("run/global_step_160.unfinished"))
    (160, None)
    """
    match = re.fullmatch(r"global_step_(\d+)", folder.name)
    return int(match[1]) if match else None


def steps_in(run_folder: Path) -> list[int]:
    """Steps of the checkpoints in a run folder, in order."""
    paths = run_folder.iterdir() if run_folder.is_dir() else ()
    return sorted(step for path in paths if (step := step_of(path)) is not None)


def what_came_back(state: Mapping[str, Any], optimizers: bool) -> str:
    """For people: what a run has again, and what it has not."""
    epoch, row = state["loader"]["epoch"], state["loader"]["index"]
    waiting, record = len(state["waiting_groups"]), Record(**state["record"])
    best = f"best score {record.best_val_reward_score} of step {record.best_global_step}"
    names = ", ".join(f"{name} {'/'.join(ids.values())}" for name, ids in state["trackers"].items() if ids)
    parts = [
        "weights",
        *(["optimizer"] if optimizers else []),
        "learning-rate schedule",
        "KL coefficient",
        "random states",
        f"data position (epoch {epoch}, row {row})",
        *([f"{waiting} group{'s that wait' if waiting > 1 else ' that waits'}"] if waiting else []),
        *([best] if record.best_global_step is not None else []),
        *([f"tracker runs ({names})"] if names else []),
    ]
    lost = "" if optimizers else "; not the optimizer, which starts anew (saved with trainer.save_model_only)"
    return ", ".join(parts) + lost


def _debris(run_folder: Path) -> list[Path]:
    """What a crash left of checkpoints that were being written or deleted."""
    paths = run_folder.iterdir() if run_folder.is_dir() else ()
    return sorted(path for path in paths if DEBRIS.fullmatch(path.name))


def _checkpoints_at(run_folder: Path) -> str:
    """The steps that are there, for an error."""
    steps = ", ".join(map(str, steps_in(run_folder)))
    return f"; {run_folder.absolute()} has checkpoints of steps {steps}" if steps else ""


def _read_record(folder: Path) -> Record | None:
    file = folder / TRACKER_FILE
    if not file.is_file():
        return None
    values = read_json(file)
    return Record(**{name: values.get(name) for name in Record.__dataclass_fields__})
