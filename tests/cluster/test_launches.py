"""Whole runs in processes of their own: how they end, and what they leave."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from easyr1.cluster.watch import alive

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DRIVER = [sys.executable, "-c", "import sys; from easyr1.cli.main import run; sys.exit(run('driver', sys.argv[1:]))"]


def start(folder, what, *places, **environment):
    """A driver in a process group of its own."""
    folder.mkdir(exist_ok=True)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    variables |= {"PYTHONPATH": f"{ROOT}:{HERE}", "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(
        [*DRIVER, str(folder), what, *(str(number) for number in places)],
        cwd=ROOT,
        env=variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    )


def end(process, timeout_s=90):
    """(exit status, output), within the time."""
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, output


def ranks_of(folder):
    """Their processes, once they are there."""
    until = time.monotonic() + 90
    while not (folder / "pids.json").exists():
        assert time.monotonic() < until
        time.sleep(0.1)
    time.sleep(0.2)
    return json.loads((folder / "pids.json").read_text())


def children(pid):
    """All processes below one, with their children."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid:
            found += [int(entry.name), *children(int(entry.name))]
    return found


def all_end(pids, timeout_s):
    until = time.monotonic() + timeout_s
    while any(alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.1)
    return [pid for pid in pids if alive(pid)]


def test_two_launches_at_once_do_not_meet(tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    launches = [start(folder, "add") for folder in folders]
    for folder, launch in zip(folders, launches, strict=True):
        status, output = end(launch)
        assert status == 0, output
        assert "added [6.0, 6.0]" in output
        assert all_end(ranks_of(folder), 5) == []


def test_a_killed_rank_is_told_without_the_driver_s_traceback(tmp_path):
    launch = start(tmp_path, "die")
    ranks = ranks_of(tmp_path)
    processes = children(launch.pid)
    status, output = end(launch, 60)
    assert status == 1
    assert "rank 1 (node " in output and "died in fake.die" in output
    assert "the same command goes on from its last checkpoint" in output
    assert "Traceback" not in output and "(raylet)" not in output
    assert all_end([*ranks, *processes], 5) == []


def test_a_rank_that_cannot_be_killed_does_not_keep_the_driver(tmp_path):
    launch = start(tmp_path, "stuck")
    ranks = ranks_of(tmp_path)
    began = time.monotonic()
    status, output = end(launch, 60)
    assert status == 1 and time.monotonic() - began < 45
    assert "rank 1 (node " in output and "hangs in fake.stop" in output
    for rank in ranks:
        if alive(rank):
            os.kill(rank, signal.SIGKILL)


def test_nothing_is_left_of_a_driver_that_was_killed(tmp_path):
    launch = start(tmp_path, "stop")
    ranks_of(tmp_path)
    # Ray's two agents first try for a minute to tell the cluster that they leave.
    processes = [pid for pid in children(launch.pid) if b"Agent" not in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(processes) > 3  # ranks, raylet, global control store
    launch.kill()
    end(launch)
    assert all_end(processes, 30) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_driver_can_still_save(tmp_path, number, status):
    launch = start(tmp_path, "stop")
    for line in launch.stdout:
        if line == "waiting\n":
            break
    time.sleep(0.3)
    if number == signal.SIGINT:
        os.killpg(launch.pid, number)  # as a terminal does
    else:
        launch.send_signal(number)
    found, output = end(launch)
    assert found == status, output
    assert "added [6.0, 6.0]" in output and "Traceback" not in output


def test_more_ranks_than_a_cluster_has_room_for_are_refused(tmp_path):
    status, output = end(start(tmp_path, "add", 2, 1))
    assert status == 2
    assert "configuration error: trainer.nnodes: 2 nodes need a Ray cluster" in output


def test_a_timeline_is_written(tmp_path):
    status, output = end(start(tmp_path, "timeline"))
    assert status == 0, output
    events = json.loads((tmp_path / "timeline.json").read_text())
    assert {event["cat"] for event in events} >= {"task::rank.build", "task::fake.add"}


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "run"
    command = [*DRIVER, str(folder), "add"]
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{HERE}"}
    done = subprocess.run(command, cwd=ROOT, env=variables, text=True, capture_output=True, timeout=90)
    assert done.returncode == 2
    assert "configuration error: trainer.save_checkpoint_path: rank 0 cannot write to" in done.stderr
