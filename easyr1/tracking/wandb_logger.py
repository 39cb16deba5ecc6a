"""A run in Weights & Biases. The only file that knows wandb, which is imported when a run asks for it.

Every WANDB_* variable that the user set wins over the configuration and over what a checkpoint stored.
"""

import base64
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from easyr1.errors import ConfigError
from easyr1.tracking.answers import MAX_PICTURES
from easyr1.tracking.loggers import Run

log = logging.getLogger(__name__)

NAME = "wandb"
KEY = "trainer.logger"
STEP = "trainer/step"
GENERATIONS = "val/generations"  # EasyR1's name
CURE = "trainer.logger=['console','file'] works without it"

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
        self._wandb = _import_wandb()
        stored = run.identity.get(NAME, {}).get("id")
        chosen = os.environ.get("WANDB_RUN_ID")
        if stored and chosen and chosen != stored:
            log.warning("WANDB_RUN_ID: the run goes on as W&B run %s, not as %s of the checkpoint", chosen, stored)
        run.folder.mkdir(parents=True, exist_ok=True)  # wandb would fall back to a temporary folder
        self._run = self._start(init_arguments(run, os.environ))
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

    def finish(self) -> None:
        self._run.finish()

    def _start(self, arguments: Mapping[str, Any]) -> Any:
        try:
            with _no_prompt():
                return self._wandb.init(**arguments)
        except (self._wandb.Error, ValueError) as error:  # ValueError: a variable with a value that wandb refuses
            raise ConfigError(
                KEY,
                f"W&B did not start ({error}); log in once with `wandb login`, or set WANDB_API_KEY, or set "
                f"WANDB_MODE=offline to keep the run on this machine; {CURE}",
            ) from error

    def _picture(self, data: object) -> Any:
        """The picture of a PNG's base64 text; None for what is no picture."""
        from PIL import Image

        try:
            return self._wandb.Image(Image.open(io.BytesIO(base64.b64decode(str(data), validate=True))))
        except (ValueError, OSError):
            return None


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


def answer_table(
    rows: Sequence[Mapping[str, Any]], picture: Callable[[object], Any]
) -> tuple[list[str], list[list[Any]]]:
    """Columns and cells: prompt, response, ground truth, each score, each picture; None where a row has none."""
    scores = [row["scores"] if isinstance(row.get("scores"), Mapping) else {} for row in rows]
    images = [list(row.get("images") or ())[:MAX_PICTURES] for row in rows]
    names = list(dict.fromkeys(name for of_row in scores for name in of_row))
    num_pictures = max(map(len, images), default=0)
    columns = ["prompt", "response", "ground_truth", *(f"scores/{name}" for name in names)]
    columns += [f"image_{place}" for place in range(1, num_pictures + 1)]
    cells = [
        [
            *(str(row.get(name, "")) for name in ("prompt", "response", "ground_truth")),
            *(of_row.get(name) for name in names),
            *map(picture, pictures),
            *[None] * (num_pictures - len(pictures)),
        ]
        for row, of_row, pictures in zip(rows, scores, images, strict=True)
    ]
    return columns, cells


def _import_wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise _missing(error) from error
    if not hasattr(wandb, "init"):  # a folder of old runs, named wandb, in the working directory
        raise _missing("the folder ./wandb is no package")
    return wandb


def _missing(reason: object) -> ConfigError:
    return ConfigError(
        KEY, f'wandb is not installed ({reason}): `pip install wandb` or `pip install "easyr1[wandb]"`; {CURE}'
    )


@contextmanager
def _no_prompt() -> Iterator[None]:
    """wandb asks the terminal for a missing key and waits for an answer; where there is no terminal it raises."""
    stdin, sys.stdin = sys.stdin, io.StringIO()
    try:
        yield
    finally:
        sys.stdin = stdin
