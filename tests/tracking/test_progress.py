"""Progress of long phases, on a terminal and in a file."""

import io
import json
import time

import pytest
from rich.console import Console

from easyr1.tracking.progress import Heartbeat, Progress


def wait_for(text, console, limit_s=5.0):
    end = time.monotonic() + limit_s
    while text not in console.file.getvalue() and time.monotonic() < end:
        time.sleep(0.005)
    assert text in console.file.getvalue()


def test_a_file_gets_a_line_now_and_then_and_no_control_codes():
    console = Console(file=io.StringIO())
    with Progress(console, interval_s=0.01).phase("sampling", 40) as tick:
        wait_for("sampling: 0/40 (0 %) after", console)
        tick(10, 40)
        wait_for("sampling: 10/40 (25 %) after", console)
    assert "\x1b" not in console.file.getvalue()
    length = len(console.file.getvalue())
    time.sleep(0.05)
    assert len(console.file.getvalue()) == length


def test_a_short_phase_prints_nothing_into_a_file():
    console = Console(file=io.StringIO())
    with Progress(console).phase("saving") as tick:
        tick(1, 2)
    assert console.file.getvalue() == ""


def test_a_terminal_gets_a_bar_that_vanishes_and_phases_nest():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    progress = Progress(console)
    with progress.phase("validation", 8) as outer:
        outer(3, 8)
        with progress.phase("sampling", 5) as inner:
            inner(2, 5)
        outer(8, 8)
    drawn = console.file.getvalue()
    assert "validation" in drawn
    assert drawn.rsplit("\x1b[2K", 1)[1] == "\x1b[?25h\r"  # after the last erasing only the cursor comes back
    with progress.phase("scoring", 2):
        pass
    assert "scoring" in console.file.getvalue()


def test_the_phase_ends_when_its_work_fails():
    console = Console(file=io.StringIO(), force_terminal=True)
    progress = Progress(console)
    with pytest.raises(KeyError), progress.phase("sampling", 3):
        raise KeyError
    erased = console.file.getvalue().rsplit("\x1b[2K", 1)[1]
    assert "sampling" not in erased
    with progress.phase("again", 3) as tick:
        tick(1, 3)
    assert "again" in console.file.getvalue()


def test_the_line_tells_what_is_left():
    beat = Heartbeat("sampling", total=None, start=0.0)
    assert beat.line(4.0) == "sampling: after 4 s"
    beat.update(96, 384)
    assert beat.line(15.0) == "sampling: 96/384 (25 %) after 15 s, about 45 s left"
    beat.update(384)
    assert beat.line(60.0) == "sampling: 384/384 (100 %) after 1 min 0 s"
    beat.update(384, 384, 120_000)
    assert beat.line(60.0) == "sampling: 384/384 (100 %) after 1 min 0 s, 2,000 tokens/s"


def test_a_kind_of_phase_speaks_early_once_and_then_ever_more_rarely():
    progress = Progress(Console(file=io.StringIO()), interval_s=15.0)
    first, again = progress._silences("validation 0-8 of 16"), progress._silences("validation 8-16 of 16")
    assert [next(first) for _ in range(3)] == [2.0, 15.0, 30.0]
    assert [next(again) for _ in range(7)] == [15.0, 30.0, 60.0, 120.0, 240.0, 300.0, 300.0]


def test_a_quiet_console_shows_no_progress_unless_as_rows():
    for as_json in (False, True):
        console = Console(file=io.StringIO(), quiet=True)
        with Progress(console, interval_s=0.01, as_json=as_json).phase("sampling", 8) as tick:
            tick(4, 8, 100)
            if as_json:
                wait_for("}\n", console)
            else:
                time.sleep(0.05)
        rows = [json.loads(line) for line in console.file.getvalue().splitlines()]
        assert all(row["kind"] == "progress" and row["tokens"] == 100 for row in rows)
        assert bool(rows) == as_json
