"""A rank that fails, dies or stands still: who is named, who is left."""

import os
import signal
import time
from contextlib import contextmanager

import fakes
import pytest

from easyr1.cluster.failure import RankError
from easyr1.cluster.place import Places
from easyr1.cluster.ray_group import open_ray_group
from easyr1.cluster.watch import alive
from easyr1.errors import ConfigError, DataError
from easyr1.trainer.stop import Stopped, StopSignals


@contextmanager
def two_ranks(folder, hang_timeout_s=60.0):
    """A group of its own; at its end no rank is alive."""
    pids = []
    try:
        with open_ray_group(fakes.make, Places(1, 2, "cpu"), folder, hang_timeout_s) as ranks:
            pids = [rank.identity.pid for rank in ranks.watch.ranks]
            yield ranks
    finally:
        assert len(pids) == 2 and not any(alive(pid) for pid in pids)


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_and_is_named(cluster, tmp_path):
    with two_ranks(tmp_path) as ranks:
        pid = ranks.watch.ranks[1].identity.pid
        children = ranks.call_all("fake.with_child")
        ranks.call_all("fake.say", "last words")
        start = time.monotonic()
        with pytest.raises(RankError) as told:
            ranks.call_all("fake.die", 1)
        assert time.monotonic() - start < 20
        assert str(told.value).startswith("rank 1 (node ")
        for part in (f"pid {pid}) died in fake.die", "last words err", str(tmp_path / "logs" / "rank_1.log")):
            assert part in str(told.value)
        assert "rank 0" not in str(told.value)
        with pytest.raises(RankError, match=r"died in fake\.die"):
            ranks.call_all("fake.add", 1)
    end = time.monotonic() + 5
    while any(alive(child) for child in children) and time.monotonic() < end:
        time.sleep(0.05)
    left = [rank for rank, child in enumerate(children) if alive(child)]
    for rank in left:
        os.kill(children[rank], signal.SIGKILL)
    assert left == []


@pytest.mark.slow
def test_a_rank_that_was_killed_between_calls_is_found_by_the_next(cluster, tmp_path):
    with two_ranks(tmp_path) as ranks:
        pid = ranks.watch.ranks[0].identity.pid
        ranks.check()
        os.kill(pid, signal.SIGKILL)
        while alive(pid):
            time.sleep(0.02)
        with pytest.raises(RankError, match=r"(?s)rank 0 .* died between two calls"):
            ranks.check()
        with pytest.raises(RankError, match="between two calls"):
            ranks.call_all("fake.add", 1)


@pytest.mark.slow
def test_a_rank_that_dies_before_anybody_waits_for_a_call_died_in_it(cluster, tmp_path):
    with two_ranks(tmp_path) as ranks:
        call = ranks.start_all("fake.die", 1)
        while alive(ranks.watch.ranks[1].identity.pid):
            time.sleep(0.02)
        with pytest.raises(RankError, match=r"(?s)rank 1 .* died in fake\.die"):
            call.results()


@pytest.mark.slow
def test_a_signal_never_divides_a_call(cluster, tmp_path):
    """It comes when one rank has the call and the other has not: both must get it, or the one waits for ever."""

    class Between:
        def __init__(self, actor):
            self.actor = actor

        def __getattr__(self, name):
            if name == "call":
                signal.raise_signal(signal.SIGTERM)
            return getattr(self.actor, name)

    with two_ranks(tmp_path, hang_timeout_s=15) as ranks:
        second = ranks.watch.ranks[1]
        actor, second.actor = second.actor, Between(second.actor)
        with StopSignals() as stop:
            with pytest.raises(Stopped), stop.at_once():
                ranks.call_all("fake.add", 100)
            second.actor = actor
            assert ranks.call_all("fake.add", 3) == [(0, 6.0), (1, 6.0)]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_is_named_and_ended(cluster, tmp_path, rank):
    with two_ranks(tmp_path, hang_timeout_s=2) as ranks:
        start = time.monotonic()
        with pytest.raises(RankError) as told:
            ranks.call_all("fake.stop", rank)
        assert 2 <= time.monotonic() - start < 15
        assert str(told.value).startswith(f"rank {rank} (node ")
        assert "hangs in fake.stop: no progress for trainer.hang_timeout_s=2 s, no answer" in str(told.value)


@pytest.mark.slow
def test_a_rank_that_answers_but_makes_no_progress_is_shown_where_it_stands(cluster, tmp_path):
    with two_ranks(tmp_path, hang_timeout_s=2) as ranks:
        shares = [[], []]
        ranks.call_sharded("fake.go_on", shares, 4, 0.8)  # slower, but it goes on
        with pytest.raises(RankError) as told:
            ranks.call_all("fake.sleep", 1, 60)
        assert "rank 0" in str(told.value) and "rank 1" in str(told.value)
        assert "hang in fake.sleep" in str(told.value) and "dist.barrier()" in str(told.value)


@pytest.mark.slow
def test_an_exception_comes_with_the_traceback_of_its_rank(cluster, tmp_path):
    with two_ranks(tmp_path) as ranks:
        with pytest.raises(RankError) as told:
            ranks.call_all("fake.fail", 1, "zero")
        assert str(told.value).startswith("rank 1 (node ")
        for part in ("failed in fake.fail", "Traceback", "fakes.py", "in fail", "ZeroDivisionError"):
            assert part in str(told.value)
        assert "ZeroDivisionError" in (tmp_path / "logs" / "rank_1.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "error", "text"), [("data", DataError, "row 7"), ("key", ConfigError, "a.b: no")])
def test_errors_for_the_user_come_back_as_themselves(cluster, tmp_path, kind, error, text):
    with two_ranks(tmp_path) as ranks:
        with pytest.raises(error) as told:
            ranks.call_all("fake.fail", 0, kind)
        assert type(told.value) is error and str(told.value) == text
        assert getattr(told.value, "key", "a.b") == "a.b"


@pytest.mark.slow
def test_engines_that_cannot_be_built_end_the_run(cluster, tmp_path):
    def broken():
        raise ConfigError("worker.actor.model.model_path", "no such model")

    with pytest.raises(ConfigError, match="no such model"), open_ray_group(broken, Places(1, 2, "cpu"), tmp_path, 60):
        pytest.fail("it opened")


@pytest.mark.slow
def test_engines_are_closed_at_a_good_end_only(cluster, tmp_path):
    def make():
        engine = fakes.Fake()
        engine.closed_in = tmp_path
        return {"fake": engine}

    with pytest.raises(ZeroDivisionError), open_ray_group(make, Places(1, 2, "cpu"), tmp_path, 60):
        raise ZeroDivisionError
    assert not (tmp_path / "0").exists()
    with open_ray_group(make, Places(1, 2, "cpu"), tmp_path, 60):
        pass
    assert (tmp_path / "0").exists() and (tmp_path / "1").exists()
