"""A run in MLflow. The only file that knows mlflow, which is imported when a run asks for it.

Where it goes is MLflow's own business: MLFLOW_TRACKING_URI, or else its default in the working directory. An
experiment or a run that a MLFLOW_* variable names wins over the configuration and over what a checkpoint stored.
Its calls wait for the server, so those of a run that goes on are made in a thread of their own.
"""

import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from easyr1.tracking.loggers import Run
from easyr1.tracking.sender import Sender
from easyr1.tracking.services import importing, start
from easyr1.tracking.tables import answer_table, empty_picture, flat, is_picture, picture_of

log = logging.getLogger(__name__)

NAME = "mlflow"
PARAMETERS_AT_ONCE, METRICS_AT_ONCE = 100, 1000  # what a server takes in one call
LONGEST_PARAMETER = 500
PATIENCE = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
}  # else it is 20 minutes a call


class MlflowLogger:
    """Metrics, parameters, configuration, and answers as tables with pictures; a resumed run goes on in its own."""

    def __init__(self, run: Run) -> None:
        with importing(NAME):
            import mlflow  # pyright: ignore[reportMissingImports]
            from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]

            if not hasattr(mlflow, "MlflowClient"):
                raise ImportError("the folder ./mlflow is no package")
        self._metric, self._param = Metric, Param
        logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells of each table of a new database
        for variable, value in PATIENCE.items():
            os.environ.setdefault(variable, value)
        self._client: Any = start(NAME, mlflow.MlflowClient)
        self._id = start(NAME, lambda: self._open(run, os.environ))
        self._sender = Sender(NAME)
        self.where = mlflow.get_tracking_uri()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        rows = [self._metric(allowed(name), float(value), now, step) for name, value in metrics.items()]
        for first in range(0, len(rows), METRICS_AT_ONCE):
            part = rows[first : first + METRICS_AT_ONCE]
            self._sender.do(partial(self._client.log_batch, self._id, metrics=part))

    def log_samples(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        if not rows:
            return
        columns, cells = answer_table(rows, picture_of)
        table = {column: _filled([row[place] for row in cells]) for place, column in enumerate(columns)}
        file = f"generations/step_{step:06d}.json"
        self._sender.do(partial(self._client.log_table, self._id, table, file))

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        pass

    def identity(self) -> dict[str, str]:
        return {"run_id": self._id}

    def finish(self, failed: bool = False) -> None:
        self._sender.close(partial(self._client.set_terminated, self._id, "FAILED" if failed else "FINISHED"))

    def _open(self, run: Run, environ: Mapping[str, str]) -> str:
        """The id of the run to go on with, or of a new one, with its configuration."""
        run_id = self._found(run, environ) or self._made(run, environ)
        self._client.log_dict(run_id, dict(run.config), "config.json")
        return run_id

    def _found(self, run: Run, environ: Mapping[str, str]) -> str | None:
        chosen, stored = environ.get("MLFLOW_RUN_ID"), run.identity.get(NAME, {}).get("run_id")
        wanted = chosen or stored
        return wanted if wanted and self._takes_up(wanted, must=wanted == chosen) else None

    def _made(self, run: Run, environ: Mapping[str, str]) -> str:
        trainer = run.config.get("config", {}).get("trainer", {})
        experiment = self._experiment(trainer.get("project_name") or "Default", environ)
        made = self._client.create_run(experiment, run_name=trainer.get("experiment_name")).info.run_id
        values = flat(run.config.get("config", {}))
        params = [self._param(allowed(name), str(value)[:LONGEST_PARAMETER]) for name, value in values.items()]
        for first in range(0, len(params), PARAMETERS_AT_ONCE):
            self._client.log_batch(made, params=params[first : first + PARAMETERS_AT_ONCE])
        return made

    def _takes_up(self, run_id: str, must: bool) -> bool:
        """Whether the run is known here and open again; one that the user named must be."""
        from mlflow.exceptions import MlflowException  # pyright: ignore[reportMissingImports]

        try:
            self._client.get_run(run_id)
        except MlflowException as error:
            if must:
                raise
            log.warning("mlflow knows no run %s, as the checkpoint names it (%s); a new one begins", run_id, error)
            return False
        self._client.update_run(run_id, status="RUNNING")
        return True

    def _experiment(self, project: str, environ: Mapping[str, str]) -> str:
        if environ.get("MLFLOW_EXPERIMENT_ID"):
            return environ["MLFLOW_EXPERIMENT_ID"]
        name = environ.get("MLFLOW_EXPERIMENT_NAME") or project
        found = self._client.get_experiment_by_name(name)
        return self._client.create_experiment(name) if found is None else found.experiment_id


def _filled(column: list[Any]) -> list[Any]:
    """MLflow refuses a column of pictures with gaps, so a gap becomes an empty picture."""
    has_pictures = any(map(is_picture, column))
    return [cell if is_picture(cell) else empty_picture() for cell in column] if has_pictures else column


def allowed(name: str) -> str:
    """The name with nothing in it that MLflow refuses.

    >>> allowed("val/geometry@test/overall_reward")
    'val/geometry_test/overall_reward'
    """
    return re.sub(r"[^\w\-./ ]", "_", name)
