"""The training phase on one rank and on two, one thread each, with as many samples for every rank (weak scaling).

    OMP_NUM_THREADS=1 python benchmarks/ranks.py [ROUNDS]

A phase is what a step does behind sampling: old log-probs of all groups, then two updates. Ways, in turn: `one` rank
by itself; `apart`, two such at once that know nothing of each other, which is what the machine loses by itself; `two`
ranks of one model joined by gloo, its weights sharded over both; `copies`, the same with a copy of the weights on each
(fsdp_size=1), as a model that fits has it; and `ray`, as `two` in actors of Ray called by a driver as a run calls
them, whose wall seconds are the driver's. Efficiency: seconds of one over seconds of two, which have twice the
samples. Needs two free cores.
"""

import functools
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TQDM_DISABLE"] = "1"
os.environ["RAY_ADDRESS"] = "local"
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
import scenes
import tiny
import torch
import torch.distributed as dist
from interleaved import say

from easyr1.balance import Size, share_out
from easyr1.batch import Group, all_samples
from easyr1.cluster.engines import Balance, SharedTrain
from easyr1.cluster.place import Places
from easyr1.cluster.ray_group import open_ray_group
from easyr1.engines.objective import PolicyObjective
from easyr1.engines.optimizer import OptimSpec
from easyr1.engines.pack import Budget
from easyr1.engines.train import TorchTrain
from easyr1.models.build import ModelSpec, build
from easyr1.models.ranks import join

KIND = "qwen2_5_vl"
GROUPS_PER_RANK, ANSWERS, UPDATES = 32, 8, 2
BUDGET = Budget(tokens=16384)
PICTURE = tiny.token_id("<|image_pad|>")
ROUNDS = 7


def scene_and_groups() -> tuple[scenes.Scene, list[Group]]:
    """Pictures and ragged groups for two ranks, the same in every process."""
    scene = scenes.Scene(KIND)
    groups = []
    for index in range(2 * GROUPS_PER_RANK):
        prompt = scene.prompt(24 + 8 * (index % 5), ((224, 224), (168, 224), (224, 112))[index % 3], index=index)
        groups.append(Group(prompt, [scene.sample(int(scene.rng.integers(32, 128))) for _ in range(ANSWERS)]))
    for sample in all_samples(groups):
        sample.advantages = np.full(len(sample), scene.rng.normal(), np.float32)
        sample.old_log_probs = scene.rng.normal(-6.2, 0.1, len(sample)).astype(np.float32)
    return scene, groups


def engine(folder: str, fsdp_size: int = -1) -> TorchTrain:
    """Of one rank, or of one of those that were joined."""
    torch.set_num_threads(1)
    scene, _ = scene_and_groups()
    ranks = join(torch.device("cpu"), fsdp_size)
    scored = build(ModelSpec(folder), ranks=ranks)
    return TorchTrain(scored, scene.media, 1.0, BUDGET, BUDGET, PolicyObjective(), OptimSpec(lr=1e-6), ranks=ranks)


def mini_batches(groups: Sequence[Group]) -> list[list[Group]]:
    size = len(groups) // UPDATES
    return [list(groups[start : start + size]) for start in range(0, len(groups), size)]


def phase(train: Any, groups: Sequence[Group], share: Callable[[Sequence[Group]], list[Group]]) -> None:
    """`share` picks what this rank gets of the groups that are computed together."""
    train.score(share(groups))
    for batch in mini_batches(groups):
        train.update(share(batch), 1e-6)


def shares(groups: Sequence[Group], replicas: int) -> list[list[Group]]:
    """As a run shares them out."""
    sizes = [
        Size(len(group.prompt.ids), tuple(map(len, group.samples)), int((group.prompt.ids == PICTURE).sum()))
        for group in groups
    ]
    found = share_out(sizes, replicas)
    return [
        [Group(groups[part.group].prompt, [groups[part.group].samples[one] for one in part.answers]) for part in share]
        for share in found
    ]


def serve(pipe: Connection, folder: str, rank: int, world: int, meeting: str, fsdp_size: int) -> None:
    """A rank in a process: for each list of groups a phase, answered with its wall and CPU seconds."""
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    train = engine(folder, fsdp_size)
    pipe.send("ready")
    while (groups := pipe.recv()) is not None:
        start, cpu = time.perf_counter(), time.process_time()
        phase(train, groups, lambda some: shares(some, world)[rank])
        pipe.send((time.perf_counter() - start, time.process_time() - cpu))
    os._exit(0)  # past gloo's threads


