"""A job on several ranks: processes forked from this one, joined by gloo."""

import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist


def on_ranks(world: int, job: Callable[..., Any], *arguments: Any, timeout_s: float = 120.0) -> list[Any]:
    """What `job(*arguments)` returned on each rank, by rank; fails with the traceback of the first rank that fails.

    The process group is there when the job starts. Its result is pickled: no DTensors.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        children = [_fork(rank, world, job, arguments, folder, timeout_s) for rank in range(world)]
        _wait(children, timeout_s)
        found = [pickle.loads(file.read_bytes()) for rank in range(world) if (file := folder / f"{rank}").is_file()]
    told = sorted((moment, problem) for moment, problem, _ in found if problem)
    assert not told, told[0][1]
    assert len(found) == world, "a rank died, or the time was over"
    return [result for _, _, result in found]


def _fork(
    rank: int, world: int, job: Callable[..., Any], arguments: tuple[Any, ...], folder: Path, timeout_s: float
) -> int:
    child = os.fork()
    if child:
        return child
    problem, result = "", None
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder / 'meeting'}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=timeout_s),
        )
        result = job(*arguments)
        dist.barrier()  # nobody leaves while another one still needs it
    except BaseException:
        problem = f"rank {rank}:\n{traceback.format_exc()}"
    try:
        (folder / f"{rank}").write_bytes(pickle.dumps((time.monotonic(), problem, result)))
    finally:
        # Past the interpreter's own way out, in which a thread of gloo that still frees a tensor would abort.
        os._exit(bool(problem))


def _wait(children: list[int], timeout_s: float) -> None:
    """Until all have ended; the others are killed a moment after one has failed, and all when the time is over."""
    waiting, end = set(children), time.monotonic() + timeout_s
    while waiting:
        for child in list(waiting):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                waiting.discard(child)
                if status:
                    end = min(end, time.monotonic() + 2)
        if time.monotonic() > end:
            for child in waiting:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            return
        time.sleep(0.01)
