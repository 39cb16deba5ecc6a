"""The tracker and what reaches the run folder."""

import io
import json
import logging

import numpy as np
import pytest
from rich.console import Console

from easyr1.errors import ConfigError
from easyr1.tracking import loggers
from easyr1.tracking.jsonl import read_rows
from easyr1.tracking.loggers import Tracker

STEP = {
    "reward/overall": 0.612,
    "reward/accuracy": 0.55,
    "reward/format": 0.98,
    "response_length/mean": 43.14,
    "actor/kl_loss": 0.0012,
    "actor/pg_clipfrac_higher": 0.01,
    "actor/grad_norm": 0.84,
    "actor/lr": 1e-6,
    "perf/time_per_step": 4.14,
    "perf/throughput": 2310.4,
}
SAMPLE = {"prompt": "Which [bold]digit[/bold]?", "response": "7", "ground_truth": "3", "scores": {"overall": 0.0}}


@pytest.fixture
def screen():
    return Console(file=io.StringIO(), width=80)


def test_an_unknown_logger_is_refused_with_the_known_ones(tmp_path, screen):
    with pytest.raises(ConfigError, match=r"trainer\.logger.*'wandbb'.*console, file"):
        Tracker(["file", "wandbb"], tmp_path, screen, {})


def test_the_run_folder_holds_metrics_answers_events_and_configuration(tmp_path, screen):
    tracker = Tracker(["file"], tmp_path / "new" / "run", screen, {"config": {"data": {"seed": 1}}})
    tracker.log({"reward/overall": np.float32(0.5), "actor/grad_norm": float("nan")}, 3)
    tracker.log_samples([SAMPLE, SAMPLE], 3)
    tracker.event("checkpoint", step=3, folder=tmp_path)
    tracker.finish()
    folder = tmp_path / "new" / "run"
    (row,) = read_rows(folder / "metrics.jsonl")
    assert (row["step"], row["reward/overall"], row["actor/grad_norm"]) == (3, 0.5, None)
    assert row["not_finite"] == {"actor/grad_norm": "nan"}
    assert read_rows(folder / "generations.jsonl") == [{"step": 3, **SAMPLE}] * 2
    (event,) = read_rows(folder / "events.jsonl")
    assert (event["kind"], event["step"], event["folder"]) == ("checkpoint", 3, str(tmp_path))
    assert json.loads((folder / "config.json").read_text()) == {"config": {"data": {"seed": 1}}}
    assert not screen.file.getvalue()


def test_a_second_run_in_the_folder_appends(tmp_path, screen):
    for step in (1, 2):
        tracker = Tracker(["file"], tmp_path, screen, {})
        tracker.log(STEP, step)
        tracker.finish()
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1, 2]


def test_resume_moves_later_rows_aside_and_keeps_events(tmp_path, screen):
    tracker = Tracker(["file"], tmp_path, screen, {})
    for step in (1, 2, 3):
        tracker.log(STEP, step)
        tracker.log_samples([SAMPLE], step)
        tracker.event("checkpoint", step=step)
    tracker.finish()
    again = Tracker(["file"], tmp_path, screen, {}, resume_step=2)
    assert len(read_rows(tmp_path / "metrics.jsonl")) == 3  # a start that fails now has moved nothing
    again.log(STEP | {"new": 1}, 3)
    again.finish()
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    assert "new" in read_rows(tmp_path / "metrics.jsonl")[-1]
    assert [row["step"] for row in read_rows(tmp_path / "generations.jsonl")] == [1, 2]
    *old, moved = read_rows(tmp_path / "events.jsonl")
    assert [event["step"] for event in old] == [1, 2, 3]
    assert (moved["kind"], moved["step"], moved["rows"]) == ("rows_moved_aside", 2, 2)


class BrokenLogger(loggers.FileLogger):
    def log(self, metrics, step):
        raise RuntimeError("no space left")


def test_a_failing_logger_warns_once_and_the_others_go_on(tmp_path, screen, monkeypatch, caplog):
    monkeypatch.setitem(loggers.LOGGERS, "broken", BrokenLogger)
    tracker = Tracker(["broken", "file"], tmp_path, screen, {})
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3):
            tracker.log(STEP, step)
    tracker.finish()
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    (warning,) = caplog.messages
    assert "'broken'" in warning
    assert "no space left" in warning


def test_loggers_that_started_are_closed_where_another_does_not_start(tmp_path, screen, monkeypatch):
    ended = []

    class Started(loggers.FileLogger):
        def finish(self, failed=False):
            ended.append(failed)

    def refuse(run):
        raise ConfigError("trainer.logger", "no server")

    monkeypatch.setitem(loggers.LOGGERS, "started", Started)
    monkeypatch.setitem(loggers.LOGGERS, "refusing", refuse)
    with pytest.raises(ConfigError, match="no server"):
        Tracker(["started", "refusing"], tmp_path, screen, {})
    assert ended == [True]


def test_one_line_tells_where_a_run_is_logged_and_how_to_add_another(tmp_path, screen):
    tracker = Tracker(["console", "file"], tmp_path, screen, {})
    assert tracker.whereabouts() == (
        f"logged to console, file ({tmp_path}); also possible: wandb, swanlab, mlflow, tensorboard, trackio, "
        "for example trainer.logger=[console,file,wandb]"
    )
