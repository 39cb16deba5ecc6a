"""One training on any number of ranks: the same model and groups, told what a rank gets, and what came of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import scenes
import tiny
import torch
from ranks import on_ranks

from easyr1.batch import Group, Sums, all_samples, merge_sums
from easyr1.engines.objective import Objective, PolicyObjective
from easyr1.engines.optimizer import OptimSpec
from easyr1.engines.pack import Budget
from easyr1.engines.train import TorchTrain
from easyr1.models.build import ModelSpec, build, build_critic
from easyr1.models.ranks import Ranks, join
from easyr1.models.scored import Unadapted

LR = 1e-4
Shares = Callable[[Sequence[Group], int], list[list[Group]]]  # groups, number of replicas -> what each gets


def alternating(groups: Sequence[Group], count: int) -> list[list[Group]]:
    return [list(groups[number::count]) for number in range(count)]


def pictures_apart(groups: Sequence[Group], count: int) -> list[list[Group]]:
    """All pictures on the first, all rows of text on the last."""
    shares: list[list[Group]] = [[] for _ in range(count)]
    for group in groups:
        shares[0 if group.prompt.media else -1].append(group)
    return shares


def all_on_the_last(groups: Sequence[Group], count: int) -> list[list[Group]]:
    return [[] for _ in range(count - 1)] + [list(groups)]


@dataclass(frozen=True)
class Training:
    """What to train, and how. `steps` updates on the same groups."""

    spec: ModelSpec
    kind: str
    objective: Objective = field(default_factory=PolicyObjective)
    optim: OptimSpec = field(default_factory=lambda: OptimSpec(lr=LR, max_grad_norm=0.1))
    budget: Budget = field(default_factory=lambda: Budget(tokens=130))
    steps: int = 5
    shares: Shares = alternating
    is_critic: bool = False
    fsdp_size: int = -1
    reduce_each_micro_batch: bool = False
    seed: int = 0  # of what is drawn when adapters are made
    texts: int = 1  # more rows of text than the scene has

    def groups(self, scene: scenes.Scene) -> list[Group]:
        groups = scene.groups()
        groups += [
            Group(scene.prompt(8 + 5 * index, index=9 + index), [scene.sample(9), scene.sample(4 + index)])
            for index in range(self.texts)
        ]
        for sample in all_samples(groups):
            length = len(sample)
            sample.advantages = np.full(length, scene.rng.normal(), np.float32)
            sample.old_log_probs = scene.rng.normal(-6.3, 0.3, length).astype(np.float32)
            sample.ref_log_probs = scene.rng.normal(-6.3, 0.3, length).astype(np.float32)
            sample.values = scene.rng.normal(0, 0.3, length).astype(np.float32)
            sample.returns = scene.rng.normal(0, 1.0, length).astype(np.float32)
        return groups

    def engine(self, ranks: Ranks, scene: scenes.Scene) -> TorchTrain:
        torch.manual_seed(self.seed + ranks.rank)
        scored = build_critic(self.spec, ranks) if self.is_critic else build(self.spec, ranks=ranks)
        return TorchTrain(
            scored,
            scene.media,
            1.0,
            self.budget,
            self.budget,
            self.objective,
            self.optim,
            ranks=ranks,
            reduce_each_micro_batch=self.reduce_each_micro_batch,
        )


@dataclass
class Outcome:
    """Sums of each step, the scores of each sample before the first, and the weights after the last."""

    steps: list[Sums]
    scores: list[list[np.ndarray]]
    weights: dict[str, torch.Tensor]
    reference: list[list[np.ndarray]]  # what the model without its adapters says after the last step; of each sample


def run(training: Training, ranks: Ranks) -> Outcome:
    """This rank's part of a training."""
    scene = scenes.Scene(training.kind)
    groups = training.groups(scene)
    share = training.shares(groups, ranks.num_replicas)[ranks.replica]
    engine = training.engine(ranks, scene)
    scores = engine.score(share)
    steps = [engine.update(share, training.optim.lr, kl_coef=0.1) for _ in range(training.steps)]
    assert engine.version == training.steps
    weights = {name: tensor.clone() for name, tensor in engine.weights()}
    if training.is_critic:
        weights["value_head.weight"] = engine.scored.state_dict()["value_head.weight"]
        if ranks.mesh is not None:
            weights["value_head.weight"] = weights["value_head.weight"].full_tensor()
    reference = []
    if training.spec.lora is not None:
        frozen = TorchTrain(Unadapted(engine.scored), scene.media, 1.0, training.budget, ranks=ranks)
        reference = frozen.score(share)
    return Outcome(steps, scores, weights, reference)


def _on_rank(training: Training) -> Outcome:
    return run(training, join(torch.device("cpu"), training.fsdp_size))


def on(world: int, training: Training) -> Outcome:
    """The training on that many ranks, put together as the trainer's driver does."""
    parts = on_ranks(world, _on_rank, training)
    for part in parts[1:]:
        for name, tensor in part.weights.items():
            assert torch.equal(tensor, parts[0].weights[name]), f"ranks differ in {name}"
    groups = training.groups(scenes.Scene(training.kind))
    whole = [id(group) for group in groups]
    scores, reference = ([[] for _ in groups] for _ in range(2))
    for share, part in zip(training.shares(groups, world), parts, strict=True):
        for together, own in ((scores, part.scores), (reference, part.reference)):
            for group, found in zip(share if own else (), own, strict=True):
                together[whole.index(id(group))] = found
    steps = [merge_sums(part.steps[number] for part in parts) for number in range(training.steps)]
    return Outcome(steps, scores, parts[0].weights, reference)


def saved(kind: str, folder: Path, **sizes) -> Path:
    """A model with peaked attention, as a hub folder has it."""
    tiny.peak(tiny.build(kind, **sizes)).save_pretrained(folder)
    return folder


def assert_same(left: Outcome, right: Outcome, tolerance: float = 1e-5) -> None:
    """Losses, metrics, scores and weights are alike; with tolerance 0 to the last bit."""
    for one, other in zip(left.steps, right.steps, strict=True):
        assert one.totals.keys() == other.totals.keys() and one.peaks.keys() == other.peaks.keys()
        for name, (total, count) in one.totals.items():
            if (
                name == "critic/vf_clipfrac" and tolerance
            ):  # decided by the last bit where a value has not left its range
                continue
            close(total, other.totals[name][0], tolerance, name)
            close(count, other.totals[name][1], min(tolerance, 1e-9), name)
        for name, value in one.peaks.items():
            close(value, other.peaks[name], tolerance, name)
    for one, other in zip(left.scores, right.scores, strict=True):
        for found, wanted in zip(one, other, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * 10)
    assert left.weights.keys() == right.weights.keys()
    for name, tensor in left.weights.items():
        torch.testing.assert_close(
            tensor, right.weights[name], rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n} {m}"
        )


def close(found: float, wanted: float, tolerance: float, name: str) -> None:
    assert abs(found - wanted) <= tolerance * max(1.0, abs(wanted)), (name, found, wanted)
