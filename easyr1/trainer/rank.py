"""The engines of one rank, built in that rank: all that computes with a model. The same for one rank and for many.

Every rank builds the same things in the same order, as putting weights in place takes all of them.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from easyr1.algorithms.needs import NEEDS
from easyr1.batch import Completion, Prompt
from easyr1.cluster.engines import stream_weights
from easyr1.cluster.group import LocalGroup, WorkerGroup
from easyr1.config.plan import Plan
from easyr1.config.schema import Config
from easyr1.data.media import MediaStore
from easyr1.data.model_files import FILES_FOLDER
from easyr1.engines.pack import MediaInputs
from easyr1.engines.protocols import Progress, RolloutEngine, Sampling
from easyr1.engines.sync import WeightInlet, WeightSync
from easyr1.engines.train import TorchTrain
from easyr1.errors import writing
from easyr1.manifest import Listing, file_sizes
from easyr1.models.build import DTYPES, build
from easyr1.models.lora import ADAPTER_FOLDER, describe, write_adapter
from easyr1.models.ranks import ALONE, Ranks, writes
from easyr1.tracking.progress import Progress as Phases
from easyr1.trainer.parts import (
    actor_engine,
    critic_engine,
    distant_rollout_engine,
    join_ranks,
    model_spec,
    reference_engine,
    rollout_engine,
    sampler_dtype,
    sends_adapters,
)
from easyr1.trainer.random_state import seed_generators

if TYPE_CHECKING:
    from easyr1.cluster.place import Places


@dataclass(frozen=True)
class RankGroups:
    """The ranks of a run by what they do; one and the same group where the ranks that train sample, too."""

    train: WorkerGroup
    sample: WorkerGroup

    def check(self) -> None:
        """Raise what is wrong with a rank."""
        for group in (self.train, self.sample):
            group.check()


@contextmanager
def open_ranks(
    config: Config, plan: Plan, media: MediaStore | None, progress: Phases, tell: Callable[[str], None]
) -> Iterator[RankGroups]:
    """The ranks with their models: one in this process, or several in their own, which end with the block."""
    make = Rank(config, plan, media)
    with ExitStack() as stack:
        with progress.phase("building the model"):
            if plan.in_driver:
                train: WorkerGroup = LocalGroup(make())
            else:
                train = stack.enter_context(_many(make, _training_places(config, plan), tell))
            groups = RankGroups(train, train)
            if plan.sampling_ranks:
                (apart, *_) = train.call_all("sync.sends_adapters")
                places = _sampling_places(config, plan)
                sample = stack.enter_context(_many(Sampler(config, plan, media, apart), places, tell))
                stream_weights(train, sample, 0)
                groups = RankGroups(train, sample)
        yield groups


def _training_places(config: Config, plan: Plan) -> "Places":
    from easyr1.cluster.place import Places

    nodes, sequence = config.trainer.nnodes, config.worker.actor.ulysses_size
    return Places(nodes, plan.world_size // nodes, plan.device or "cpu", sequence, others=plan.sampling_ranks)


def _sampling_places(config: Config, plan: Plan) -> "Places":
    """Ranks that hold one engine together lie on one machine, each engine wherever there is room."""
    from easyr1.cluster.place import Places

    each = config.worker.rollout.tensor_parallel_size
    role, key = "sampler", "worker.rollout.n_gpus"
    return Places(plan.sampling_ranks // each, each, plan.device or "cpu", role=role, anywhere=True, key=key)


def _many(
    make: "Rank | Sampler", places: "Places", tell: Callable[[str], None]
) -> AbstractContextManager[WorkerGroup]:
    """Ranks in processes of their own; Ray is loaded for them alone."""
    from easyr1.cluster.ray_group import open_ray_group

    trainer, plan = make.config.trainer, make.plan
    make = replace(make, media=None if make.media is None else make.media.for_ranks(places.neighbours))
    timeline = trainer.ray_timeline if places.role == "rank" else None
    return open_ray_group(make, places, plan.run_folder, trainer.hang_timeout_s, tell, timeline=timeline)


@dataclass(frozen=True)
class Rank:
    """What a rank is made of; it can be pickled, and called in the process of the rank once its group is there."""

    config: Config
    plan: Plan
    media: MediaStore | None  # None: a text model

    def __call__(self) -> dict[str, Any]:
        """Engines by name: actor, sync and files; rollout where these ranks sample; reference and critic where the run
        needs them.
        """
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
        engines["files"] = ModelFiles(trained)
        apart = sends_adapters(config, plan, scored)
        if plan.sampling_ranks:
            dtype, speaks = DTYPES[sampler_dtype(config, plan)], ranks.rank == 0
            sync = WeightSync(actor, None, shares_module=False, adapters_apart=apart, speaks=speaks, dtype=dtype)
            return engines | {"sync": sync}
        sampler = rollout_engine(config, plan, scored, media, ranks, apart)
        shares = ranks.mesh is None and plan.rollout_engine == "torch"
        sync = WeightSync(actor, sampler, shares_module=shares, adapters_apart=apart)
        sync.push()
        rollout = RankRollout(sampler, self.media, ranks, resting(config, engines, ranks))
        return engines | {"rollout": rollout, "sync": sync}


@dataclass(frozen=True)
class Sampler:
    """What a rank is made of that only samples; it can be pickled, as Rank can."""

    config: Config
    plan: Plan
    media: MediaStore | None  # None: a text model
    adapters_apart: bool  # whether adapters come as such

    def __call__(self) -> dict[str, Any]:
        """The rollout, and the inlet through which its weights come."""
        seed_generators(self.config.data.seed)
        media: MediaInputs = self.media.inputs if self.media is not None else no_media
        engine = distant_rollout_engine(self.config, self.plan, media, self.adapters_apart)
        return {"rollout": RankRollout(engine, self.media, ALONE, ()), "inlet": WeightInlet(engine)}


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
