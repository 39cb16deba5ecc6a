"""A run in Trackio. The only file that knows trackio, which is imported when a run asks for it.

It keeps runs on this machine, in TRACKIO_DIR; with TRACKIO_SPACE_ID it sends them to a Space of the Hugging Face hub.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from easyr1.tracking.loggers import Run
from easyr1.tracking.services import importing, start
from easyr1.tracking.tables import GENERATIONS, answer_table, picture_of

NAME = "trackio"


class TrackioLogger:
    """Metrics, answers and configuration of a run in Trackio.

    Trackio finds a run to go on with by its name, the latest one where several have it. Steps that a resumed run
    makes anew are drawn twice.
    """

    def __init__(self, run: Run) -> None:
        with importing(NAME):
            import trackio  # pyright: ignore[reportMissingImports]

            if not hasattr(trackio, "init"):
                raise ImportError("the folder ./trackio is no package")
        self._trackio = trackio
        self._run = start(NAME, lambda: trackio.init(**init_arguments(run, os.environ), embed=False))
        self.where = os.environ.get("TRACKIO_SPACE_ID") or f'trackio show --project "{self._run.project}"'

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def log_samples(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        if not rows:
            return
        columns, cells = answer_table(rows, self._picture)
        self._run.log({GENERATIONS: self._trackio.Table(columns=columns, data=cells)}, step=step)

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        pass

    def identity(self) -> dict[str, str]:
        return {"project": self._run.project, "name": self._run.name, "id": str(self._run.id)}

    def finish(self, failed: bool = False) -> None:
        self._trackio.finish()

    def _picture(self, data: object) -> Any:
        picture = picture_of(data)
        return "" if picture is None else self._trackio.Image(picture)


def init_arguments(run: Run, environ: Mapping[str, str]) -> dict[str, Any]:
    """What trackio.init is called with; TRACKIO_PROJECT wins over the configuration."""
    config = run.config.get("config", {})
    trainer, stored = config.get("trainer", {}), run.identity.get(NAME, {})
    named = {
        "project": environ.get("TRACKIO_PROJECT") or stored.get("project") or trainer.get("project_name") or "easyr1",
        "name": stored.get("name") or trainer.get("experiment_name"),
        "resume": "allow" if stored else "never",
    }
    return named | {"config": {**config, "set_by_user": run.config.get("set_by_user", [])}}
