"""Configuration -> a trainer, in two stages: first everything that can be checked without a model, then the model."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from easyr1.algorithms.kl import kl_coefficient
from easyr1.batch import Group
from easyr1.config.load import dump
from easyr1.config.paths import find_file
from easyr1.config.plan import Facts, Plan
from easyr1.config.resolve import resolve, val_sampling
from easyr1.config.schema import Config
from easyr1.data.chat import Chat
from easyr1.data.dataset import Columns, Limits, PromptSet, load_prompts
from easyr1.data.loader import Loader
from easyr1.data.media import MediaStore
from easyr1.engines.objective import PolicyObjective
from easyr1.engines.optimizer import OptimSpec
from easyr1.engines.pack import Budget, MediaInputs
from easyr1.engines.protocols import Progress as Tick
from easyr1.engines.protocols import Sampling
from easyr1.engines.rollout_torch import TorchRollout
from easyr1.engines.train import TorchTrain
from easyr1.models.build import ModelSpec, build, load_model_config, stop_ids
from easyr1.models.scored import Scored
from easyr1.rewards.load import load_reward
from easyr1.rewards.score import hidden_columns_note, score
from easyr1.rewards.worker import RewardSpec, RewardWorker
from easyr1.tracking.loggers import Tracker
from easyr1.tracking.progress import Progress
from easyr1.trainer.checkpoint import Checkpoints, read_state
from easyr1.trainer.collect import Collector, DynamicSampler, Filter
from easyr1.trainer.loop import Trainer


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
    notes: tuple[str, ...]


def prepare(config: Config, given: frozenset[str], facts: Facts, progress: Progress) -> Inputs:
    """Check reward file, tokenizer, every row of the data, and with their numbers the configuration once more."""
    reward = load_reward(config.worker.reward.reward_function, config.worker.reward.reward_function_kwargs, find_file)
    model = config.worker.actor.model
    load_model_config(model_spec(config, resolve(config, given, facts)))  # refuses what override_config cannot change
    chat = Chat.load(
        str(model.model_path),
        tokenizer_path=model.tokenizer_path,
        trust_remote_code=model.trust_remote_code,
        override_chat_template=config.data.override_chat_template,
        format_prompt=config.data.format_prompt,
    )
    media = chat.media_store(config.data.min_pixels, config.data.max_pixels)
    train, val = (_prompts(config, name, chat, media, progress) for name in ("train", "val"))
    longest = max(train.report.percentiles["p100"], val.report.percentiles["p100"])
    facts = replace(
        facts,
        train_rows=len(train),
        val_rows=len(val),
        max_images=max(train.report.max_pictures, val.report.max_pictures),
        max_prompt_tokens=longest,
    )
    plan = replace(resolve(config, given, facts), reward_name=f"{reward.name} ({reward.kind})")
    hidden = hidden_columns_note(train[0].columns)
    rows = (f"training rows: {train.report}", f"validation rows: {val.report}")
    return Inputs(config, given, plan, chat, media, train, val, reward, (*rows, *([hidden] if hidden else [])))


def _prompts(config: Config, name: str, chat: Chat, media: MediaStore | None, progress: Progress) -> PromptSet:
    data = config.data
    with progress.phase(f"reading {'training' if name == 'train' else 'validation'} rows") as tick:
        return load_prompts(
            data.train_files if name == "train" else data.val_files,
            chat,
            media,
            Limits(data.max_prompt_length, data.filter_overlong_prompts),
            columns=Columns(data.prompt_key, data.answer_key, data.image_key, data.video_key),
            image_dir=None if data.image_dir is None else find_file(data.image_dir, "data.image_dir"),
            workers=data.filter_overlong_prompts_workers,
            progress=tick,
        )


@contextmanager
def open_trainer(inputs: Inputs, progress: Progress, console: Any) -> Iterator[Trainer]:
    """Build models and everything around them; ends the reward process and the loggers on the way out."""
    config, plan = inputs.config, inputs.plan
    trainer_keys = config.trainer
    checkpoints = Checkpoints(plan.run_folder, trainer_keys.save_limit, trainer_keys.save_model_only)
    found = checkpoints.find(trainer_keys.load_checkpoint_path, trainer_keys.find_last_checkpoint)
    with progress.phase("building the model"):
        scored = build(model_spec(config, plan))
    media = inputs.media.inputs if inputs.media is not None else _no_media
    tracker = Tracker(
        trainer_keys.logger,
        plan.run_folder,
        console,
        json.loads(dump(config, inputs.given)),
        total_steps=plan.total_steps,
        resume_step=None if found is None else read_state(found)["step"],
    )
    try:
        with RewardWorker(inputs.reward, config.worker.reward.timeout_s) as worker:
            trainer = _trainer(inputs, scored, media, worker, tracker, progress, checkpoints)
            if found is not None:
                trainer.resume(found)
            yield trainer
    finally:
        tracker.finish()


def _trainer(
    inputs: Inputs,
    scored: Scored,
    media: MediaInputs,
    worker: RewardWorker,
    tracker: Tracker,
    progress: Progress,
    checkpoints: Checkpoints,
) -> Trainer:
    config, plan, algorithm = inputs.config, inputs.plan, inputs.config.algorithm
    assert plan.total_steps is not None
    skip_special = config.worker.reward.skip_special_tokens

    def score_groups(groups: Sequence[Group], tick: Tick) -> None:
        score(groups, worker, inputs.chat.decode, skip_special_tokens=skip_special, progress=tick)

    def copy_model_files(folder: Path) -> None:
        scored.model.config.save_pretrained(folder)
        inputs.chat.copy_files(folder)

    optim = optim_spec(config, plan)
    sampling = train_sampling(config)
    rollout = _rollout(config, scored, media, inputs)
    collector = Collector(rollout, score_groups, progress, config.worker.rollout.disable_tqdm)
    return Trainer(
        config=config,
        plan=plan,
        total_steps=plan.total_steps,
        loader=Loader(inputs.train, config.data.rollout_batch_size, config.data.shuffle, config.data.seed),
        val_prompts=inputs.val,
        collector=collector,
        dynamic=DynamicSampler(collector, _filter(config)) if algorithm.online_filtering else None,
        sampling=sampling,
        val_sampling=replace(sampling, **val_sampling(config)),
        policy=_policy(config, plan, scored, media, optim),
        reference=_reference(config, plan, media),
        optim=optim,
        kl=kl_coefficient(
            algorithm.kl_type, algorithm.kl_coef, target=algorithm.kl_target, horizon=algorithm.kl_horizon
        ),
        checkpoints=checkpoints,
        tracker=tracker,
        progress=progress,
        picture=inputs.media.image if inputs.media is not None else _no_media,
        copy_model_files=copy_model_files,
    )


def model_spec(config: Config, plan: Plan) -> ModelSpec:
    """The policy's model."""
    model = config.worker.actor.model
    return ModelSpec(
        path=str(model.model_path),
        param_dtype=plan.param_dtype,
        compute_dtype=plan.compute_dtype or plan.param_dtype,
        device=plan.device or "cpu",
        trust_remote_code=model.trust_remote_code,
        override=model.override_config,
        packed=config.worker.actor.padding_free,
        freeze_vision_tower=model.freeze_vision_tower,
        gradient_checkpointing=model.enable_gradient_checkpointing,
    )


