"""Whole small runs in one process, on tiny models and data written to a folder."""

import json
import os
import traceback
from pathlib import Path
from typing import Any

import tiny
import torch
from rich.console import Console

from easyr1.config.load import load
from easyr1.config.resolve import resolve
from easyr1.models.shards import load_shards, shapes
from easyr1.tracking.progress import Progress
from easyr1.trainer.assemble import open_trainer, prepare
from easyr1.trainer.known import code_facts, machine_facts
from easyr1.trainer.loop import Trainer
from easyr1.trainer.stop import Stopped

REWARD = '''
def compute_score(inputs, low=0.0):
    """How many even token lengths, words and so on: anything that differs between answers."""
    lengths = [len(one["response"]) for one in inputs]
    return [
        {"overall": (length % 7) / 7 + low, "length": one["response_length"], "rest": length % 5}
        for one, length in zip(inputs, lengths)
    ]
'''


def arguments(folder: Path, kind: str = "qwen2", rows: int = 8, **settings: Any) -> list[str]:
    """Command line of a run whose model, data and reward lie in `folder`; `settings` as section__key=value."""
    model = folder / kind
    if not model.exists():
        tiny.save(kind, model)
    data = folder / f"rows{rows}.jsonl"
    if not data.exists():
        tiny.write_rows(data, tiny.vision_rows(rows) if kind in tiny.VISION_KINDS else tiny.text_rows(rows))
    (folder / "reward.py").write_text(REWARD)
    values = {
        "data.train_files": data,
        "data.val_files": data,
        "data.format_prompt": "null",
        "data.max_prompt_length": 256,
        "data.max_response_length": 12,
        "data.rollout_batch_size": 4,
        "data.min_pixels": tiny.MIN_PIXELS,
        "data.max_pixels": tiny.MAX_PIXELS,
        "worker.actor.model.model_path": model,
        "worker.actor.global_batch_size": 2,
        "worker.actor.optim.lr": 1e-3,
        "worker.critic.global_batch_size": 2,
        "worker.critic.optim.lr": 1e-3,
        "worker.rollout.n": 3,
        "worker.reward.reward_function": f"{folder / 'reward.py'}:compute_score",
        "trainer.save_checkpoint_path": folder / "run",
        "trainer.max_steps": 2,
        "trainer.logger": "['file']",
        "trainer.device": "cpu",
    }
    values |= {key.replace("__", "."): value for key, value in settings.items()}
    return [f"{key}={value}" for key, value in values.items()]


def run(arguments: list[str], between=None) -> tuple[Trainer | None, dict[str, float]]:
    """Train to the end; `between(trainer)` is called before the first step. Returns the trainer and its result.

    There is no trainer where nothing is left to do.
    """
    config, given = load(arguments)
    facts = machine_facts(code_facts())
    resolve(config, given, facts)
    console = Console(quiet=True)
    progress = Progress(console)
    inputs = prepare(config, given, facts, progress)
    if inputs.is_finished:
        return None, {}
    with open_trainer(inputs, progress, console) as trainer:
        if between is not None:
            between(trainer)
        return trainer, trainer.fit()


def engine(trainer: Trainer, name: str = "actor") -> Any:
    """What the one rank of a run holds under a name: "actor", "critic", "reference", "rollout"."""
    return trainer.actor.engine.group.engines[name]  # type: ignore[attr-defined]


def run_forked(arguments: list[str], between=None) -> int:
    """The same in a process of its own, a copy of this one. Returns its wait status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run(arguments, between)
            status = 0
        except Stopped as stopped:
            status = stopped.exit_status
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def steps(folder: Path) -> dict[int, dict[str, Any]]:
    """All metrics of each step, merged."""
    merged: dict[int, dict[str, Any]] = {}
    for row in rows(folder):
        merged.setdefault(row["step"], {}).update(row)
    return merged


def read_shards(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors in a folder of a checkpoint, whole."""
    found = {name: torch.empty(shape.size, dtype=shape.dtype) for name, shape in shapes(folder).items()}
    load_shards(folder, found)
    return found
