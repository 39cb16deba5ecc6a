"""`easyr1 quickstart`: build a tiny vision-language model, then train it like any other on pictures of digits."""

import json
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console

from easyr1.cli.options import DRY_RUN, split
from easyr1.cli.train import dry_run, train
from easyr1.config.load import load
from easyr1.config.schema import Config
from easyr1.errors import ConfigError
from easyr1.tracking.loggers import METRICS_FILE
from easyr1.tracking.progress import Progress
from easyr1.tracking.screen import open_screen

SETTINGS = "config=examples/quickstart/config.yaml"
HELP = """\
usage: easyr1 quickstart [--dry-run] [key=value ...]

Builds a tiny vision-language model (half a minute, kept in a cache), then trains it by GRPO with the ordinary trainer
on scans of handwritten digits: a few minutes on two CPU cores, no download, no account. It takes all keys of training.

  easyr1 quickstart
  easyr1 quickstart trainer.max_steps=20 data.seed=2
  easyr1 quickstart trainer.save_checkpoint_path=my_run worker.actor.model.lora.rank=8

  --dry-run  show what would run; build, load and write nothing

The cache is $EASYR1_CACHE, or else ~/.cache/easyr1.
"""
UNBUILT = ("data.train_files=quickstart/rows", "data.val_files=quickstart/rows")  # what the command makes by itself


def main(arguments: Sequence[str]) -> int:
    """Build (or take from the cache) the base model, write the rows, train; `arguments` are settings of training."""
    start = time.monotonic()
    options, arguments = split(arguments, [DRY_RUN])
    if options:
        return dry_run(*load([SETTINGS, *UNBUILT, *arguments]), open_screen())
    config, _ = load([SETTINGS, *arguments])
    console = open_screen(config.trainer.console)
    folder = run_folder(config)
    base, rows = make_inputs(config, folder, console)
    paths = [
        f"data.train_files={rows.train}",
        f"data.val_files={rows.val}",
        f"worker.actor.model.model_path={base}",
        f"worker.rollout.seed={config.data.seed}",
        "trainer.find_last_checkpoint=false",
    ]
    config, given = load([SETTINGS, *paths, *arguments, f"trainer.save_checkpoint_path={folder}"])
    train(config, given, console)
    report = json.loads((folder / "report.json").read_text())
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    console.print(f"{report['sentence']} ({minutes} min {seconds} s in all)", highlight=False, soft_wrap=True)
    return 0


def run_folder(config: Config) -> Path:
    """A folder that holds no run yet; where a checkpoint is resumed, the folder of its run."""
    trainer = config.trainer
    if trainer.save_checkpoint_path is not None:
        folder = Path(trainer.save_checkpoint_path).expanduser().absolute()
        if trainer.load_checkpoint_path is None and (folder / METRICS_FILE).exists():
            raise ConfigError(
                "trainer.save_checkpoint_path",
                f"{folder} already holds a run; name another folder, or resume with trainer.load_checkpoint_path",
            )
        return folder
    if trainer.load_checkpoint_path is not None:
        loaded = Path(trainer.load_checkpoint_path).expanduser().absolute()
        steps = [path for path in (loaded, *loaded.parents) if path.name.startswith("global_step_")]
        if steps:
            return steps[0].parent
        named = loaded.name in ("best", "last") and not loaded.exists()
        if named and trainer.load_checkpoint_path == loaded.name:
            raise ConfigError(
                "trainer.load_checkpoint_path", f"{loaded.name} of which run? Give the folder, RUN/{loaded.name}"
            )
        return loaded.parent if named else loaded
    name = f"{trainer.experiment_name}-{datetime.now():%Y%m%d-%H%M%S}"
    return Path("checkpoints", trainer.project_name, name).absolute()


def make_inputs(config: Config, folder: Path, console: Console):
    """The base model's folder and the files of rows, all of them made from `data.seed`."""
    console.print("easyr1 quickstart: GRPO on a tiny Qwen2.5-VL and scans of handwritten digits")
    from easyr1.examples.quickstart.build import build_base, cache_folder
    from easyr1.examples.quickstart.digits import write_tasks

    seed = config.data.seed
    console.print(
        "1. a base model: a short supervised training with a careless teacher (kept in a cache)", soft_wrap=True
    )
    base = build_base(cache_folder(), seed, Progress(console, as_json=config.trainer.console == "json"))
    console.print(f"   {base}", highlight=False, soft_wrap=True)
    console.print("2. rows: which digit is it, and which of two digits is larger")
    rows = write_tasks(folder / "rows", seed)
    console.print(f"   {rows.train.parent}", highlight=False, soft_wrap=True)
    console.print("3. reinforcement learning with the ordinary trainer", highlight=False)
    return base, rows
