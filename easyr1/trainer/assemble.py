"""Configuration -> a trainer, in two stages: first everything that can be checked without a model, then the model."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from easyr1.algorithms.kl import kl_coefficient
from easyr1.algorithms.needs import NEEDS
from easyr1.batch import Group
from easyr1.cluster.engines import Balance, SharedRollout, SharedTrain
from easyr1.cluster.group import WorkerGroup
from easyr1.config.load import dump
from easyr1.config.paths import find_file
from easyr1.config.plan import Facts, Plan
from easyr1.config.resolve import resolve, val_sampling
from easyr1.config.resume import differences
from easyr1.config.schema import Config
from easyr1.data.chat import Chat
from easyr1.data.dataset import PromptSet
from easyr1.data.loader import Loader
from easyr1.data.media import MediaStore
from easyr1.data.model_files import FILES_FOLDER
from easyr1.engines.probe import TOLERANCE, ProbedRollout
from easyr1.engines.protocols import Progress as Tick
from easyr1.engines.protocols import RolloutEngine
from easyr1.errors import ConfigError
from easyr1.manifest import wait_for_files
from easyr1.models.build import local_folder
from easyr1.rewards.load import load_reward
from easyr1.rewards.score import score
from easyr1.rewards.worker import RewardSpec, RewardWorker
from easyr1.tracking.loggers import Tracker
from easyr1.tracking.progress import Progress
from easyr1.trainer.checkpoint import Checkpoints
from easyr1.trainer.collect import Collector, Draws, DynamicSampler, Score
from easyr1.trainer.credit import punish_overlong
from easyr1.trainer.learner import Learner
from easyr1.trainer.loop import Trainer
from easyr1.trainer.parts import (
    group_filter,
    optim_spec,
    sampler_dtype,
    train_sampling,
)
from easyr1.trainer.random_state import seed_generators
from easyr1.trainer.rank import RankGroups, no_media, open_ranks
from easyr1.trainer.rows import read_data, row_notes, row_shares, with_rows
from easyr1.trainer.stop import Stopped, StopSignals


@dataclass(frozen=True)
class Inputs:
    """All that was checked before a model is built."""

    config: Config
    given: frozenset[str]
    plan: Plan
    chat: Chat
    media: MediaStore | None
    train: PromptSet
    val: PromptSet
    reward: RewardSpec
    checkpoints: Checkpoints
    start: "Start | None"
    notes: tuple[str, ...]

    @property
    def is_finished(self) -> bool:
        """Whether all steps were done by an earlier start, and the last one validated."""
        if self.start is None or self.config.trainer.val_only or self.plan.total_steps is None:
            return False
        step, total = self.start.state["step"], self.plan.total_steps
        return step > total or (step == total and self.start.state["validated"])


@dataclass(frozen=True)
class Start:
    """The checkpoint that a run goes on from, and the trainer's state in it."""

    folder: Path
    state: Mapping[str, Any]


def find_start(config: Config, checkpoints: Checkpoints) -> tuple[Start | None, list[str]]:
    """Where the run goes on, if anywhere, and how the configuration differs from the one of then.

    ConfigError where it differs in what is learnt and the checkpoint was not named.
    """
    keys = config.trainer
    found = checkpoints.find(keys.load_checkpoint_path, keys.find_last_checkpoint)
    if found is None:
        return None, []
    start = Start(found, checkpoints.read_state(found))
    changed = differences(start.state["config"], config)
    if changed and keys.load_checkpoint_path is None and not keys.val_only:
        raise ConfigError(
            "trainer.find_last_checkpoint",
            f"{found} was trained with other settings ({'; '.join(changed)}). Set them as they were; or go on with "
            f"the new ones, trainer.load_checkpoint_path={found}; or start anew in another "
            "trainer.save_checkpoint_path",
        )
    return start, [f"the checkpoint was trained with other settings: {change}" for change in changed]


