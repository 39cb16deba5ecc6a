"""The lines of a run: one a step and one a validation, as people read them or as JSON. Knows the metrics' names."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from easyr1.tracking.eta import Eta
from easyr1.tracking.jsonl import timestamp
from easyr1.tracking.loggers import Logger, Run
from easyr1.tracking.screen import Once, say, say_row
from easyr1.tracking.wording import duration, shorten

OVERALL = "reward/overall"
KL = ("actor/kl_loss", "actor/kl_penalty")
LOSS = ("actor/pg_loss", "critic/vf_loss")
SPEED = "perf/throughput"
VAL_SECONDS = "timing_s/validation"


def console_logger(run: Run) -> Logger:
    """The one that `trainer.console` asks for."""
    mode = run.config.get("config", {}).get("trainer", {}).get("console", "full")
    return JsonLogger(run) if mode == "json" else ConsoleLogger(run, answers=mode == "full")


class ConsoleLogger:
    """A line a step and one a validation; of the first validation also two answers, to see what is scored how."""

    where = ""
    NUM_SAMPLES = 2
    MAX_CHARACTERS = 240

    def __init__(self, run: Run, answers: bool = True) -> None:
        self._console: Console = run.console
        self._eta = _eta(run)
        self._once = Once()
        self._shows_answers = answers

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if self._eta is not None:
            self._eta.note(metrics)
        if _is_training(metrics):
            seconds = None if self._eta is None else self._eta.seconds(step)
            self._line(f"[Step {step}] train", [*training_parts(metrics), *_eta_part(seconds)])
        if _is_validation(metrics):
            self._line(f"[Step {step}] val", validation_parts(metrics))

    def log_samples(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        shown = rows[: self.NUM_SAMPLES] if self._shows_answers else ()
        for row in shown:
            self._shows_answers = False
            for name in ("prompt", "response", "ground_truth", "scores"):
                if name in row:
                    say(self._console, f"  {name:>12}  ", self._short(row[name]), "dim")

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        if "message" not in fields:
            return
        message = str(fields["message"])
        times = self._once.count(str(fields.get("topic", message))) if kind == "warning" else 1
        if times > 2:
            return
        if times == 2:
            message += " (not the first of this kind; further ones stay silent here)"
        say(self._console, f"{kind}  ", message, "bold yellow" if kind == "warning" else "bold")

    def identity(self) -> dict[str, str]:
        return {}

    def finish(self, failed: bool = False) -> None:
        pass

    def _line(self, start: str, parts: Sequence[str]) -> None:
        say(self._console, start, "".join(f" | {part}" for part in parts))

    def _short(self, value: object) -> str:
        if isinstance(value, Mapping):
            value = "  ".join(f"{key} {number}" for key, number in value.items())
        return " ".join(shorten(str(value), self.MAX_CHARACTERS).split())


class JsonLogger:
    """All that is logged as one JSON object a line: `kind` is train, val, metrics, answer, or that of an event."""

    where = ""

    def __init__(self, run: Run) -> None:
        self._console = run.console
        self._eta = _eta(run)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if self._eta is not None:
            self._eta.note(metrics)
        kind = "train" if _is_training(metrics) else "val" if _is_validation(metrics) else "metrics"
        seconds = self._eta.seconds(step) if self._eta is not None and kind == "train" else None
        left = {} if seconds is None else {"eta_s": round(seconds, 1)}
        say_row(self._console, kind=kind, step=step, time=timestamp(), **left, **metrics)

    def log_samples(self, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Answers are long and in generations.jsonl."""

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        say_row(self._console, **{**fields, "kind": kind, "time": timestamp()})

    def identity(self) -> dict[str, str]:
        return {}

    def finish(self, failed: bool = False) -> None:
        pass


def training_parts(metrics: Mapping[str, float]) -> list[str]:
    """What a step's line tells: every reward, the overall one first, KL, loss and speed, as far as they are there."""
    names = [OVERALL, *(name for name in metrics if name.startswith("reward/") and name != OVERALL)]
    parts = [f"{name}={metrics[name]:.3f}" for name in names if name in metrics]
    for label, candidates in (("kl", KL), ("loss", LOSS)):
        parts += [f"{label}={metrics[name]:.3g}" for name in candidates if name in metrics][:1]
    return parts + ([f"{metrics[SPEED]:,.0f} tokens/s"] if SPEED in metrics else [])


def validation_parts(metrics: Mapping[str, float]) -> list[str]:
    """What a validation's line tells: every reward, the overall one first; of single sources that alone; its time."""
    rewards = {
        name.removeprefix("val/").removesuffix("_reward"): value
        for name, value in metrics.items()
        if name.startswith("val/") and name.endswith("_reward")
    }
    rewards = {"overall": metrics.get("val/reward_score", rewards.get("overall")), **rewards}
    sources = {name: value for name, value in rewards.items() if name.endswith("/overall")}
    shown = {f"reward/{name}": value for name, value in rewards.items() if "/" not in name} | sources
    parts = [f"{name}={value:.3f}" for name, value in shown.items() if value is not None]
    return parts + ([f"{metrics[VAL_SECONDS]:.1f} s"] if VAL_SECONDS in metrics else [])


def _is_training(metrics: Mapping[str, float]) -> bool:
    return any(name.startswith(("reward/", "actor/", "critic/")) for name in metrics)


def _is_validation(metrics: Mapping[str, float]) -> bool:
    return any(name.startswith("val/") for name in metrics)


def _eta(run: Run) -> Eta | None:
    trainer = run.config.get("config", {}).get("trainer", {})
    if run.total_steps is None:
        return None
    return Eta(run.total_steps, trainer.get("val_freq", -1), trainer.get("save_freq", -1))


def _eta_part(seconds: float | None) -> list[str]:
    return [] if seconds is None else [f"ETA {duration(seconds)}"]
