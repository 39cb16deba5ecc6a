"""Where a run's numbers, answers and events go. Knows metric names and files, nothing of how numbers came about.

A new logger is a class that meets `Logger` and a line in `LOGGERS`; one with a library of its own has its own file.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from easyr1.errors import ConfigError
from easyr1.tracking.jsonl import JsonLines, move_rows_aside, replace_text, timestamp
from easyr1.tracking.services import attempt

log = logging.getLogger(__name__)

CONFIG_FILE = "config.json"
METRICS_FILE = "metrics.jsonl"
GENERATIONS_FILE = "generations.jsonl"
EVENTS_FILE = "events.jsonl"


@dataclass(frozen=True)
class Run:
    """What a logger may know of the run that it follows."""

    folder: Path
    console: Console = field(default_factory=lambda: Console(stderr=True))
    config: Mapping[str, Any] = field(default_factory=dict)  # as config.json holds it
    total_steps: int | None = None
    resume_step: int | None = None  # the step of the checkpoint that the run goes on from
    identity: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by logger, as the checkpoint stored it


class Logger(Protocol):
    """One place that a run is logged to."""

    where: str  # how people find it there; empty where that is plain

    def __init__(self, run: Run) -> None: ...

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def log_samples(self, rows: Sequence[Mapping[str, Any]], step: int) -> None: ...

    def event(self, kind: str, fields: Mapping[str, Any]) -> None: ...

    def identity(self) -> dict[str, str]:
        """What the service calls this run, for a later run that goes on with it; empty without a service."""
        ...

    def finish(self, failed: bool = False) -> None:
        """Send what is left; `failed`: the run ended by an error, and its service shall show that."""
        ...


class Tracker:
    """Hands everything to each of the named loggers. A logger that fails is warned of once and never stops a run.

    A logger that cannot even start does stop it: that shows in the first second, when it costs nothing.
    """

    def __init__(
        self,
        names: Sequence[str],
        run_folder: Path,
        console: Console,
        config: Mapping[str, Any],
        *,
        total_steps: int | None = None,
        resume_step: int | None = None,
        identity: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """`config` is what config.json shall hold, `identity` what an earlier tracker of this run called its own.

        Raises ConfigError for a name that is not in LOGGERS and for a logger that cannot start.
        """
        run = Run(Path(run_folder), console, config, total_steps, resume_step, identity or {})
        makers = {name: _maker(name) for name in names}
        self._loggers: dict[str, Logger] = {}
        self._warned: set[str] = set()
        self._stored = run.identity
        try:
            for name, make in makers.items():
                self._loggers[name] = make(run)
        except BaseException:
            self.finish(failed=True)  # those that did start
            raise

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log named numbers of one step; a step may be logged in several parts."""
        self._tell_all("log", metrics, step)

    def log_samples(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Log answers: prompt, response, ground_truth, scores, and whatever else a row holds.

        The report also reads `row` (which data row it is) and `images` (PNG files as base64 text).
        """
        self._tell_all("log_samples", rows, step)

    def log_groups(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Log answers of training groups: into the run folder alone, for its report."""
        if "file" in self._loggers:
            self._tell("file", self._loggers["file"], "log_samples", rows, step)

    def event(self, kind: str, **fields: Any) -> None:
        """Log something that happened once. A `message` is for people and also goes to the console."""
        self._tell_all("event", kind, fields)

    def identity(self) -> dict[str, dict[str, str]]:
        """What each service calls this run, by the logger's name, also one that is not logged to this time."""
        found = {name: self._tell(name, logger, "identity") for name, logger in self._loggers.items()}
        stored = {name: dict(names) for name, names in self._stored.items()}
        return stored | {name: names for name, names in found.items() if names}

    def whereabouts(self) -> str:
        """One line: where this run is logged to, and how to log it elsewhere too."""
        on = [f"{name} ({logger.where})" if logger.where else name for name, logger in self._loggers.items()]
        off = [name for name in LOGGERS if name not in self._loggers]
        also = f"[{','.join([*self._loggers, off[0]])}]" if off else ""
        return f"logged to {', '.join(on) or 'nothing'}" + (
            f"; also possible: {', '.join(off)}, for example trainer.logger={also}" if off else ""
        )

    def finish(self, failed: bool = False) -> None:
        """Close every logger; what is logged afterwards is dropped. `failed`: the run ended by an error."""
        self._tell_all("finish", failed)
        self._loggers = {}

    def _tell_all(self, method: str, *args: Any) -> None:
        for name, logger in self._loggers.items():
            self._tell(name, logger, method, *args)

    def _tell(self, name: str, logger: Logger, method: str, *args: Any) -> Any:
        found, error = attempt(lambda: getattr(logger, method)(*args))
        if error is not None and name not in self._warned:
            log.warning("the logger %r failed (%r); training goes on, its next failures stay silent", name, error)
            self._warned.add(name)
        return found


def _maker(name: str) -> Callable[[Run], Logger]:
    if name not in LOGGERS:
        raise ConfigError("trainer.logger", f"no logger is named {name!r}; choose from {', '.join(LOGGERS)}")
    return LOGGERS[name]


class FileLogger:
    """Rows in the run folder: metrics.jsonl, generations.jsonl, events.jsonl; the configuration in config.json.

    Files only grow. When a run resumes at a step, rows of later steps that are made anew move to *-superseded.jsonl
    once the first new row is there, so that a start that fails moves none; events stay, for they did happen.
    """

    def __init__(self, run: Run) -> None:
        self.where = str(run.folder)
        self._folder = run.folder
        self._resume_step = run.resume_step
        self._rows: dict[str, JsonLines] = {}
        self._events = JsonLines(run.folder / EVENTS_FILE)
        if run.config:
            replace_text(run.folder / CONFIG_FILE, json.dumps(run.config, indent=2, default=str) + "\n")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._open(METRICS_FILE).append({"step": step, "time": timestamp(), **metrics})

    def log_samples(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        for row in rows:
            self._open(GENERATIONS_FILE).append({"step": step, **row})

    def _open(self, name: str) -> JsonLines:
        if not self._rows:
            names = (METRICS_FILE, GENERATIONS_FILE)
            step = self._resume_step
            moved = 0 if step is None else sum(move_rows_aside(self._folder / name, step) for name in names)
            self._rows = {name: JsonLines(self._folder / name) for name in names}
            if moved:
                self.event("rows_moved_aside", {"step": step, "rows": moved})
        return self._rows[name]

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        self._events.append({"time": timestamp(), "kind": kind, **fields})

    def identity(self) -> dict[str, str]:
        return {}

    def finish(self, failed: bool = False) -> None:
        for file in (*self._rows.values(), self._events):
            file.close()


def _made_by(module: str, name: str) -> Callable[[Run], Logger]:
    """What makes a logger of a file that is read when a run asks for it."""

    def make(run: Run) -> Logger:
        return getattr(import_module(f"easyr1.tracking.{module}"), name)(run)

    return make


LOGGERS: dict[str, Callable[[Run], Logger]] = {
    "console": _made_by("console_logger", "console_logger"),
    "file": FileLogger,
    "wandb": _made_by("wandb_logger", "WandbLogger"),
    "swanlab": _made_by("swanlab_logger", "SwanlabLogger"),
    "mlflow": _made_by("mlflow_logger", "MlflowLogger"),
    "tensorboard": _made_by("tensorboard_logger", "TensorboardLogger"),
    "trackio": _made_by("trackio_logger", "TrackioLogger"),
}
