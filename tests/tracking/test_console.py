"""What a run says: the lines of steps and validations, ETA, quiet and JSON modes, and plain text elsewhere."""

import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from easyr1.tracking.eta import Eta
from easyr1.tracking.loggers import Tracker
from easyr1.tracking.screen import LogLines, open_screen, say

ROOT = Path(__file__).parents[2]
STEP = {
    "reward/format": 0.98,
    "reward/overall": 0.612,
    "critic/score/mean": 0.612,
    "reward/accuracy": 0.55,
    "response_length/mean": 43.14,
    "actor/kl_loss": 0.0012,
    "actor/pg_loss": -0.01337,
    "actor/grad_norm": 0.84,
    "perf/time_per_step": 4.14,
    "perf/throughput": 2310.4,
}
VALIDATION = {
    "val/reward_score": 0.4,
    "val/overall_reward": 0.4,
    "val/accuracy_reward": 0.34,
    "val/digits/overall_reward": 0.5,
    "val/digits/accuracy_reward": 0.5,
    "val/pairs/overall_reward": 0.3,
    "val_response_length/mean": 12.0,
    "timing_s/validation": 2.0,
}
SAMPLE = {"prompt": "Which [bold]digit[/bold]?", "response": "7", "ground_truth": "3", "scores": {"overall": 0.0}}


def config(**trainer):
    return {"config": {"trainer": {"val_freq": 5, "save_freq": 20, **trainer}}}


@pytest.fixture
def screen():
    return Console(file=io.StringIO(), width=80)


def told(screen):
    return screen.file.getvalue().splitlines()


def test_the_lines_of_a_run(tmp_path, screen):
    tracker = Tracker(["console"], tmp_path, screen, config(), total_steps=60)
    tracker.log(VALIDATION, 0)
    tracker.log(STEP, 1)
    tracker.log({"timing_s/save_checkpoint": 30.0}, 1)
    tracker.log(STEP | {"actor/kl_loss": 2.5e-5, "perf/time_per_step": 100.0}, 5)
    tracker.log(STEP | {"perf/time_per_step": 4.0}, 6)
    assert told(screen) == [
        "[Step 0] val | reward/overall=0.400 | reward/accuracy=0.340 | digits/overall=0.500 | pairs/overall=0.300"
        " | 2.0 s",
        "[Step 1] train | reward/overall=0.612 | reward/format=0.980 | reward/accuracy=0.550 | kl=0.0012"
        " | loss=-0.0134 | 2,310 tokens/s | ETA 4 min 28 s",
        "[Step 5] train | reward/overall=0.612 | reward/format=0.980 | reward/accuracy=0.550 | kl=2.5e-05"
        " | loss=-0.0134 | 2,310 tokens/s | ETA 49 min 38 s",
        "[Step 6] train | reward/overall=0.612 | reward/format=0.980 | reward/accuracy=0.550 | kl=0.0012"
        " | loss=-0.0134 | 2,310 tokens/s | ETA 5 min 36 s",  # 54 steps of 4.14 s, 11 validations, 3 saves
    ]


def test_what_is_not_there_is_left_out_and_a_critic_alone_has_a_loss(tmp_path, screen):
    tracker = Tracker(["console"], tmp_path, screen, {})
    tracker.log({"perf/mfu_actor": 0.1}, 0)
    tracker.log({"reward/overall": 0.5, "critic/vf_loss": 2.0, "val/reward_score": 0.6}, 5)
    assert told(screen) == [
        "[Step 5] train | reward/overall=0.500 | loss=2",
        "[Step 5] val | reward/overall=0.600",
    ]


@pytest.mark.parametrize(
    ("step", "val_freq", "save_freq", "expected"),
    [
        (1, 5, 20, 9 * 2 + 2 * 7 + 30),
        (5, 5, 20, 5 * 2 + 2 * 7 + 30),  # that of the step itself is still to come
        (6, 5, 20, 4 * 2 + 7 + 30),
        (10, 5, 20, 7 + 30),
        (9, 4, -1, 2 + 7 + 30),
        (1, -1, 3, 9 * 2 + 7 + 4 * 30),  # 3, 6, 9 and the last
    ],
)
def test_what_is_left_counts_steps_validations_and_saves(step, val_freq, save_freq, expected):
    eta = Eta(10, val_freq, save_freq)
    assert eta.seconds(step) is None
    eta.note({"timing_s/validation": 7.0})
    eta.note({"timing_s/save_checkpoint": 30.0})
    assert eta.seconds(step) is None
    for seconds in (90.0, 2.0, 2.0):  # a slow first step is forgotten
        eta.note({"perf/time_per_step": seconds})
    assert eta.seconds(step) == expected


def test_two_answers_of_the_first_validation_are_shown_as_they_are(tmp_path, screen):
    tracker = Tracker(["console"], tmp_path, screen, {})
    tracker.log_samples([SAMPLE | {"response": "x" * 5000}] * 3, 0)
    tracker.log_samples([SAMPLE], 5)
    lines = told(screen)
    assert sum("Which [bold]digit[/bold]?" in line for line in lines) == 2
    assert sum("overall 0.0" in line for line in lines) == 2
    assert max(map(len, lines)) < 400


