"""The derived numbers of a run as rows of text for the start table. Knows nothing of consoles."""

from easyr1.config.plan import Plan
from easyr1.config.recipes import RECIPES
from easyr1.config.schema import Config

_OLD_LOG_PROBS = {
    "current": "reused (equal to the current ones)",
    "recomputed": "recomputed",
    "sampler": "the sampler's",
}

_AVERAGES = {
    "token": "mean over tokens",
    "seq": "mean over sequences",
    "seq_sum_const": "sum over tokens / (samples x data.max_response_length)",
}

UNKNOWN = "not known yet"


def plan_rows(plan: Plan, config: Config) -> list[tuple[str, str]]:
    """(name, value) rows in the order to show; what is not known yet says so."""
    return [
        ("device", f"{plan.device or UNKNOWN}, {_ranks(plan)}"),
        ("precision", _precision(plan)),
        ("model", str(config.worker.actor.model.model_path)),
        ("sampler", plan.rollout_engine),
        ("prompts per rollout", str(plan.prompts_per_rollout)),
        (
            "samples per rollout",
            f"{plan.samples_per_rollout} ({plan.prompts_per_rollout} prompts x {plan.n} answers)",
        ),
        ("updates per rollout", _updates(plan, config)),
        ("samples per update per rank", str(plan.samples_per_update_per_rank)),
        ("on-policy", "yes" if plan.on_policy else "no"),
        ("old log-probs", _OLD_LOG_PROBS[plan.old_log_probs]),
        ("sampler correction", _correction(config)),
        ("micro-batches", _micro_batches(plan, config)),
        ("steps per epoch", _steps_per_epoch(plan, config)),
        ("total steps", _total_steps(plan, config)),
        ("warm-up steps", _or_unknown(plan.warmup_steps)),
        ("KL", _kl(plan, config)),
        ("advantage estimator", _estimator(config)),
        ("policy loss", f"{config.worker.actor.loss_type}, {_AVERAGES[config.worker.actor.loss_avg_mode]}"),
        ("reward", plan.reward_name or UNKNOWN),
        ("run folder", str(plan.run_folder)),
    ]


def _or_unknown(value: object) -> str:
    return UNKNOWN if value is None else str(value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _ranks(plan: Plan) -> str:
    """

    >>> from types import SimpleNamespace as Some
    >>> _ranks(Some(world_size=2, sampling_ranks=0)), _ranks(Some(world_size=2, sampling_ranks=1))
    ('2 ranks', '2 ranks that train, 1 rank that samples')
    """
    train, sample = _count(plan.world_size, "rank"), _count(plan.sampling_ranks, "rank")
    if not plan.sampling_ranks:
        return train
    end = "s" if plan.sampling_ranks == 1 else ""
    return f"{train} that train{'s' * (plan.world_size == 1)}, {sample} that sample{end}"


def _precision(plan: Plan) -> str:
    reference = f", reference {_or_unknown(plan.reference_dtype)}" if plan.needs_reference else ""
    return f"weights {plan.param_dtype}, computation {_or_unknown(plan.compute_dtype)}{reference}"


def _updates(plan: Plan, config: Config) -> str:
    epochs = config.worker.actor.ppo_epochs
    passes = f", {epochs} passes" if epochs > 1 else ""
    return f"{plan.updates_per_rollout} ({_count(plan.prompts_per_update, 'prompt')} each{passes})"


def _micro_batches(plan: Plan, config: Config) -> str:
    if config.worker.actor.dynamic_batching:
        return f"up to {plan.update_budget_tokens} tokens (update), {plan.experience_budget_tokens} tokens (scoring)"
    return f"{plan.update_micro_samples} samples (update), {plan.experience_micro_samples} samples (scoring)"


def _steps_per_epoch(plan: Plan, config: Config) -> str:
    if plan.steps_per_epoch is None:
        return UNKNOWN
    at_most = "at most " if config.algorithm.online_filtering else ""
    leftover = f"; {_count(plan.leftover_rows, 'row')} left over join the next epoch" if plan.leftover_rows else ""
    return f"{at_most}{plan.steps_per_epoch}{leftover}"


def _total_steps(plan: Plan, config: Config) -> str:
    if config.trainer.max_steps is not None:
        return f"{plan.total_steps} (trainer.max_steps)"
    if plan.total_steps is None:
        return UNKNOWN
    return f"{plan.total_steps} ({_count(config.trainer.total_epochs, 'epoch')})"


def _kl(plan: Plan, config: Config) -> str:
    algorithm = config.algorithm
    if plan.kl == "off":
        return "off, no reference model"
    place = "in the loss" if plan.kl == "loss" else "in the reward"
    return f"{place}, coefficient {algorithm.kl_coef:g} ({algorithm.kl_type}), estimator {algorithm.kl_penalty}"


def _correction(config: Config) -> str:
    rollout = config.worker.rollout
    return "none" if rollout.correction == "none" else f"{rollout.correction}, cap {rollout.correction_cap:g}"


def _estimator(config: Config) -> str:
    recipe = config.algorithm.recipe
    return config.algorithm.adv_estimator + (f", recipe {recipe}: {RECIPES[recipe].source}" if recipe else "")
