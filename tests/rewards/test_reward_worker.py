"""The reward process: it scores, it is watched, it dies with its parent, and each failure names its samples."""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from easyr1.errors import RewardError
from easyr1.rewards.worker import RewardSpec, RewardWorker

ROOT = Path(__file__).resolve().parents[2]
NAMES = [f"row {row} of train.parquet" for row in (7, 7, 9, 9)]
INPUTS = [{"response": text, "response_length": 1, "ground_truth": "1"} for text in "abcd"]


@pytest.fixture
def worker(tmp_path):
    """Write a reward file, start a worker on its function `score`; all are closed in the end."""
    workers = []

    def start(code, kind="batch", timeout_s=30.0, **kwargs):
        file = tmp_path / f"reward{len(workers)}.py"
        file.write_text(textwrap.dedent(code))
        workers.append(RewardWorker(RewardSpec(file, "score", "mine", kind, kwargs), timeout_s))
        return workers[-1]

    yield start
    for started in workers:
        started.close()


def error_of(worker, inputs=INPUTS, names=NAMES):
    with pytest.raises(RewardError) as caught:
        worker.score(inputs, names)
    return str(caught.value)


def is_running(pid):
    """Whether a process is there and not a zombie that waits for its parent to look."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid, limit_s=10.0):
    deadline = time.monotonic() + limit_s
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


ECHO = """
    import os
    calls = 0
    def one(x, weight):
        return {"overall": weight * ord(x["response"]), "calls": calls, "pid": os.getpid()}
