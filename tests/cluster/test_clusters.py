"""Clusters that are there already: of two nodes, by `ray start`, by `ray job submit`."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from test_launches import DRIVER, HERE, ROOT, all_end, end, ranks_of, start

from easyr1.cluster.watch import alive

pytestmark = pytest.mark.slow

RAY = [sys.executable, "-c", "import sys; from ray.scripts.scripts import main; sys.exit(main())"]
JOBS = all(importlib.util.find_spec(name) for name in ("aiohttp", "aiohttp_cors", "opencensus"))  # of ray[default]


@pytest.fixture(scope="module")
def short_folder():
    """Ray's sockets want short paths; its agents may still write there for a minute."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def two_nodes():
    """The address of a cluster of two nodes with one core each, on this machine."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster.address
    cluster.shutdown()


def test_ranks_spread_over_two_nodes(two_nodes, tmp_path):
    status, output = end(start(tmp_path, "add", 2, 1, RAY_ADDRESS=two_nodes))
    assert status == 0, output
    assert f"connecting to the Ray cluster at {two_nodes}" in output
    assert "ranks on 2 nodes" in output and "added [6.0, 6.0]" in output
    assert all_end(ranks_of(tmp_path), 5) == []


def test_a_rank_that_dies_on_a_cluster_takes_the_others_with_it(two_nodes, tmp_path):
    status, output = end(start(tmp_path, "die", 2, 1, RAY_ADDRESS=two_nodes))
    assert status == 1 and "rank 1 (node " in output and "died in fake.die" in output
    assert all_end(ranks_of(tmp_path), 5) == []


def test_a_cluster_frees_what_a_killed_driver_held(two_nodes, tmp_path):
    launch = start(tmp_path, "stop", 2, 1, RAY_ADDRESS=two_nodes)
    ranks = ranks_of(tmp_path)
    launch.kill()
    end(launch)
    assert all_end(ranks, 30) == []
    status, output = end(start(tmp_path, "add", 2, 1, RAY_ADDRESS=two_nodes))
    assert status == 0, output


@pytest.mark.parametrize(
    ("places", "told"),
    [
        ((1, 2), "trainer.n_gpus_per_node: 2 ranks ask for 2 CPUs on 1 node, but the Ray cluster has 2 nodes ("),
        ((3, 1), "trainer.nnodes: 3 ranks ask for 1 CPU on each of 3 nodes, but the Ray cluster has 2 nodes ("),
        (
            (2, 1, 1),
            "2 ranks ask for 1 CPU on each of 2 nodes, worker.rollout.n_gpus=1 for 1 CPU more, but the Ray",
        ),
    ],
)
def test_what_a_cluster_lacks_is_told(two_nodes, tmp_path, places, told):
    status, output = end(start(tmp_path, "add", *places, RAY_ADDRESS=two_nodes))
    assert status == 2 and told in output
    assert ": 1 CPUs, 0 GPUs" in output and "Traceback" not in output


def test_room_that_others_hold_is_told(two_nodes, tmp_path):
    first = start(tmp_path / "first", "stop", 2, 1, RAY_ADDRESS=two_nodes)
    ranks_of(tmp_path / "first")
    os.kill(first.pid, signal.SIGSTOP)  # keeps its ranks
    try:
        status, output = end(start(tmp_path / "second", "add", 2, 1, RAY_ADDRESS=two_nodes))
    finally:
        os.kill(first.pid, signal.SIGCONT)
    assert status == 2
    assert "the cluster has them, but others use them" in output and "free after 15 s" in output
    assert end(first)[0] == 0


def test_no_cluster_at_an_address_is_told(tmp_path):
    status, output = end(start(tmp_path, "add", RAY_ADDRESS="127.0.0.1:9"))
    assert status == 2
    assert "trainer.nnodes: no Ray cluster answers at 127.0.0.1:9" in output and "Traceback" not in output
    status, output = end(start(tmp_path, "add", RAY_ADDRESS="ray://127.0.0.1:9"))
    assert status == 2
    assert "is an address of the Ray client" in output


def free_ports(count):
    """Ports that nobody listens at."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def started(folder, *options):
    """The address of a cluster of `ray start`, noted in a place of its own."""
    shutil.rmtree(folder / "ray", ignore_errors=True)
    command = [*RAY, "start", "--head", "--port=0", "--num-cpus=3", *options]
    variables = {**os.environ, "RAY_TMPDIR": str(folder)}
    subprocess.run(command, env=variables, check=True, capture_output=True, timeout=90)
    try:
        yield (folder / "ray" / "ray_current_cluster").read_text()
    finally:
        for session in (folder / "ray").glob("session_2*"):
            stop(session)


def test_the_cluster_of_ray_start_is_found_and_stays(short_folder, tmp_path):
    with started(short_folder, "--include-dashboard=false") as address:
        for _ in range(2):
            status, output = end(start(tmp_path, "add", RAY_TMPDIR=str(short_folder)))
            assert status == 0 and f"connecting to the Ray cluster at {address}" in output, output
    status, output = end(start(tmp_path, "add", RAY_TMPDIR=str(short_folder)))  # a cluster that is no more
    assert status == 0 and "starting Ray for 2 ranks on this machine" in output, output


@pytest.mark.skipif(not JOBS and os.environ.get("EASYR1_CI") != "1", reason="needs ray[default], as the extra dev has")
def test_a_submitted_job_runs(short_folder, tmp_path):
    port, agent = free_ports(2)  # the usual ones may be another cluster's
    ports = (f"--dashboard-port={port}", f"--dashboard-agent-listen-port={agent}")
    with started(short_folder, "--include-dashboard=true", *ports):
        where = (f"--address=http://127.0.0.1:{port}", "--runtime-env=examples/runtime_env.yaml")
        command = [*RAY, "job", "submit", *where, "--", "env", f"PYTHONPATH=.:{HERE.relative_to(ROOT)}", *DRIVER]
        variables = {**os.environ, "RAY_AUTH_MODE": "token"}
        for what, status in (("add", 0), ("die", 1)):
            call = [*command, str(tmp_path), what]
            until = time.monotonic() + 90
            while True:
                done = subprocess.run(call, cwd=ROOT, env=variables, text=True, capture_output=True, timeout=240)
                if "No available agent" not in done.stderr or time.monotonic() > until:
                    break
                time.sleep(1)  # the agent that starts jobs comes up after the cluster
            assert done.returncode == status, done.stdout + done.stderr
            assert ("added [6.0, 6.0]" if what == "add" else "died in fake.die") in done.stdout


def stop(session):
    """The processes of one session; `ray stop` would end those of all."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if str(session).encode() in line and alive(int(entry.name)):
            os.kill(int(entry.name), signal.SIGKILL)
