"""Engines that compute nothing, for tests of the ranks that hold them."""

import os
import signal
import sys
import time

import ray
import torch
import torch.distributed as dist

from easyr1.errors import ConfigError, DataError

SEEN_AT_IMPORT = dict(os.environ)


class Fake:
    closed_in = None
    droppable = ("go_on",)

    def add(self, number):
        total = torch.tensor([float(number)])
        dist.all_reduce(total)
        return dist.get_rank(), total.item()

    def share(self, items, factor, progress=None):
        for index in range(len(items)):
            if progress is not None:
                progress(index + 1, len(items), 10 * (index + 1))  # the last as of tokens
            time.sleep(0.01)
        return [item * factor for item in items]

    def environment(self, name):
        return SEEN_AT_IMPORT.get(name), os.getcwd(), torch.get_num_threads()

    def change(self, record):
        """Writes into the array that came."""
        record["array"] += 1
        return record

    def say(self, text):
        sys.stdout.write(f"{text} out\n")
        os.write(2, f"{text} err\n".encode())

    def pids(self):
        return os.getpid(), os.getpgrp()

    def node(self):
        return ray.get_runtime_context().get_node_id(), dist.get_rank()

    def die(self, rank):
        if dist.get_rank() == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    def stop(self, rank):
        if dist.get_rank() == rank:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.barrier()

    def sleep(self, rank, seconds):
        if dist.get_rank() == rank:
            time.sleep(seconds)
        dist.barrier()

    def go_on(self, share, ticks, seconds, progress=None):
        for done in range(ticks):
            time.sleep(seconds)
            if progress is not None:
                progress(done + 1, ticks)

    def fail(self, rank, kind):
        if dist.get_rank() == rank:
            raise {"zero": ZeroDivisionError(), "data": DataError("row 7"), "key": ConfigError("a.b", "no")}[kind]
        dist.barrier()

    def with_child(self):
        """Starts a process of its own."""
        child = os.fork()
        if not child:
            time.sleep(600)
            os._exit(0)
        return child

    def close(self):
        if self.closed_in is not None:
            (self.closed_in / f"{dist.get_rank()}").touch()


def make():
    return {"fake": Fake()}
