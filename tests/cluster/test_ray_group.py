"""Calls that reach all ranks, with shares, progress, arrays and the driver's environment."""

import os
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import fakes
import numpy as np
import pytest
import ray
from conftest import SECRETS

from easyr1.cluster.ray_group import RayGroup


def test_every_rank_is_called_and_they_reach_one_another(group):
    assert group.num_replicas == 2
    assert group.call_all("fake.add", 3) == [(0, 6.0), (1, 6.0)]


def test_shares_come_back_in_order_and_their_progress_adds_up(group):
    told = []
    shares = [list(range(3)), list(range(90))]
    doubled = group.call_sharded("fake.share", shares, 2, progress=lambda *now: told.append(now))
    assert doubled == [[2 * item for item in share] for share in shares]
    assert told[-1] == (93, 93, 930)
    assert told == sorted(told) and {(all, tokens / done) for done, all, tokens in told if done} == {(93, 10)}


def test_ranks_of_one_replica_get_the_same_share_and_count_once(group):
    pair = RayGroup(group.watch, sequence=2)
    told = []
    assert pair.num_replicas == 1
    assert pair.call_sharded("fake.share", [[1, 2]], 3, progress=lambda *now: told.append(now)) == [[3, 6]]
    assert told[-1] == (2, 2, 20)
    with pytest.raises(ValueError, match="2 shares for 1 replicas"):
        pair.start_sharded("fake.share", [[1], [2]], 3)


def test_a_call_that_is_on_its_way_leaves_the_driver_free(group):
    first = group.start_sharded("fake.share", [[1], [2]], 2, reports_progress=True)
    second = group.start_all("fake.add", 1)
    assert second.results() == [(0, 2.0), (1, 2.0)]
    told = []
    assert first.results(lambda *now: told.append(now)) == [[2], [4]]
    assert told == [(2, 2, 20)]


def test_arrays_can_be_written_to_on_both_sides(group):
    sent = {"array": np.arange(5), "more": np.zeros(200_000, dtype=np.float32)}
    for answer in group.call_all("fake.change", sent):
        assert answer["array"].tolist() == [1, 2, 3, 4, 5]
        assert answer["more"].shape == (200_000,)
        answer["array"] += 1
        answer["more"] += 1
    assert sent["array"].tolist() == [0, 1, 2, 3, 4]


def test_the_environment_is_there_before_anything_is_imported(group):
    for name, secret in SECRETS.items():
        for value, directory, _ in group.call_all("fake.environment", name):
            assert value == secret
            assert directory == os.getcwd()


def test_values_of_the_environment_are_in_no_log(group, folder):
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    files = [file for place in (folder, session) for file in place.rglob("*") if file.is_file()]
    texts = {file: file.read_bytes() for file in files if file.stat().st_size < 50_000_000}
    assert len(texts) > 5
    for secret in SECRETS.values():
        assert [file for file, text in texts.items() if secret.encode() in text] == []


def test_each_rank_writes_to_its_own_log(group, folder):
    group.call_all("fake.say", "hello")
    for rank, (pid, _) in enumerate(group.call_all("fake.pids")):
        lines = (folder / "logs" / f"rank_{rank}.log").read_text().splitlines()
        assert lines[0].startswith(f"rank {rank} of 2 on ") and lines[0].endswith(f", pid {pid}")
        assert {"hello out", "hello err"} <= set(lines)


def test_signals_of_the_terminal_do_not_reach_ranks(group):
    for pid, process_group in group.call_all("fake.pids"):
        assert process_group == pid
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    assert group.call_all("fake.add", 1) == [(0, 2.0), (1, 2.0)]


class Asked(BaseException):
    """Raised by the handler of a signal."""


@contextmanager
def asked_after(seconds):
    """A signal comes, whose handler raises Asked; within a second after it the block must be left."""

    def take(*_):
        raise Asked

    before = signal.signal(signal.SIGUSR1, take)
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    start = time.monotonic()
    try:
        with pytest.raises(Asked):
            yield
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert time.monotonic() - start < seconds + 1


def test_a_signal_frees_a_waiting_driver_and_ranks_go_on(group):
    with asked_after(0.3):
        group.call_all("fake.sleep", 1, 2.0)
    assert group.call_all("fake.add", 1) == [(0, 2.0), (1, 2.0)]


def test_calls_that_need_no_other_rank_are_dropped_with_it(group):
    with asked_after(0.5):
        group.call_sharded("fake.go_on", [[], []], 600, 0.1)
    start = time.monotonic()
    assert group.call_all("fake.add", 1) == [(0, 2.0), (1, 2.0)]
    assert time.monotonic() - start < 5  # instead of 60


def test_nothing_is_left_in_the_run_folder_but_logs(group, folder):
    assert [path.name for path in folder.iterdir()] == ["logs"]
    assert fakes.make().keys() == {"fake"}
