"""A run in SwanLab. The only file that knows swanlab, which is imported when a run asks for it.

Every SWANLAB_* variable that the user set wins over the configuration and over what a checkpoint stored.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from easyr1.tracking.loggers import Run
from easyr1.tracking.services import importing, start
from easyr1.tracking.tables import GENERATIONS, PICTURES, open_picture, pictures_of, text_table

NAME = "swanlab"
VARIABLES: Mapping[str, tuple[str, ...]] = {  # argument of swanlab.init -> the variables that say the same
    "project": ("SWANLAB_PROJ_NAME", "SWANLAB_PROJECT", "SWANLAB_PROJECT_NAME"),
    "name": ("SWANLAB_EXP_NAME", "SWANLAB_EXPERIMENT_NAME"),
    "log_dir": ("SWANLAB_LOG_DIR", "SWANLAB_LOGDIR"),
    "id": ("SWANLAB_RUN_ID",),
    "resume": ("SWANLAB_RESUME", "SWANLAB_RUN_RESUME"),
}


class SwanlabLogger:
    """Metrics, answers and configuration of a run in SwanLab; a resumed run goes on in the one that it was.

    SwanLab keeps the first value of a step that comes twice; so of steps that are made anew it shows the old ones.
    """

    def __init__(self, run: Run) -> None:
        with importing(NAME):
            import swanlab  # pyright: ignore[reportMissingImports]

            if not hasattr(swanlab, "init"):
                raise ImportError("the folder ./swanlab is no package")
        self._swanlab = swanlab
        run.folder.mkdir(parents=True, exist_ok=True)
        self._run = start(NAME, lambda: swanlab.init(**init_arguments(run, os.environ)))
        mode = self._run.mode
        self.where = self._run.url if mode == "online" else f"{mode}: {self._run.dir}"

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def log_samples(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        if not rows:
            return
        found: dict[str, Any] = {GENERATIONS: self._swanlab.Text(text_table(rows))}
        pictures = [self._swanlab.Image(open_picture(data), caption=caption) for data, caption in pictures_of(rows)]
        self._run.log(found | ({PICTURES: pictures} if pictures else {}), step=step)

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        pass

    def identity(self) -> dict[str, str]:
        return {"id": str(self._run.id)}

    def finish(self, failed: bool = False) -> None:
        self._run.finish(*(("crashed", "the run ended by an error") if failed else ("success",)))


def init_arguments(run: Run, environ: Mapping[str, str]) -> dict[str, Any]:
    """What swanlab.init is called with: nothing that a variable of `environ` already says."""
    config = run.config.get("config", {})
    trainer = config.get("trainer", {})
    stored = run.identity.get(NAME, {}).get("id")
    wanted = {
        "project": trainer.get("project_name"),
        "name": trainer.get("experiment_name"),
        "log_dir": environ.get("SWANLAB_DIR") or str(run.folder.absolute() / "swanlog"),  # SWANLAB_DIR is EasyR1's
        "id": stored,
        "resume": "allow" if stored or environ.get("SWANLAB_RUN_ID") else None,
    }
    left = {name: value for name, value in wanted.items() if value and not any(map(environ.get, VARIABLES[name]))}
    return left | {"config": {**config, "set_by_user": run.config.get("set_by_user", [])}}