class Ranks:
    """Processes that serve, `world` of them joined to one model."""

    def __init__(self, folder: str, world: int, meeting: str, fsdp_size: int = -1) -> None:
        context = multiprocessing.get_context("fork")
        self.pipes = []
        for rank in range(world):
            ours, theirs = context.Pipe()
            given = (theirs, folder, rank, world, meeting, fsdp_size)
            process = context.Process(target=serve, args=given, daemon=True)
            process.start()
            self.pipes.append(ours)
        assert [pipe.recv() for pipe in self.pipes] == ["ready"] * world

    def start(self, groups: Sequence[Group]) -> None:
        for pipe in self.pipes:
            pipe.send(groups)

    def seconds(self) -> tuple[float, float]:
        """Wall seconds of the slowest rank, CPU seconds of all."""
        found = [pipe.recv() for pipe in self.pipes]
        return max(wall for wall, _ in found), sum(cpu for _, cpu in found)


def one(alone: Sequence[Ranks], halves: Sequence[Sequence[Group]]) -> tuple[float, float]:
    """The mean of the two halves, one after the other."""
    found = []
    for ranks, half in zip(alone, halves, strict=True):
        ranks.start(half)
        found.append(ranks.seconds())
    return statistics.mean(wall for wall, _ in found), sum(cpu for _, cpu in found)


def apart(alone: Sequence[Ranks], halves: Sequence[Sequence[Group]]) -> tuple[float, float]:
    """Both halves at once; the mean, as neither waits for the other."""
    for ranks, half in zip(alone, halves, strict=True):
        ranks.start(half)
    found = [ranks.seconds() for ranks in alone]
    return statistics.mean(wall for wall, _ in found), sum(cpu for _, cpu in found)


def joined(two: Ranks, groups: Sequence[Group]) -> tuple[float, float]:
    two.start(groups)
    return two.seconds()


class Clocked(TorchTrain):
    """Tells its CPU seconds."""

    def cpu(self) -> float:
        return time.process_time()


def make_clocked(folder: str) -> dict[str, Any]:
    train = engine(folder)
    train.__class__ = Clocked
    return {"actor": train}


def through_ray(group: Any, train: SharedTrain, groups: Sequence[Group]) -> tuple[float, float]:
    before, start = sum(group.call_all("actor.cpu")), time.perf_counter()
    phase(train, groups, lambda some: list(some))
    wall = time.perf_counter() - start
    return wall, sum(group.call_all("actor.cpu")) - before


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = str(tiny.save(KIND, Path(name) / "model"))
        _, groups = scene_and_groups()
        halves = shares(groups, 2)  # of equal cost, as near as whole groups allow
        alone = [Ranks(folder, 1, "") for _ in range(2)]
        two = Ranks(folder, 2, f"{name}/meeting")
        copies = Ranks(folder, 2, f"{name}/meeting_of_copies", fsdp_size=1)
        make = functools.partial(make_clocked, folder)
        ray = stack.enter_context(open_ray_group(make, Places(1, 2, "cpu"), Path(name) / "run", 600))
        train = SharedTrain(ray, "actor", lambda handle: picture_tokens(groups, handle), balance := Balance())
        ways: dict[str, Callable[[], tuple[float, float]]] = {
            "one": lambda: one(alone, halves),
            "apart": lambda: apart(alone, halves),
            "two": lambda: joined(two, groups),
            "copies": lambda: joined(copies, groups),
            "ray": lambda: through_ray(ray, train, groups),
        }
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for number in range(rounds + 1):  # the first is not counted
            for way, run in ways.items():
                measured = run()
                if number:
                    found[way].append(measured)
        tell(found, groups, balance)


def picture_tokens(groups: Sequence[Group], handle: str) -> int:
    prompt = next(group.prompt for group in groups if handle in group.prompt.media)
    return prompt.ids.tolist().count(PICTURE)


def tell(found: dict[str, list[tuple[float, float]]], groups: Sequence[Group], balance: Balance) -> None:
    tokens = sum(group.num_tokens for group in groups)
    say(f"{len(groups)} groups of {ANSWERS} answers, {tokens} tokens with shared prompts, half of them on each rank")
    wall = {way: statistics.median(seconds for seconds, _ in rows) for way, rows in found.items()}
    cpu = {way: statistics.median(seconds for _, seconds in rows) for way, rows in found.items()}
    say(f"{'way':8}{'wall s':>10}{'CPU s, all':>12}{'wall efficiency':>17}{'CPU efficiency':>16}{'of apart':>10}")
    for way in found:
        numbers = (wall["one"] / wall[way], cpu["one"] / cpu[way], wall["apart"] / wall[way])
        say(f"{way:8}{wall[way]:10.3f}{cpu[way]:12.3f}{numbers[0]:17.2f}{numbers[1]:16.2f}{numbers[2]:10.2f}")
    spread = ", ".join(f"{way} {min(rows)[0]:.3f}-{max(rows)[0]:.3f}" for way, rows in found.items())
    say(f"wall seconds from least to most: {spread}")
    told = ", ".join(f"{name.removeprefix('balance/')} {value:.3f}" for name, value in balance.take().items())
    say(f"largest over mean cost of a rank: {told}")
    say(f"medians of {len(found['one'])}; the aim is a wall efficiency of at least 0.85")


if __name__ == "__main__":
    main()
