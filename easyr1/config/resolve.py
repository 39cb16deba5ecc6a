"""Whether a configuration makes sense, and what follows from it. Never writes to the Config, imports no torch.

What only the layers above can know (devices, rows, what an estimator needs) comes in as Facts; what is not yet known
is not checked and stays None in the Plan.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from easyr1.config.actor import FsdpConfig
from easyr1.config.availability import check_names, missing_features, missing_trackers
from easyr1.config.checks import check_together
from easyr1.config.effects import catches, idle_keys, recipe_notes
from easyr1.config.files import check_files
from easyr1.config.placement import Placement, place, sampling_ranks
from easyr1.config.plan import Facts, Needs, Plan
from easyr1.config.sampler import chosen_sampler, missing_vllm
from easyr1.config.schema import Config
from easyr1.config.table import plan_rows
from easyr1.config.validation import val_sampling
from easyr1.config.values import check_values

__all__ = ["Facts", "Needs", "Plan", "plan_rows", "resolve", "val_sampling"]

_FULL_DTYPE: Mapping[str, str] = {"fp16": "float16", "fp32": "float32", "bf16": "bfloat16"}


def resolve(config: Config, given: frozenset[str] = frozenset(), facts: Facts | None = None) -> Plan:
    """The plan of a run. `given` holds the dotted keys that the user set, as `load` returns them.

    Raises ConfigError where keys contradict each other, the data, the files or the machine. In a dry run, what this
    machine or this version lacks becomes a note instead.
    """
    facts = facts or Facts()
    check_values(config)
    check_names(config, facts)
    placement = place(config, facts)
    sampler = chosen_sampler(config, facts, placement.device)
    check_together(config, given, facts, placement.world_size, sampler)
    val_sampling(config)
    notes = check_files(config, facts.dry_run)
    missing = missing_features(config, placement.world_size) + missing_vllm(config, facts)
    missing += missing_trackers(config, facts)
    for error in ([placement.missing] if placement.missing else []) + missing:
        if not facts.dry_run:
            raise error
        notes.append(f"a real start would stop: {error}")
    plan = derive(config, facts, placement)
    notes += [
        *placement.notes,
        *recipe_notes(config, given),
        *catches(config, plan, facts),
        *idle_keys(config, given, facts, plan),
    ]
    return replace(plan, notes=tuple(notes))


def derive(config: Config, facts: Facts, placement: Placement) -> Plan:
    """The numbers of a run whose configuration has been checked."""
    data, actor, n = config.data, config.worker.actor, config.worker.rollout.n
    updates = data.rollout_batch_size // actor.global_batch_size * actor.ppo_epochs
    tokens_per_sample = data.max_prompt_length + data.max_response_length
    steps_per_epoch, leftover_rows, total_steps = _steps(config, facts)
    compute_dtype = computed_in(actor.fsdp, placement.device)
    kl = _kl(config)
    return Plan(
        device=placement.device,
        world_size=placement.world_size,
        sampling_ranks=sampling_ranks(config),
        rollout_engine=chosen_sampler(config, facts, placement.device),
        prompts_per_rollout=data.rollout_batch_size,
        n=n,
        samples_per_rollout=data.rollout_batch_size * n,
        prompts_per_update=actor.global_batch_size,
        updates_per_rollout=updates,
        samples_per_update_per_rank=actor.global_batch_size * n * actor.ulysses_size // placement.world_size,
        on_policy=updates == 1,
        steps_per_epoch=steps_per_epoch,
        leftover_rows=leftover_rows,
        total_steps=total_steps,
        kl=kl,
        needs_reference=kl != "off",
        old_log_probs=_old_log_probs(config, updates, kl),
        update_budget_tokens=actor.micro_batch_size_per_device_for_update * tokens_per_sample,
        experience_budget_tokens=actor.micro_batch_size_per_device_for_experience * tokens_per_sample,
        update_micro_samples=actor.micro_batch_size_per_device_for_update,
        experience_micro_samples=actor.micro_batch_size_per_device_for_experience,
        param_dtype=full_dtype(actor.fsdp.torch_dtype) or "float32",
        compute_dtype=compute_dtype,
        reference_dtype=_reference_dtype(config, compute_dtype),
        warmup_steps=_warmup_steps(config, total_steps),
        run_folder=_run_folder(config),
    )


def _steps(config: Config, facts: Facts) -> tuple[int | None, int | None, int | None]:
    """Steps per epoch, rows left over by an epoch, steps in all."""
    max_steps, prompts = config.trainer.max_steps, config.data.rollout_batch_size
    if facts.train_rows is None:
        return None, None, max_steps
    per_epoch, leftover = divmod(facts.train_rows, prompts)
    return per_epoch, leftover, max_steps or per_epoch * config.trainer.total_epochs


def _kl(config: Config) -> Literal["loss", "reward", "off"]:
    if config.algorithm.disable_kl:
        return "off"
    return "loss" if config.algorithm.use_kl_loss else "reward"


def _old_log_probs(config: Config, updates: int, kl: str) -> Literal["current", "recomputed", "sampler"]:
    """The KL in the reward is that of the policy before the update, so it asks for its log-probs."""
    wanted = config.worker.actor.old_log_probs
    if wanted == "sampler":
        return "sampler"
    return "recomputed" if wanted == "recompute" or updates > 1 or kl == "reward" else "current"


def full_dtype(dtype: str | None) -> str | None:
    """The long name of a dtype, "bfloat16" for "bf16"."""
    return _FULL_DTYPE.get(dtype, dtype) if dtype else None


def _reference_dtype(config: Config, compute_dtype: str | None) -> str | None:
    """With LoRA the reference is the policy's own base."""
    if config.worker.actor.model.lora.rank:
        return compute_dtype
    return full_dtype(config.worker.ref.fsdp.torch_dtype) or compute_dtype


def computed_in(fsdp: FsdpConfig, device: str | None) -> str | None:
    """The long name of the dtype of a trained model's computation; None while it hangs on an unknown device."""
    if fsdp.mp_param_dtype is not None:
        return full_dtype(fsdp.mp_param_dtype)
    if device is None:
        return None
    return "bfloat16" if device == "cuda" else full_dtype(fsdp.torch_dtype) or "float32"


def _warmup_steps(config: Config, total_steps: int | None) -> int | None:
    optim = config.worker.actor.optim
    if optim.lr_warmup_steps is not None:
        return optim.lr_warmup_steps
    if optim.lr_warmup_ratio == 0:
        return 0
    return None if total_steps is None else int(optim.lr_warmup_ratio * total_steps)


def _run_folder(config: Config) -> Path:
    trainer = config.trainer
    if trainer.save_checkpoint_path is not None:
        return Path(trainer.save_checkpoint_path).expanduser().absolute()
    return Path("checkpoints", trainer.project_name, trainer.experiment_name).absolute()