"""


def test_batch_and_sequential_functions_give_equal_scores_in_order(worker):
    batch = worker(ECHO + "    def score(xs, weight=1):\n        return [one(x, weight) for x in xs]\n", weight=2)
    one_by_one = worker(ECHO + "    def score(x, weight=1):\n        return one(x, weight)\n", "sequential", weight=2)
    first, second = batch.score(INPUTS, NAMES), one_by_one.score(INPUTS, NAMES)
    assert [scores["overall"] for scores in first] == [194.0, 196.0, 198.0, 200.0]
    assert [scores["overall"] for scores in second] == [scores["overall"] for scores in first]
    assert {scores["pid"] for scores in first}.isdisjoint([os.getpid()])


def test_one_process_keeps_its_state_and_a_batch_is_one_call(worker):
    code = """
        sizes = []
        def score(xs):
            sizes.append(len(xs))
            size = len(xs)
            xs.clear()  # its own copy: harmless
            return [{"overall": size, "calls": len(sizes)} for _ in range(size)]
    """
    counting = worker(code)
    assert counting.score(INPUTS, NAMES) == [{"overall": 4, "calls": 1}] * 4
    assert counting.score(INPUTS[:3], NAMES) == [{"overall": 3, "calls": 2}] * 3
    assert counting.score([], []) == []


def test_the_process_stays_small_beside_a_parent_with_torch(worker):
    import torch  # noqa: F401  the parent has it

    light = worker("import sys\ndef score(xs): return [{'overall': 'torch' in sys.modules} for _ in xs]")
    assert light.score(INPUTS[:1], NAMES) == [{"overall": 0.0}]


def test_progress_is_told_sample_by_sample_where_there_is_one_call_each(worker):
    seen = []
    one_by_one = worker("def score(x): return {'overall': 1}", "sequential")
    one_by_one.score(INPUTS, NAMES, progress=lambda done, all_: seen.append((done, all_)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_wrong_returns_name_function_sample_and_row(worker):
    missing = error_of(worker("def score(xs): return [{'overall': 1}] * 2 + [{'acc': 1}] + [{'overall': 1}]"))
    assert re.search(r"reward0\.py:score, sample 2 \(row 9 of train\.parquet\): returned no \"overall\"", missing)
    short = error_of(worker("def score(xs): return [{'overall': 1}] * 3"))
    assert re.search(r"reward1\.py:score, samples 0 to 3 \(row 7 .*, row 9 .*\): returned 3 scores for 4", short)
    nan = error_of(worker("def score(x): return {'overall': float('nan')}", "sequential"))
    assert "sample 0 (row 7" in nan
    assert "nan" in nan


def test_an_exception_names_the_sample_and_shows_the_users_lines(worker):
    code = """
        def parse(x):
            return int(x["response"])
        def score(x):
            return {"overall": parse(x) if x["response"] == "d" else 0}
    """
    message = error_of(worker(code, "sequential"))
    assert "sample 3 (row 9 of train.parquet): raised ValueError: invalid literal" in message
    assert "line 3, in parse" in message
    assert "line 5, in score" in message
    assert "process.py" not in message
    assert "samples 0 to 3" in error_of(worker("def score(xs): raise KeyError('a')"))


def test_a_hanging_sample_is_ended_and_named(worker):
    code = """
        import time
        def score(x):
            while x["response"] == "c":
                time.sleep(0.01)
            return {"overall": 1}
    """
    hanging = worker(code, "sequential", timeout_s=0.5)
    pid = hanging._process.popen.pid
    start = time.monotonic()
    message = error_of(hanging)
    assert time.monotonic() - start < 5
    assert "sample 2 (row 9 of train.parquet): gave no answer within 0.5 s (worker.reward.timeout_s)" in message
    assert not is_running(pid)
    assert "closed" in error_of(hanging)


def test_the_limit_counts_per_call_not_for_the_whole_rollout(worker):
    code = "import time\ndef score(x):\n    time.sleep(0.3)\n    return {'overall': 1}\n"
    assert len(worker(code, "sequential", timeout_s=0.8).score(INPUTS, NAMES)) == 4


def test_a_batch_that_holds_the_interpreter_lock_and_its_children_are_ended(worker, tmp_path):
    code = f"""
        import re, subprocess, sys
        def score(xs):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
            return re.fullmatch("(a+)+b", "a" * 60)
    """
    message = error_of(worker(code, timeout_s=1.0))
    assert "reward0.py:score, samples 0 to 3 (row 7" in message
    assert "gave no answer within 1 s" in message
    assert wait_until_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("deed", "told"),
    [
        ("os._exit(5)", "ended by itself with exit code 5"),
        ("sys.exit(4)", "ended by itself with exit code 4"),
        ("os.kill(os.getpid(), 9)", "was ended by SIGKILL; SIGKILL often means that the machine ran out of memory"),
        ("os.abort()", "was ended by SIGABRT"),
    ],
)
def test_a_process_that_dies_is_one_clear_error(worker, deed, told):
    code = f"import os, sys\ndef score(x):\n    if x['response'] == 'b': {deed}\n    return {{'overall': 1}}\n"
    assert f"sample 1 (row 7 of train.parquet): was running when its process {told}" in error_of(
        worker(code, "sequential")
    )


def test_death_is_seen_although_a_forked_child_holds_the_connection_open(worker):
    code = """
        import os, time
        def score(xs):
            if os.fork() == 0:
                time.sleep(4)
                os._exit(0)
            os._exit(6)
    """
    start = time.monotonic()
    assert "exit code 6" in error_of(worker(code))
    assert time.monotonic() - start < 3


def test_death_between_two_calls_is_told_at_the_next(worker):
    quiet = worker("def score(xs): return [{'overall': 1} for _ in xs]")
    os.kill(quiet._process.popen.pid, signal.SIGKILL)
    assert "was ended by SIGKILL" in error_of(quiet)


def test_an_interrupted_call_leaves_no_stale_scores_behind(worker):
    one_by_one = worker("def score(x): return {'overall': ord(x['response'])}", "sequential")

    def interrupt(done, _):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one_by_one.score(INPUTS, NAMES, progress=interrupt)
    assert "closed" in error_of(one_by_one)


class Watched:
    """Counts looks at what else could go wrong; the one numbered `fails` finds something."""

    def __init__(self, fails=0):
        self.fails = fails
        self.looks = []

    def __call__(self):
        self.looks.append(time.monotonic())
        if len(self.looks) == self.fails:
            raise KeyError("a rank died")


def test_what_goes_wrong_elsewhere_ends_the_wait_for_one_long_call(worker):
    slow = worker("import time\ndef score(xs):\n    time.sleep(600)\n", timeout_s=None)
    slow.meanwhile = Watched(fails=2)
    pid, start = slow._process.popen.pid, time.monotonic()
    with pytest.raises(KeyError, match="a rank died"):
        slow.score(INPUTS, NAMES)
    assert 0.9 < time.monotonic() - start < 5
    assert not is_running(pid)
    assert "closed" in error_of(slow)


def test_others_are_looked_at_about_once_a_second_between_many_short_calls_too(worker):
    short = worker("import time\ndef score(x):\n    time.sleep(0.04)\n    return {'overall': 1}\n", "sequential")
    short.meanwhile = Watched()
    start = time.monotonic()
    short.score(INPUTS * 15, NAMES * 15)
    looks = short.meanwhile.looks
    assert 2 <= len(looks) <= 1 + time.monotonic() - start
    assert all(later - sooner >= 1.0 for sooner, later in itertools.pairwise(looks))


def test_a_file_changed_after_the_check_is_told(tmp_path):
    (tmp_path / "gone.py").write_text("def other(xs): ...")
    with pytest.raises(RewardError, match="no function 'score' any more"):
        RewardWorker(RewardSpec(tmp_path / "gone.py", "score", "gone", "batch"))


def test_close_ends_the_process_and_may_be_repeated(worker):
    closing = worker("def score(xs): return [{'overall': 1} for _ in xs]")
    pid = closing._process.popen.pid
    with closing:
        closing.score(INPUTS, NAMES)
    assert not is_running(pid)
    closing.close()


PARENT = """
    import sys, time
    from pathlib import Path
    import guard  # stands for torch: the main module is heavy
    from easyr1.rewards.worker import RewardSpec, RewardWorker

    worker = RewardWorker(RewardSpec(Path(sys.argv[1]), "score", "mine", "batch"))  # no main guard on purpose
    print("worker", worker._process.popen.pid, flush=True)
    mode = sys.argv[2]
    if mode == "idle":
        time.sleep(600)
    elif mode == "leave":
        print(worker.score([{"response": "a"}], ["row 0"]))
    else:
        worker.score([{"response": "a"}], ["row 0"])
