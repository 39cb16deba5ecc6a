"""Engines that compute nothing, for tests of the ranks that hold them."""

import os
import signal
import time

import torch
import torch.distributed as dist


class Fake:
    def add(self, number):
        total = torch.tensor([float(number)])
        dist.all_reduce(total)
        return dist.get_rank(), total.item()

    def share(self, items, factor, progress=None):
        for index in range(len(items)):
            if progress is not None:
                progress(index + 1, len(items))
            time.sleep(0.01)
        return [item * factor for item in items]

    def die(self, rank):
        if dist.get_rank() == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    def stop(self, rank):
        if dist.get_rank() == rank:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.barrier()


def make():
    return {"fake": Fake()}
