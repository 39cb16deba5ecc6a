"""Checkpoint folders of a run: written under a temporary name, renamed, recorded, and only then old ones pruned.

<run folder>/checkpoint_tracker.json
<run folder>/global_step_<k>/actor/...           weights, optimizer, huggingface/ (configuration, tokenizer)
<run folder>/global_step_<k>/critic/...          weights and optimizer of the critic, where there is one
<run folder>/global_step_<k>/trainer_state.json  data position, KL coefficient, groups that wait
"""

import json
import logging
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from easyr1.errors import ConfigError

log = logging.getLogger(__name__)

TRACKER_FILE = "checkpoint_tracker.json"
STATE_FILE = "trainer_state.json"
LOAD_KEY = "trainer.load_checkpoint_path"


class Saved(Protocol):
    """What can be put into a folder and taken out again."""

    def save(self, folder: Path, model_only: bool = False) -> None: ...

    def load(self, folder: Path) -> None: ...


@dataclass(frozen=True)
class Record:
    """What checkpoint_tracker.json says, under EasyR1's names."""

    best_global_step: int | None = None
    best_val_reward_score: float | None = None
    last_global_step: int | None = None
    last_actor_path: str | None = None


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path, limit: int = -1, model_only: bool = False) -> None:
        self.folder = folder
        self.limit = limit
        self.model_only = model_only
        self.record = Record()

    def find(self, path: str | None, find_last: bool) -> Path | None:
        """The checkpoint to resume from: the one at `path`, else with `find_last` the run folder's last one.

        `path` may be global_step_<k>, its actor folder, or a run folder. Also takes up what the tracker says of best
        and last, so that a resumed run goes on counting them.
        """
        if path is not None:
            return self._named(Path(path).expanduser())
        if not find_last:
            return None
        self.record = _read_record(self.folder) or Record()
        if self.record.last_global_step is None:
            return None
        found = step_folder(self.folder, self.record.last_global_step)
        if not (found / STATE_FILE).is_file():
            raise ConfigError(
                "trainer.find_last_checkpoint",
                f"{self.folder / TRACKER_FILE} names {found.name}, which is not there; name a checkpoint with "
                f"{LOAD_KEY}, or set trainer.find_last_checkpoint=false to start anew",
            )
        return found

    def _named(self, path: Path) -> Path:
        folder = path.parent if path.name in ("actor", "critic") else path
        record = _read_record(folder)
        if record is not None and record.last_global_step is not None:
            folder = step_folder(folder, record.last_global_step)
        if step_of(folder) is None or not (folder / STATE_FILE).is_file():
            raise ConfigError(
                LOAD_KEY, f"{path} is no checkpoint; give a folder global_step_<k> with {STATE_FILE}, or a run folder"
            )
        if folder.parent.absolute() == self.folder.absolute():
            self.record = _read_record(self.folder) or Record()
        return folder

    def save(
        self,
        step: int,
        engines: Mapping[str, Saved],
        state: Mapping[str, Any],
        val_score: float | None,
        copy_model_files: Callable[[Path], object],
    ) -> Path:
        """Write the checkpoint of `step`; `val_score` is the validation score of this very step, if there is one."""
        target = step_folder(self.folder, step)
        unfinished = target.with_name(f"{target.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for name, engine in engines.items():
            engine.save(unfinished / name, self.model_only)
        copy_model_files(unfinished / "actor" / "huggingface")
        (unfinished / STATE_FILE).write_text(json.dumps({"step": step, **state}, indent=2))
        shutil.rmtree(target, ignore_errors=True)
        unfinished.rename(target)
        self._note(step, target, val_score)
        self._prune()
        return target

    def _note(self, step: int, target: Path, val_score: float | None) -> None:
        best_step, best_score = self.record.best_global_step, self.record.best_val_reward_score
        if val_score is not None and (best_score is None or val_score > best_score):
            best_step, best_score = step, val_score
        self.record = Record(best_step, best_score, step, str(target / "actor"))
        unfinished = self.folder / f"{TRACKER_FILE}.unfinished"
        unfinished.write_text(json.dumps(asdict(self.record), indent=2))
        unfinished.replace(self.folder / TRACKER_FILE)

    def _prune(self) -> None:
        """Delete the oldest checkpoints beyond the limit; best and last stay and count."""
        if self.limit < 0:
            return
        steps = self._steps()
        kept = {self.record.best_global_step, self.record.last_global_step}
        surplus = len(steps) - max(self.limit, 1)
        for step in [step for step in steps if step not in kept][: max(surplus, 0)]:
            shutil.rmtree(step_folder(self.folder, step))

    def set_aside_after(self, start: Path | None) -> None:
        """Before training: rename this folder's checkpoints of steps after `start` to global_step_<k>.superseded.

        `start` is what `find` gave; from None, or a checkpoint of another folder, all steps are made anew.
        """
        first = 0
        if start is not None and start.parent.absolute() == self.folder.absolute():
            first = step_of(start) or 0
        for step in self._steps():
            if step > first:
                _set_aside(step_folder(self.folder, step))
        if (self.record.best_global_step or 0) > first:
            self.record = replace(self.record, best_global_step=None, best_val_reward_score=None)

    def _steps(self) -> list[int]:
        """Steps of the checkpoints in the folder, in order."""
        paths = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(step for path in paths if (step := step_of(path)) is not None)


def _set_aside(folder: Path) -> None:
    target = folder.with_name(f"{folder.name}.superseded")
    shutil.rmtree(target, ignore_errors=True)
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


def read_state(folder: Path) -> dict[str, Any]:
    """The trainer's state in a checkpoint folder."""
    return json.loads((folder / STATE_FILE).read_text())


def _read_record(folder: Path) -> Record | None:
    file = folder / TRACKER_FILE
    if not file.is_file():
        return None
    known = set(Record.__dataclass_fields__)
    return Record(**{name: value for name, value in json.loads(file.read_text()).items() if name in known})
