"""The engines of one rank, built in that rank: all that computes with a model. The same for one rank and for many.

Every rank builds the same things in the same order, as putting weights in place takes all of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from easyr1.algorithms.needs import NEEDS
from easyr1.batch import Completion, Prompt
from easyr1.config.plan import Plan
from easyr1.config.schema import Config
from easyr1.data.media import MediaStore
from easyr1.data.model_files import FILES_FOLDER
from easyr1.engines.pack import MediaInputs
from easyr1.engines.protocols import Progress, RolloutEngine, Sampling
from easyr1.engines.sync import WeightSync
from easyr1.engines.train import TorchTrain
from easyr1.models.build import build
from easyr1.models.lora import ADAPTER_FOLDER, describe, write_adapter
from easyr1.trainer.parts import actor_engine, critic_engine, model_spec, reference_engine, rollout_engine
from easyr1.trainer.random_state import seed_generators


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
        scored = build(model_spec(config, plan))
        engines: dict[str, Any] = {}
        reference = reference_engine(config, plan, scored, media)
        if reference is not None:
            engines["reference"] = reference
        rollout: RolloutEngine = rollout_engine(config, plan, scored, media)
        if self.media is not None:
            rollout = Prefetching(rollout, self.media)
        actor = engines["actor"] = actor_engine(config, plan, scored, media, reference)
        if NEEDS[config.algorithm.adv_estimator].values:
            engines["critic"] = critic_engine(config, plan, media)
        engines["rollout"] = rollout
        engines["sync"] = WeightSync(actor, rollout, shares_module=plan.rollout_engine == "torch")
        trained = {name: engines[name] for name in ("actor", "critic") if name in engines}
        engines["files"] = ModelFiles(trained)
        return engines


@dataclass
class Prefetching:
    """A RolloutEngine whose pictures are decoded ahead of it, in the process that samples."""

    engine: RolloutEngine
    media: MediaStore

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        self.media.prefetch(handle for prompt in prompts for handle in prompt.media)
        return self.engine.generate(prompts, sampling, progress)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        self.engine.load(weights, version)

    def rest(self) -> None:
        self.engine.rest()


@dataclass
class ModelFiles:
    """What people and other programs want to know of the trained models, besides their weights."""

    trained: Mapping[str, TorchTrain]

    def adapters(self) -> dict[str, tuple[str, list[str]]]:
        """Of each model with adapters: a sentence about them, and the full names of their layers."""
        found = {name: describe(engine.scored) for name, engine in self.trained.items()}
        return {name: told for name, told in found.items() if told is not None}

    def write(self, actor: Path, base: str | None) -> None:
        """Into the actor's folder: its configuration, and its adapters as peft reads them, over the model `base`."""
        scored = self.trained["actor"].scored
        scored.model.config.save_pretrained(actor / FILES_FOLDER)
        if base is not None:
            write_adapter(scored, actor / ADAPTER_FOLDER, base)


def no_media(handle: str) -> NoReturn:
    raise AssertionError(f"a text model was asked for the picture {handle}")
