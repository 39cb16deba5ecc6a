"""A run in Weights & Biases. The only file that knows wandb, which is imported when a run asks for it.

Every WANDB_* variable that the user set wins over the configuration and over what a checkpoint stored.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from easyr1.tracking.loggers import Run
from easyr1.tracking.services import importing, start
from easyr1.tracking.tables import GENERATIONS, answer_table, picture_of

log = logging.getLogger(__name__)

NAME = "wandb"
STEP = "trainer/step"

ANOTHER_START = ("WANDB_RESUME_FROM", "WANDB_FORK_FROM")  # wandb takes none of them together with resume
VARIABLES: Mapping[str, tuple[str, ...]] = {  # argument of wandb.init -> the variables that say the same
    "project": ("WANDB_PROJECT",),
    "name": ("WANDB_NAME", "WANDB_RUN_NAME"),
    "dir": ("WANDB_DIR", "WANDB_ROOT_DIR"),
    "id": ("WANDB_RUN_ID", *ANOTHER_START),
    "resume": ("WANDB_RESUME", *ANOTHER_START),
}


class WandbLogger:
    """Metrics, answers and configuration of a run in W&B; a resumed run goes on in the W&B run that it was.

    wandb drops rows whose step goes backwards, which the steps that a resumed run makes anew would do. So its own
    step only counts rows, and charts are drawn over `trainer/step`; steps made anew are drawn twice.
    """

    def __init__(self, run: Run) -> None:
        with importing(NAME):
            import wandb

            if not hasattr(wandb, "init"):  # a folder of old runs, named wandb, in the working directory
                raise ImportError("the folder ./wandb is no package")
        self._wandb: Any = wandb
        stored = run.identity.get(NAME, {}).get("id")
        chosen = os.environ.get("WANDB_RUN_ID")
        if stored and chosen and chosen != stored:
            log.warning("WANDB_RUN_ID: the run goes on as W&B run %s, not as %s of the checkpoint", chosen, stored)
        run.folder.mkdir(parents=True, exist_ok=True)  # wandb would fall back to a temporary folder
        self._run = start(NAME, lambda: wandb.init(**init_arguments(run, os.environ)))
        is_offline = getattr(self._run, "offline", True)
        self.where = f"offline: `wandb sync` of {run.folder}/wandb" if is_offline else str(self._run.url)
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log({**metrics, STEP: step})

    def log_samples(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        if not rows:
            return
        columns, cells = answer_table(rows, self._picture)
        self._run.log({GENERATIONS: self._wandb.Table(columns=columns, data=cells), STEP: step})

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        pass

    def identity(self) -> dict[str, str]:
        return {"id": str(self._run.id)}

    def finish(self, failed: bool = False) -> None:
        self._run.finish(exit_code=int(failed))

    def _picture(self, data: object) -> Any:
        picture = picture_of(data)
        return None if picture is None else self._wandb.Image(picture)


def init_arguments(run: Run, environ: Mapping[str, str]) -> dict[str, Any]:
    """What wandb.init is called with: nothing that a variable of `environ` already says."""
    config = run.config.get("config", {})
    trainer = config.get("trainer", {})
    stored = run.identity.get(NAME, {}).get("id")
    wanted = {
        "project": trainer.get("project_name"),
        "name": trainer.get("experiment_name"),
        "dir": str(run.folder.absolute()),
        "id": stored,
        "resume": "allow" if stored else None,
    }
    left = {name: value for name, value in wanted.items() if not any(map(environ.get, VARIABLES[name]))}
    return left | {"config": {**config, "set_by_user": run.config.get("set_by_user", [])}}
