"""Notes for the start of a run: keys that the user set but that change nothing here, and choices with a catch."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from easyr1.config.actor import ActorConfig, CriticConfig
from easyr1.config.plan import Facts, Plan
from easyr1.config.recipes import changes
from easyr1.config.schema import Config, known_keys, walk

BF16 = ("bf16", "bfloat16")
LOST_UPDATE = 2**-17  # smallest share of a weight that adamw_bf16 can add up over steps
LOST_DECAY = 2**-9  # a bfloat16 weight that shrinks by no more than this share rounds back to itself


@dataclass(frozen=True)
class Idle:
    """Keys (or sections) without effect while `when` holds."""

    keys: tuple[str, ...]
    when: Callable[[Config, Plan], bool]
    why: str


def _fsdp(*names: str) -> tuple[str, ...]:
    return tuple(f"worker.{model}.fsdp.{name}" for model in ("actor", "ref", "critic") for name in names)


def _optim(name: str, model: Callable[[Config], ActorConfig | CriticConfig]) -> tuple[Idle, ...]:
    keys = f"worker.{name}.optim"
    return (
        Idle(
            (f"{keys}.lr_warmup_ratio",),
            lambda c, _: model(c).optim.lr_warmup_steps is not None,
            f"{keys}.lr_warmup_steps wins",
        ),
        Idle(
            (f"{keys}.min_lr_ratio",),
            lambda c, _: model(c).optim.lr_scheduler_type == "constant",
            f"{keys}.lr_scheduler_type=constant never falls",
        ),
        Idle(
            (f"{keys}.strategy",),
            lambda c, _: model(c).optim.strategy == "adamw_bf16" and model(c).fsdp.torch_dtype not in BF16,
            "float32 weights get plain AdamW from adamw_bf16, which makes up for the rounding of bfloat16; set "
            f"worker.{name}.fsdp.torch_dtype=bf16 to save memory",
        ),
        Idle(
            (f"{keys}.weight_decay",),
            lambda c, _: model(c).fsdp.torch_dtype in BF16 and 0 < _decay(model(c)) <= LOST_DECAY,
            "bfloat16 weights round a decay by less than 0.2 % a step (lr x weight_decay) away",
        ),
    )


def _decay(model: ActorConfig | CriticConfig) -> float:
    """Share that a step takes off a weight at the peak learning rate."""
    return model.optim.lr * model.optim.weight_decay


RULES: tuple[Idle, ...] = (
    Idle(
        (
            "algorithm.kl_penalty",
            "algorithm.kl_coef",
            "algorithm.kl_type",
            "algorithm.kl_horizon",
            "algorithm.kl_target",
        ),
        lambda c, _: c.algorithm.disable_kl,
        "algorithm.disable_kl=true leaves no KL term",
    ),
    Idle(("worker.ref",), lambda _, plan: not plan.needs_reference, "there is no reference model"),
    Idle(
        ("algorithm.kl_horizon", "algorithm.kl_target"),
        lambda c, _: c.algorithm.kl_type == "fixed" and not c.algorithm.disable_kl,
        "algorithm.kl_type=fixed keeps the coefficient",
    ),
    Idle(
        (
            "algorithm.filter_key",
            "algorithm.filter_low",
            "algorithm.filter_high",
            "data.mini_rollout_batch_size",
            "trainer.max_try_make_batch",
        ),
        lambda c, _: not c.algorithm.online_filtering,
        "algorithm.online_filtering is false",
    ),
    Idle(
        ("algorithm.gamma",),
        lambda c, _: c.algorithm.adv_estimator not in ("gae", "reinforce_plus_plus"),
        "only gae and reinforce_plus_plus discount",
    ),
    Idle(("algorithm.lam",), lambda c, _: c.algorithm.adv_estimator != "gae", "only gae uses it"),
    Idle(
        ("worker.actor.clip_ratio_low", "worker.actor.clip_ratio_dual"),
        lambda c, _: c.worker.actor.loss_type == "cispo",
        "worker.actor.loss_type=cispo cuts ratios from above only",
    ),
    Idle(
        ("worker.actor.clip_ratio_low", "worker.actor.clip_ratio_high", "worker.actor.clip_ratio_dual"),
        lambda c, _: c.worker.actor.loss_type == "sapo",
        "worker.actor.loss_type=sapo has tau_positive and tau_negative instead",
    ),
    Idle(
        ("worker.actor.clip_ratio_dual",),
        lambda c, _: c.worker.actor.loss_type == "gmpo",
        "worker.actor.loss_type=gmpo has no dual clip",
    ),
    Idle(
        ("worker.actor.tau_positive", "worker.actor.tau_negative"),
        lambda c, _: c.worker.actor.loss_type != "sapo",
        "only worker.actor.loss_type=sapo uses it",
    ),
    *_optim("actor", lambda c: c.worker.actor),
    *_optim("critic", lambda c: c.worker.critic),
    Idle(("worker.critic.model.lora",), lambda c, _: c.worker.critic.model.lora.rank == 0, "its rank is 0"),
    Idle(
        ("worker.ref",),
        lambda c, _: c.worker.actor.model.lora.rank > 0,
        "with LoRA the reference is the policy with its adapters off",
    ),
    Idle(
        ("worker.ref.fsdp.mp_param_dtype",),
        lambda _, plan: plan.world_size == 1,
        "the reference computes in worker.ref.fsdp.torch_dtype",
    ),
    Idle(
        ("worker.actor.model.lora",),
        lambda c, _: c.worker.actor.model.lora.rank == 0,
        "worker.actor.model.lora.rank is 0",
    ),
    Idle(
        ("worker.rollout.correction_cap",), lambda c, _: c.worker.rollout.correction == "none", "nothing is corrected"
    ),
    Idle(
        ("algorithm.overlong_penalty_factor",),
        lambda c, _: c.algorithm.overlong_buffer_length == 0,
        "algorithm.overlong_buffer_length is 0",
    ),
    Idle(("trainer.total_epochs",), lambda c, _: c.trainer.max_steps is not None, "trainer.max_steps wins"),
    Idle(
        ("trainer.find_last_checkpoint",),
        lambda c, _: c.trainer.load_checkpoint_path is not None,
        "trainer.load_checkpoint_path wins",
    ),
    Idle(
        ("trainer.ray_timeline", "trainer.hang_timeout_s"),
        lambda _, plan: plan.in_driver,
        "a single rank makes no remote calls",
    ),
    Idle(("data.seed",), lambda c, _: not c.data.shuffle, "data.shuffle is false"),
    Idle(
        ("data.filter_overlong_prompts_workers",),
        lambda c, _: not c.data.filter_overlong_prompts,
        "data.filter_overlong_prompts is false",
    ),
    Idle(
        (
            "worker.rollout.gpu_memory_utilization",
            "worker.rollout.enforce_eager",
            "worker.rollout.enable_chunked_prefill",
            "worker.rollout.tensor_parallel_size",
            "worker.rollout.disable_log_stats",
        ),
        lambda _, plan: plan.rollout_engine == "torch",
        "only the vLLM sampler uses it",
    ),
    Idle(
        ("worker.rollout.dtype",),
        lambda _, plan: plan.rollout_engine == "torch" and plan.in_driver,
        "the sampler shares the policy's weights",
    ),
    Idle(
        ("worker.rollout.n_gpus",), lambda c, _: c.worker.hybrid_engine, "worker.hybrid_engine=true: all ranks sample"
    ),
    Idle(
        ("worker.actor.offload", "worker.ref.offload", "worker.critic.offload"),
        lambda _, plan: plan.sampling_ranks > 0,
        "other devices sample (worker.hybrid_engine=false), so there is nothing to make room for",
    ),
    Idle(
        ("worker.actor.offload", "worker.ref.offload", "worker.critic.offload", *_fsdp("enable_cpu_offload")),
        lambda _, plan: plan.world_size == 1,
        "on a single rank everything stays where it is in this version",
    ),
    Idle(
        _fsdp("enable_full_shard", "enable_rank0_init", "fsdp_size", "mp_reduce_dtype"),
        lambda _, plan: plan.world_size == 1,
        "a single rank holds the whole model",
    ),
    Idle(
        (
            "worker.actor.strategy",
            "worker.ref.strategy",
            "worker.critic.strategy",
            "worker.actor.use_torch_compile",
            "worker.critic.model.tokenizer_path",
            "worker.reward.num_cpus",
            *_fsdp("use_orig_params", "mp_buffer_dtype"),
        ),
        lambda _c, _plan: True,
        "accepted for compatibility only",
    ),
)


def idle_keys(config: Config, given: frozenset[str], facts: Facts, plan: Plan) -> Iterator[str]:
    """A note for each key of `given` that has no effect in this run; each key once, with the first reason."""
    rules = list(RULES)
    estimator = config.algorithm.adv_estimator
    needs = (facts.estimators or {}).get(estimator)
    if needs is not None and not needs.values:
        rules.append(
            Idle(("worker.critic", "trainer.critic_warmup"), lambda _c, _p: True, f"{estimator} has no critic")
        )
    for key in sorted(given):
        why = next((rule.why for rule in rules if _covers(rule, key) and rule.when(config, plan)), None)
        if why is not None:
            yield f"{key} has no effect: {why}"


def recipe_notes(config: Config, given: frozenset[str]) -> Iterator[str]:
    """A note for each key that a recipe set, and for each that the user set otherwise."""
    values = {key: value for key, _, value in walk(config)}
    defaults = {key: default for key, (_, default) in known_keys().items()}
    for change in changes(config.algorithm.recipe, values, defaults, given):
        yield f"{change.key}: {change.default} -> {change.value} ({change.source})"


def catches(config: Config, plan: Plan, facts: Facts) -> Iterator[str]:
    """A note for each allowed choice whose consequence is easily overlooked."""
    rollout, algorithm, actor = config.worker.rollout, config.algorithm, config.worker.actor
    if rollout.top_p < 1 or rollout.top_k > 0:
        yield (
            "worker.rollout.top_p and top_k cut tokens off in training, but log-probabilities are those of the whole "
            "distribution"
        )
    if plan.kl == "loss" and algorithm.kl_penalty == "kl":
        yield "algorithm.kl_penalty=kl as a loss has no gradient on average; low_var_kl pulls towards the reference"
    if plan.kl != "off" and algorithm.kl_coef == 0:
        yield "algorithm.kl_coef=0 only measures the KL; algorithm.disable_kl=true saves the reference model"
    if "float16" in (plan.param_dtype, plan.compute_dtype):
        yield "float16 is used without loss scaling, so small gradients may vanish; bf16 has no such limit"
    yield from _rounding(config, facts)
    if plan.total_steps is not None and 0 < plan.total_steps <= config.trainer.critic_warmup:
        yield f"trainer.critic_warmup={config.trainer.critic_warmup} lasts to the end: the actor is never trained"
    if algorithm.mask_truncated and rollout.ignore_eos:
        yield "algorithm.mask_truncated with worker.rollout.ignore_eos leaves nothing to train on: every answer is cut"
    if config.trainer.save_model_only:
        yield "trainer.save_model_only=true: a run resumed from these checkpoints starts its optimizer anew"
    if re.search(r"global_step_\d+", actor.model.model_path or ""):
        yield (
            "worker.actor.model.model_path lies in a checkpoint: only weights are taken from it; to go on with that "
            "run (optimizer, schedule, data position) set trainer.load_checkpoint_path"
        )


def _rounding(config: Config, facts: Facts) -> Iterator[str]:
    """A note for each trained model whose weights are too coarse for its optimizer."""
    needs = (facts.estimators or {}).get(config.algorithm.adv_estimator)
    trained: dict[str, ActorConfig | CriticConfig] = {"actor": config.worker.actor}
    if needs is not None and needs.values:
        trained["critic"] = config.worker.critic
    for name, model in trained.items():
        if model.optim.strategy == "adamw" and model.fsdp.torch_dtype in BF16:
            yield (
                f"worker.{name}.fsdp.torch_dtype={model.fsdp.torch_dtype} with optim.strategy=adamw loses updates "
                f"below about 0.4 % of a weight to rounding; worker.{name}.optim.strategy=adamw_bf16 keeps them"
            )
        elif model.fsdp.torch_dtype in BF16 and 0 < model.optim.lr < LOST_UPDATE:
            norms = "" if model.model.lora.rank else ", such as most norms"
            yield (
                f"worker.{name}.optim.lr={model.optim.lr:g} is too small for adamw_bf16 to move weights above about "
                f"{model.optim.lr / LOST_UPDATE:.2g}{norms}; worker.{name}.fsdp.torch_dtype=fp32 trains them, too"
            )


def _covers(rule: Idle, key: str) -> bool:
    return any(key == covered or key.startswith(f"{covered}.") for covered in rule.keys)