def optim_spec(config: Config, plan: Plan) -> OptimSpec:
    """The policy's optimizer."""
    optim = config.worker.actor.optim
    return OptimSpec(
        lr=optim.lr,
        betas=optim.betas,
        weight_decay=optim.weight_decay,
        schedule=optim.lr_scheduler_type,
        warmup_steps=plan.warmup_steps or 0,
        min_lr_ratio=optim.min_lr_ratio or 0.0,
        total_steps=plan.total_steps,
        max_grad_norm=config.worker.actor.max_grad_norm,
    )


def train_sampling(config: Config) -> Sampling:
    """How training answers are drawn."""
    rollout = config.worker.rollout
    return Sampling(
        n=rollout.n,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        max_tokens=config.data.max_response_length,
        ignore_eos=rollout.ignore_eos,
        seed=rollout.seed,
    )


def _policy(config: Config, plan: Plan, scored: Scored, media: MediaInputs, optim: OptimSpec) -> TorchTrain:
    actor = config.worker.actor
    objective = PolicyObjective(
        loss=actor.loss_type,
        average=actor.loss_avg_mode,
        clip_low=actor.clip_ratio_low,
        clip_high=actor.clip_ratio_high,
        clip_dual=actor.clip_ratio_dual,
        kl_penalty=config.algorithm.kl_penalty if plan.kl == "loss" else None,
    )
    return TorchTrain(
        scored, media, config.worker.rollout.temperature, *_budgets(config, plan), objective=objective, optim=optim
    )


def _reference(config: Config, plan: Plan, media: MediaInputs) -> TorchTrain | None:
    """The model that training starts from, frozen; None where no KL is measured."""
    if not plan.needs_reference:
        return None
    dtype = plan.reference_dtype or plan.param_dtype
    frozen = build(replace(model_spec(config, plan), param_dtype=dtype, compute_dtype=dtype), trainable=False)
    return TorchTrain(frozen, media, config.worker.rollout.temperature, _budgets(config, plan)[0])


def _budgets(config: Config, plan: Plan) -> tuple[Budget, Budget]:
    """Of a pass without gradient, and of one with."""
    key = "worker.actor.micro_batch_size_per_device_for_{}"
    if config.worker.actor.dynamic_batching:
        return (
            Budget(tokens=plan.experience_budget_tokens, key=key.format("experience")),
            Budget(tokens=plan.update_budget_tokens, key=key.format("update")),
        )
    return (
        Budget(samples=plan.experience_micro_samples, key=key.format("experience")),
        Budget(samples=plan.update_micro_samples, key=key.format("update")),
    )


def _filter(config: Config) -> Filter:
    """Which groups dynamic sampling keeps."""
    return Filter(
        key=config.algorithm.filter_key,
        low=config.algorithm.filter_low,
        high=config.algorithm.filter_high,
        draw_size=config.data.mini_rollout_batch_size or config.data.rollout_batch_size,
        max_tries=config.trainer.max_try_make_batch,
    )


def _rollout(config: Config, scored: Scored, media: MediaInputs, inputs: Inputs) -> TorchRollout:
    spec = model_spec(config, inputs.plan)
    rollout = config.worker.rollout
    return TorchRollout(
        scored,
        media,
        stop_ids(spec, load_model_config(spec)),
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        **rollout.engine_kwargs,
    )


def _no_media(handle: str) -> NoReturn:
    raise AssertionError(f"a text model was asked for the picture {handle}")