def make_run_folder(folder: Path) -> None:
    """ConfigError where it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("trainer.save_checkpoint_path", f"{folder} cannot be a folder ({error.strerror})") from error


def prepare(config: Config, given: frozenset[str], facts: Facts, progress: Progress) -> Inputs:
    """Check reward file, checkpoint, tokenizer, every row, and with their numbers the configuration once more."""
    plan = resolve(config, given, facts)
    make_run_folder(plan.run_folder)
    checkpoints = Checkpoints(plan.run_folder, config.trainer.save_limit, config.trainer.save_model_only)
    start, changed = find_start(config, checkpoints)
    checkpoints.make_tracker_good()
    reward = load_reward(config.worker.reward.reward_function, config.worker.reward.reward_function_kwargs, find_file)
    data = read_data(config, plan, progress)
    plan = resolve(config, given, with_rows(facts, config, data))
    notes = (*row_notes(config, data), *changed)
    plan = replace(plan, reward_name=f"{reward.name} ({reward.kind})")
    chat, media, train, val = data.chat, data.media, data.train, data.val
    return Inputs(config, given, plan, chat, media, train, val, reward, checkpoints, start, notes)


@contextmanager
def open_trainer(
    inputs: Inputs, progress: Progress, console: Any, tell: Callable[[str], None] = lambda _: None
) -> Iterator[Trainer]:
    """Build models and everything around them; ends the reward process and the loggers on the way out."""
    config, plan, start, checkpoints = inputs.config, inputs.plan, inputs.start, inputs.checkpoints
    trainer_keys = config.trainer
    if start is not None:
        with progress.phase("checking the checkpoint"):
            checkpoints.check(start.folder)
    own = start if start is not None and checkpoints.is_own(start.folder) else None
    resume_step = -1 if own is None else own.state["step"]
    seed_generators(config.data.seed)
    with ExitStack() as stack:
        with progress.phase("starting the loggers"):  # before the models: a wrong key shows in the first seconds
            tracker = Tracker(
                trainer_keys.logger,
                plan.run_folder,
                console,
                json.loads(dump(config, inputs.given)),
                total_steps=plan.total_steps,
                resume_step=None
                if trainer_keys.val_only
                else resume_step,  # None: no step is made anew, all rows stay
                identity={} if own is None else own.state["trackers"],
            )
        stack.push(lambda kind, *_: tracker.finish(failed=kind is not None and not issubclass(kind, Stopped)))
        tell(tracker.whereabouts())
        groups = stack.enter_context(open_ranks(config, plan, inputs.media, progress, tell))
        with progress.phase("starting the reward"):
            worker = stack.enter_context(RewardWorker(inputs.reward, config.worker.reward.timeout_s, groups.check))
        trainer = _trainer(inputs, groups, worker, tracker, progress, checkpoints)
        _tell_adapters(groups.train, tracker)
        if start is not None:
            with progress.phase("loading the checkpoint"):
                trainer.resume(start.folder, start.state)
        if not trainer_keys.val_only:  # from here on steps are made anew
            checkpoints.set_aside_after(None if start is None else start.folder)
        yield trainer


def _trainer(
    inputs: Inputs,
    groups: RankGroups,
    worker: RewardWorker,
    tracker: Tracker,
    progress: Progress,
    checkpoints: Checkpoints,
) -> Trainer:
    config, plan, algorithm = inputs.config, inputs.plan, inputs.config.algorithm
    assert plan.total_steps is not None
    score_groups = scorer(inputs, worker)

    def score_training_groups(groups: Sequence[Group], tick: Tick) -> None:
        score_groups(groups, tick)
        if algorithm.overlong_buffer_length:
            limit, buffer = config.data.max_response_length, algorithm.overlong_buffer_length
            punish_overlong(groups, limit, buffer, algorithm.overlong_penalty_factor)

    sampling = train_sampling(config)
    balance = Balance()
    rollout = sampler(inputs, groups, balance)
    group = groups.train
    learners = _learners(inputs, group, balance)
    quiet = config.worker.rollout.disable_tqdm
    collector = Collector(rollout, score_training_groups, progress, quiet)
    loader = _loader(config, inputs.train)

    def tell(message: str) -> None:
        tracker.event("warning", topic="left out", message=message)

    return Trainer(
        config=config,
        plan=plan,
        total_steps=plan.total_steps,
        loader=loader,
        draws=Draws(loader, inputs.media, config.data.on_bad_media == "skip", tell),
        val_prompts=inputs.val,
        collector=collector,
        val_collector=Collector(rollout, score_groups, progress, quiet),
        dynamic=DynamicSampler(collector, group_filter(config)) if algorithm.online_filtering else None,
        sampling=sampling,
        val_sampling=replace(sampling, **val_sampling(config)),
        actor=learners["actor"],
        critic=learners.get("critic"),
        reference=engine(inputs, group, "reference", balance) if plan.needs_reference else None,
        kl=kl_coefficient(
            algorithm.kl_type, algorithm.kl_coef, target=algorithm.kl_target, horizon=algorithm.kl_horizon
        ),
        checkpoints=checkpoints,
        tracker=tracker,
        progress=progress,
        picture=inputs.media.image if inputs.media is not None else no_media,
        balance=balance,
        copy_model_files=partial(_copy_model_files, inputs, group),
        stop=StopSignals(),
    )


def scorer(inputs: Inputs, worker: RewardWorker) -> Score:
    """Decodes answers and asks the reward about them, as in validation."""
    skip_special = inputs.config.worker.reward.skip_special_tokens

    def score_groups(groups: Sequence[Group], tick: Tick) -> None:
        score(groups, worker, inputs.chat.decode, skip_special_tokens=skip_special, progress=tick)

    return score_groups


def sampler(inputs: Inputs, groups: RankGroups, balance: Balance) -> RolloutEngine:
    """vLLM's is watched."""
    config, plan = inputs.config, inputs.plan
    shared = SharedRollout(groups.sample, balance, groups.train if plan.sampling_ranks else None)
    if plan.rollout_engine == "torch":
        return shared
    keys = config.worker.rollout
    dtypes = (sampler_dtype(config, plan), plan.compute_dtype or plan.param_dtype)
    coarsest = max(dtypes, key=lambda dtype: TOLERANCE[dtype])
    actor = engine(inputs, groups.train, "actor", balance)
    return ProbedRollout(shared, actor, keys.temperature, coarsest, keys.probe_freq)


