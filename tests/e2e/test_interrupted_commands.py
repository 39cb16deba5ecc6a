"""A training command that is killed or asked to stop, typed again: as a user and a cluster do it."""

import os
import signal
import subprocess
import sys
import time

import commands
import pytest
import runs

pytestmark = pytest.mark.slow


def start(arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "easyr1.cli.main", "train", *arguments],
        cwd=commands.ROOT,
        env=os.environ | {"PYTHONPATH": str(commands.ROOT), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_step(folder, step, process):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (folder / "metrics.jsonl").exists() and step in runs.steps(folder):
            return
        time.sleep(0.02)
    raise AssertionError(process.communicate()[0])


@pytest.mark.parametrize("number", (signal.SIGTERM, signal.SIGINT, signal.SIGKILL))
def test_the_same_command_goes_on_and_then_has_nothing_to_do(tmp_path, number):
    arguments = runs.arguments(
        tmp_path, trainer__max_steps=12, trainer__save_freq=2, trainer__logger="['console','file']"
    )
    process = start(arguments)
    wait_for_step(tmp_path / "run", 4, process)
    process.send_signal(number)
    output = process.communicate(timeout=60)[0]
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert "is saved; the same command goes on from there" in output and "Traceback" not in output
    output = commands.run("easyr1.cli.main", "train", *arguments)
    assert "resume  from" in output and "data position" in output and "[Step 12] train" in output
    assert sorted(runs.steps(tmp_path / "run")) == list(range(13))
    output = commands.run("easyr1.cli.main", "train", *arguments)
    assert "all 12 steps are done; nothing is left to do" in output
    output = commands.run("easyr1.cli.main", "train", *arguments, "trainer.max_steps=13")
    assert "[Step 13] train" in output


def test_a_signal_before_the_first_step_leaves_no_process_behind(tmp_path):
    process = start(runs.arguments(tmp_path, trainer__max_steps=12, trainer__logger="['console','file']"))
    wait_for_step(tmp_path / "run", 0, process)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    assert children  # the reward process
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    time.sleep(0.5)
    assert not [child for child in children if os.path.exists(f"/proc/{child}")]
