"""The engines of one rank, built in that rank: all that computes with a model. The same for one rank and for many.

Every rank builds the same things in the same order, as putting weights in place takes all of them.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from easyr1.algorithms.needs import NEEDS
from easyr1.batch import Completion, Prompt
from easyr1.cluster.group import LocalGroup, WorkerGroup
from easyr1.config.plan import Plan
from easyr1.config.schema import Config
from easyr1.data.media import MediaStore
from easyr1.data.model_files import FILES_FOLDER
from easyr1.engines.pack import MediaInputs
from easyr1.engines.protocols import Progress, RolloutEngine, Sampling
from easyr1.engines.sync import WeightSync
from easyr1.engines.train import TorchTrain
from easyr1.errors import writing
from easyr1.manifest import Listing, file_sizes
from easyr1.models.build import build
from easyr1.models.lora import ADAPTER_FOLDER, describe, write_adapter
from easyr1.models.ranks import Ranks, writes
from easyr1.tracking.progress import Progress as Phases
from easyr1.trainer.parts import (
    actor_engine,
    critic_engine,
    join_ranks,
    model_spec,
    reference_engine,
    rollout_engine,
)
from easyr1.trainer.random_state import seed_generators


@contextmanager
def open_ranks(
    config: Config, plan: Plan, media: MediaStore | None, progress: Phases, tell: Callable[[str], None]
) -> Iterator[WorkerGroup]:
    """The ranks with their models: one in this process, or several in their own, which end with the block."""
    make = Rank(config, plan, media)
    with ExitStack() as stack:
        with progress.phase("building the model"):
            if plan.world_size == 1:
                group: WorkerGroup = LocalGroup(make())
            else:
                group = stack.enter_context(_many(make, tell))
        yield group


def _many(make: "Rank", tell: Callable[[str], None]) -> AbstractContextManager[WorkerGroup]:
    """Ranks in processes of their own; Ray is loaded for them alone."""
    from easyr1.cluster.place import Places
    from easyr1.cluster.ray_group import open_ray_group

    trainer, plan = make.config.trainer, make.plan
    per_node = plan.world_size // trainer.nnodes
    places = Places(trainer.nnodes, per_node, plan.device or "cpu", make.config.worker.actor.ulysses_size)
    timeline = trainer.ray_timeline
    make = replace(make, media=None if make.media is None else make.media.for_ranks(per_node))
    return open_ray_group(make, places, plan.run_folder, trainer.hang_timeout_s, tell, timeline=timeline)


@dataclass(frozen=True)
class Rank:
    """What a rank is made of; it can be pickled, and called in the process of the rank once its group is there."""

    config: Config
    plan: Plan
    media: MediaStore | None  # None: a text model

    def __call__(self) -> dict[str, Any]:
        """Engines by name: actor, rollout, sync and files; reference and critic where the run needs them."""
        config, plan = self.config, self.plan
        seed_generators(config.data.seed)
        media: MediaInputs = self.media.inputs if self.media is not None else no_media
        ranks = join_ranks(config, plan, config.worker.actor.fsdp)
        scored = build(model_spec(config, plan), ranks=ranks)
        reference = reference_engine(config, plan, scored, media, ranks)
        actor = actor_engine(config, plan, scored, media, reference, ranks)
        engines: dict[str, Any] = {"actor": actor}
        if reference is not None:
            engines["reference"] = reference
        if NEEDS[config.algorithm.adv_estimator].values:
            engines["critic"] = critic_engine(config, plan, media)
        trained = {name: engines[name] for name in ("actor", "critic") if name in engines}
        sampler = rollout_engine(config, plan, scored, media, ranks)
        sync = WeightSync(actor, sampler, shares_module=ranks.mesh is None and plan.rollout_engine == "torch")
        sync.push()
        rollout = RankRollout(sampler, self.media, ranks, resting(config, engines, ranks))
        return engines | {"rollout": rollout, "sync": sync, "files": ModelFiles(trained)}


@dataclass(frozen=True)
class Resting:
    """A model while the sampler has the device."""

    engine: TorchTrain
    weights: bool  # whether they go to host memory
    optimizer: bool


def resting(config: Config, engines: Mapping[str, TorchTrain], ranks: Ranks) -> list[Resting]:
    """What is put away while answers are sampled; nothing on a rank that is alone.

    A reference that is the policy without its adapters has no weights of its own.
    """
    if ranks.mesh is None:
        return []
    worker = config.worker
    offload = {"actor": worker.actor.offload, "reference": worker.ref.offload, "critic": worker.critic.offload}
    found = [
        Resting(
            engines[name],
            keys.offload_params,
            keys.offload_optimizer and engines[name].optimizer is not None,
        )
        for name, keys in offload.items()
        if name in engines and engines[name].scored.root is engines[name].scored
    ]
    return [one for one in found if one.weights or one.optimizer]


@dataclass
class RankRollout:
    """A rank's RolloutEngine: pictures are decoded ahead of it, and ranks that share sequences in training, and so are
    asked the same, share the prompts.
    """

    engine: RolloutEngine
    media: MediaStore | None
    ranks: Ranks
    resting: Sequence[Resting]

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        number, count = self.ranks.rank % self.ranks.sequence, self.ranks.sequence
        own = prompts[number::count]
        if self.media is not None:
            self.media.prefetch(handle for prompt in own for handle in prompt.media)
        with self._device():
            found = self.engine.generate(own, sampling, progress)
        answers: list[list[Completion]] = [[] for _ in prompts]
        for place, part in enumerate(self.ranks.gather_peers(found)):
            answers[place::count] = part
        return answers

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        self.engine.load(weights, version)

    def rest(self) -> None:
        self.engine.rest()

    @property
    def droppable(self) -> tuple[str, ...]:
        """What may be left half done: nothing that another rank waits for."""
        return getattr(self.engine, "droppable", ()) if self.ranks.sequence == 1 else ()

    @contextmanager
    def _device(self) -> Iterator[None]:
        """For the sampler, as far as other models are put away for it."""
        for one in self.resting:
            one.engine.sleep(one.weights, one.optimizer)
        try:
            yield
        finally:
            for one in self.resting:
                one.engine.wake()


@dataclass
class ModelFiles:
    """What people and other programs want to know of the trained models, besides their weights."""

    trained: Mapping[str, TorchTrain]

    def adapters(self) -> dict[str, tuple[str, list[str]]]:
        """Of each model with adapters: a sentence about them, and the full names of their layers."""
        found = {name: describe(engine.scored) for name, engine in self.trained.items()}
        return {name: told for name, told in found.items() if told is not None}

    def write(self, actor: Path, base: str | None) -> None:
        """Into the actor's folder: its configuration, and its adapters as peft reads them, over the model `base`.

        CheckpointError if they cannot be written.
        """
        scored = self.trained["actor"].scored
        if writes():
            with writing(actor / FILES_FOLDER):
                scored.model.config.save_pretrained(actor / FILES_FOLDER)
        if base is not None:
            with writing(actor / ADAPTER_FOLDER):
                write_adapter(scored, actor / ADAPTER_FOLDER, base)

    def seen(self, folder: Path) -> Listing:
        """The files below a folder as this rank's machine has them."""
        return Listing(platform.node(), file_sizes(folder))


def no_media(handle: str) -> NoReturn:
    raise AssertionError(f"a text model was asked for the picture {handle}")