def test_warnings_of_one_kind_are_told_twice_at_most(tmp_path, screen):
    tracker = Tracker(["console"], tmp_path, screen, {})
    tracker.event("checkpoint", step=3)
    for step in range(5):
        tracker.event("warning", message=f"step {step}: skipped")
        tracker.event("warning", topic="pictures", message=f"{'abcde'[step]}.png is broken")
    assert told(screen) == [
        "warning  step 0: skipped",
        "warning  a.png is broken",
        "warning  step 1: skipped (not the first of this kind; further ones stay silent here)",
        "warning  b.png is broken (not the first of this kind; further ones stay silent here)",
    ]


def test_log_records_of_one_kind_come_once_and_errors_always(screen):
    log = logging.Logger("of a library")
    log.addHandler(LogLines(screen))
    for step in range(3):
        log.warning("slow at step %d", step)
        log.error("failed at step %d, %s", step, "x" * 100)
    assert [line[:30] for line in told(screen)] == [
        "warning  slow at step 0",
        *(f"error  failed at step {step}, xxxxx"[:30] for step in range(3)),
    ]
    assert max(map(len, told(screen))) > 100  # long lines are not broken


def test_a_log_record_whose_arguments_do_not_fit_ends_no_run(screen):
    log = logging.Logger("of a library")
    log.addHandler(LogLines(screen))
    log.warning("%d parts", "many")
    log.warning("lost %s and %s", "one")
    assert told(screen) == ["warning  %d parts ('many',)", "warning  lost %s and %s ('one',)"]


def test_a_quiet_console_stays_quiet_however_many_speak_at_once():
    class Slow(io.StringIO):
        def write(self, text):
            time.sleep(0.002)
            return super().write(text)

    screen = Console(file=Slow(), quiet=True)
    threads = [threading.Thread(target=lambda: [say(screen, "a", "b") for _ in range(10)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert screen.quiet
    assert told(screen) == ["ab"] * 40


@pytest.mark.parametrize("mode", ["full", "quiet", "json"])
def test_a_run_goes_on_when_nobody_reads_what_it_says(mode):
    code = (
        "import logging, sys, time\n"
        "from easyr1.tracking.progress import Progress\n"
        "from easyr1.tracking.screen import open_screen, say, say_row\n"
        f"console = open_screen({mode!r})\n"
        "for _ in range(3):\n"
        "    with Progress(console, 0.01, as_json=True).phase('sampling'):\n"
        "        time.sleep(0.05)\n"
        "    logging.error('odd')\n"
        "    console.print('a table')\n"
        "    say_row(console, kind='train') if console.file.fileno() != 2 else say(console, '[Step 1]', '')\n"
        "sys.exit(7)\n"
    )
    ours, theirs = os.pipe()
    started = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=theirs, stderr=theirs)
    os.close(ours)
    os.close(theirs)
    assert started.wait(60) == 7


def test_quiet_leaves_lines_and_warnings(tmp_path):
    screen = Console(file=io.StringIO(), quiet=True)
    tracker = Tracker(["console"], tmp_path, screen, config(console="quiet"))
    tracker.log_samples([SAMPLE], 0)
    tracker.log(STEP, 1)
    tracker.event("warning", message="odd")
    screen.print("a table")
    assert [line.split(" | ")[0] for line in told(screen)] == ["[Step 1] train", "warning  odd"]


def test_json_mode_writes_one_object_a_line(tmp_path):
    screen = Console(file=io.StringIO(), quiet=True)
    tracker = Tracker(["console"], tmp_path, screen, config(console="json"), total_steps=10)
    tracker.log(VALIDATION, 0)
    tracker.log(STEP | {"actor/grad_norm": float("nan")}, 1)
    tracker.event("warning", message="odd", topic="oddities")
    tracker.log({"timing_s/save_checkpoint": 3.0}, 1)
    val, train, warning, save = map(json.loads, told(screen))
    assert [row["kind"] for row in (val, train, warning, save)] == ["val", "train", "warning", "metrics"]
    assert (train["step"], train["reward/overall"], train["actor/grad_norm"]) == (1, 0.612, None)
    assert train["eta_s"] == pytest.approx(9 * 4.14 + 2 * 2.0, abs=0.06)
    assert warning["message"] == "odd"


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {}])
def test_only_a_willing_terminal_gets_escape_codes(monkeypatch, variable):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    console = open_screen()
    say(console, "[Step 1] train", " | loss=1")
    assert console.is_terminal == (not variable)
    assert ("\x1b" in terminal.getvalue()) == (not variable)


def test_in_json_mode_nothing_else_reaches_the_standard_output():
    code = (
        "import os, subprocess, logging\n"
        "from easyr1.tracking.screen import open_screen, say_row\n"
        "console = open_screen('json')\n"
        "print('from print', flush=True)\n"
        "os.system('echo from a child')\n"
        "logging.warning('a warning')\n"
        "console.print('a table')\n"
        "say_row(console, kind='train', step=1)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == '{"kind": "train", "step": 1}\n'
    assert sorted(ended.stderr.splitlines()) == ["from a child", "from print", "warning  a warning"]