"""
REGEX_HANG = (
    "import re\ndef score(xs):\n    print('hanging', flush=True)\n    return re.fullmatch('(a+)+b', 'a' * 60)\n"
)
QUICK = (
    "import sys\nprint('said by the file')\ndef score(xs): return [{'overall': 'guard' in sys.modules} for _ in xs]\n"
)


@pytest.fixture
def parent(tmp_path):
    """Start a program that owns a worker; returns it, its first line read, and the worker's process id."""
    programs, workers = [], []

    def start(code, mode):
        (tmp_path / "reward.py").write_text(code)
        (tmp_path / "guard.py").write_text("")
        (tmp_path / "program.py").write_text(textwrap.dedent(PARENT))
        program = subprocess.Popen(
            [sys.executable, tmp_path / "program.py", tmp_path / "reward.py", mode],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        programs.append(program)
        for line in program.stdout:
            if line.startswith("worker"):
                workers.append(int(line.split()[1]))
                return program, workers[-1]
        raise AssertionError(program.stderr.read())

    yield start
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # an orphan would hold the pipes that we read from
    for program in programs:
        program.kill()
        program.communicate()


@pytest.mark.parametrize(("code", "mode"), [(QUICK, "idle"), (REGEX_HANG, "hang")])
def test_no_orphan_stays_when_the_parent_is_killed(parent, code, mode):
    program, pid = parent(code, mode)
    if mode == "hang":
        assert program.stdout.readline() == "hanging\n"
    assert is_running(pid)
    program.kill()
    program.wait()
    assert wait_until_gone(pid)


def test_leaving_without_close_is_quiet_and_what_the_file_prints_gets_through(parent):
    program, pid = parent(QUICK, "leave")
    out, errors = program.communicate(timeout=20)
    assert program.returncode == 0
    assert errors == ""
    assert "[{'overall': 0.0}]" in out  # the program's main module was not run again in the worker
    assert not is_running(pid)


def test_ctrl_c_is_one_traceback_of_the_parent(parent):
    program, pid = parent("import time\ndef score(xs):\n    print('busy', flush=True)\n    time.sleep(600)\n", "busy")
    assert program.stdout.readline() == "busy\n"
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=20)
    assert errors.count("Traceback") == 1
    assert "KeyboardInterrupt" in errors
    assert wait_until_gone(pid)
