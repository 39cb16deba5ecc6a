"""A run as TensorBoard event files. The only file that knows tensorboard, which is imported when a run asks for it.

TensorBoard's own writer is used, which needs no torch.
"""

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from easyr1.tracking.loggers import Run
from easyr1.tracking.services import importing, start
from easyr1.tracking.tables import GENERATIONS, PICTURES, open_picture, pictures_of, text_table

NAME = "tensorboard"
FLUSH_S = 10


class TensorboardLogger:
    """Scalars, answers as Markdown tables, pictures, and the configuration as text.

    The folder is TENSORBOARD_DIR/<project>/<experiment>, as in EasyR1. A resumed run goes on in it: its file begins
    with a mark that makes TensorBoard leave out what was written for later steps before.
    """

    def __init__(self, run: Run) -> None:
        with importing(NAME):
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.plugins.text.summary_v2 import text_pb
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        self._events: Any = event_pb2
        self._summaries: Any = summary_pb2
        self._text_pb = text_pb
        self._folder = event_folder(run, os.environ)
        self._writer = start(NAME, lambda: EventFileWriter(str(self._folder), flush_secs=FLUSH_S))
        self.where = f"tensorboard --logdir {self._folder.parent}"
        if run.resume_step is not None and run.resume_step >= 0:
            log = self._events.SessionLog
            self._add(run.resume_step + 1, session_log=log(status=log.START))
        config = json.dumps(run.config, indent=2, default=str)
        self._add(0, summary=text_pb("config", f"```json\n{config}\n```"))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        values = [self._summaries.Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._add(step, summary=self._summaries.Summary(value=values))

    def log_samples(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        if not rows:
            return
        self._add(step, summary=self._text_pb(GENERATIONS, text_table(rows)))
        values = [self._picture(place, data) for place, (data, _) in enumerate(pictures_of(rows), start=1)]
        if values:
            self._add(step, summary=self._summaries.Summary(value=values))

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        pass

    def identity(self) -> dict[str, str]:
        return {"folder": str(self._folder)}

    def finish(self, failed: bool = False) -> None:
        self._writer.close()

    def _picture(self, place: int, data: bytes) -> Any:
        width, height = open_picture(data).size
        image = self._summaries.Summary.Image(width=width, height=height, encoded_image_string=data)
        return self._summaries.Summary.Value(tag=f"{PICTURES}/{place}", image=image)

    def _add(self, step: int, **what: Any) -> None:
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, **what))


def event_folder(run: Run, environ: Mapping[str, str]) -> Path:
    """The folder of the event files: the one that a resumed run wrote to, unless TENSORBOARD_DIR says otherwise."""
    stored = run.identity.get(NAME, {}).get("folder")
    if stored and not environ.get("TENSORBOARD_DIR"):
        return Path(stored)
    trainer = run.config.get("config", {}).get("trainer", {})
    names = (trainer.get("project_name") or "easyr1", trainer.get("experiment_name") or "run")
    top = Path(environ.get("TENSORBOARD_DIR") or "tensorboard_log").expanduser().absolute()
    return top.joinpath(*(re.sub(r"[^\w.-]", "_", name) for name in names))