def _loader(config: Config, train: PromptSet) -> Loader:
    """The training rows in their order."""
    batch_size, shares = config.data.rollout_batch_size, row_shares(config, train)
    if config.trainer.val_only:  # nothing is drawn, however few training rows there are
        batch_size = min(batch_size, len(train) if shares is None else sum(share.draws for share in shares))
    return Loader(train, batch_size, config.data.shuffle, config.data.seed, shares)


def engine(inputs: Inputs, group: WorkerGroup, name: str, balance: Balance) -> SharedTrain:
    """What is trained or scores under that name, on the ranks."""
    media_tokens = inputs.media.num_tokens if inputs.media is not None else no_media
    return SharedTrain(group, name, media_tokens, balance)


def _learners(inputs: Inputs, group: WorkerGroup, balance: Balance) -> dict[str, Learner]:
    """The actor, and the critic where the estimator asks for values."""
    config, plan = inputs.config, inputs.plan
    names: list[Literal["actor", "critic"]] = ["actor"]
    if NEEDS[config.algorithm.adv_estimator].values:
        names.append("critic")
    keys = {"actor": config.worker.actor, "critic": config.worker.critic}
    return {
        name: Learner(
            name,
            engine(inputs, group, name, balance),
            optim_spec(keys[name].optim, keys[name].max_grad_norm, plan),
            keys[name].global_batch_size,
            keys[name].ppo_epochs,
        )
        for name in names
    }


def _copy_model_files(inputs: Inputs, group: WorkerGroup, actor: Path) -> None:
    """All that a model's folder holds besides weights; adapters also as peft reads them, with their base's name.

    Behind it this process sees whatever any rank has written.
    """
    model, base = inputs.config.worker.actor.model, None
    if model.lora.rank:
        folder = local_folder(str(model.model_path))
        base = str(model.model_path if folder is None else folder.absolute())
    group.call_all("files.write", actor, base)
    inputs.chat.copy_files(actor / FILES_FOLDER)
    wait_for_files(actor.parent, group.call_all("files.seen", actor.parent))  # before a manifest lists them


def _tell_adapters(group: WorkerGroup, tracker: Tracker) -> None:
    """Which layers of the trained models got adapters, in short for people and in full for the run folder."""
    for name, (sentence, layers) in group.call_all("files.adapters")[0].items():
        apart = name == "actor" and group.call_all("sync.sends_adapters")[0]
        sentence += "; vLLM gets the base once and then adapters alone" if apart else ""
        tracker.event("lora", model=name, layers=layers, message=f"{name}: {sentence}")
