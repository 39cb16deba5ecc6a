"""What the tests of trackers log."""

import base64
import io

from PIL import Image
from rich.console import Console

from easyr1.tracking.loggers import Tracker

CONFIG = {
    "config": {"trainer": {"project_name": "digits", "experiment_name": "first"}, "data": {"seed": 7}},
    "set_by_user": ["data.seed"],
}
ROW = {"row": 4, "prompt": "Which | digit?", "response": "7", "ground_truth": "3", "scores": {"overall": 0.5}}


def png(colour):
    buffer = io.BytesIO()
    Image.new("RGB", (3, 2), colour).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


ROWS = [{**ROW, "images": ["no picture"]}, {**ROW, "images": [png("red"), png("blue")]}]


def track(name, folder, **options):
    return Tracker([name], folder, Console(file=io.StringIO()), CONFIG, **options)


def log_a_run(name, folder, steps=(1, 2), **options):
    """Two parts of each step, one of them not finite, and a table of answers. Returns the identity."""
    tracker = track(name, folder, **options)
    for step in steps:
        tracker.log({"reward/overall": step / 4, "actor/grad_norm": float("nan")}, step)
        tracker.log({"timing_s/save_checkpoint": 2.0}, step)
    tracker.log_samples(ROWS, steps[-1])
    tracker.log_samples([], steps[-1])
    tracker.event("warning", message="odd")
    identity = tracker.identity()
    tracker.finish()
    return identity
