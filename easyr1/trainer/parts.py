"""Configuration -> the parts of a trainer: models, engines, objectives, samplings. One function a part."""

import logging
from dataclasses import replace

import torch

from easyr1.algorithms.losses import Clip
from easyr1.algorithms.needs import FULL_KL
from easyr1.config.plan import Plan
from easyr1.config.resolve import computed_in, full_dtype
from easyr1.config.schema import ActorConfig, Config, CriticConfig, FsdpConfig, LoraConfig, OptimConfig
from easyr1.data.model_files import model_folder
from easyr1.engines.objective import PolicyObjective, ValueObjective
from easyr1.engines.optimizer import OptimSpec
from easyr1.engines.pack import Budget, MediaInputs
from easyr1.engines.protocols import RolloutEngine, Sampling
from easyr1.engines.rollout_torch import TorchRollout
from easyr1.engines.rollout_vllm import VllmRollout, vllm_rollout
from easyr1.engines.train import TorchTrain
from easyr1.engines.vllm_adapters import why_merged
from easyr1.engines.vllm_settings import VllmSettings
from easyr1.models.build import DTYPES, ModelSpec, banned_ids, build, build_critic, load_model_config, stop_ids
from easyr1.models.copies import blank_copy
from easyr1.models.lora import LoraSpec, adapter_layers
from easyr1.models.parallel import Sharding
from easyr1.models.ranks import Ranks, join
from easyr1.models.scored import Scored, Unadapted
from easyr1.trainer.collect import Filter

log = logging.getLogger(__name__)


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
        lora=lora_spec(model.lora, "actor"),
        sharding=sharding(config.worker.actor.fsdp),
    )


def sharding(fsdp: FsdpConfig) -> Sharding:
    """How a model is spread over ranks."""
    reduce_dtype = full_dtype(fsdp.mp_reduce_dtype)
    assert reduce_dtype is not None
    return Sharding(DTYPES[reduce_dtype], fsdp.enable_full_shard, fsdp.enable_cpu_offload, fsdp.enable_rank0_init)


def join_ranks(config: Config, plan: Plan, fsdp: FsdpConfig) -> Ranks:
    """The ranks that one model is spread over; all of them call it. ALONE where there is one."""
    return join(torch.device(plan.device or "cpu"), fsdp.fsdp_size, config.worker.actor.ulysses_size)


def lora_spec(lora: LoraConfig, name: str) -> LoraSpec | None:
    """The adapters of the actor or the critic; None where all weights are trained."""
    if lora.rank == 0:
        return None
    key = f"worker.{name}.model.lora"
    return LoraSpec(lora.rank, lora.alpha, lora.target_modules, lora.exclude_modules, lora.dropout, key)


def actor_engine(
    config: Config, plan: Plan, scored: Scored, media: MediaInputs, reference: TorchTrain | None, ranks: Ranks
) -> TorchTrain:
    """The policy, trained; the whole KL is measured beside the reference."""
    actor = config.worker.actor
    scored.entropy_gradient = actor.entropy_coef > 0
    score_budget, update_budget = budgets(config, actor, "actor")
    objective = policy_objective(config, plan)
    temperature = config.worker.rollout.temperature
    against = reference.scored if reference is not None and config.algorithm.kl_penalty == FULL_KL else None
    optim = optim_spec(actor.optim, actor.max_grad_norm, plan)
    return TorchTrain(
        scored,
        media,
        temperature,
        score_budget,
        update_budget,
        objective,
        optim,
        against,
        ranks=ranks,
        seed=config.data.seed,
        reduce_each_micro_batch=actor.fsdp.reduce_each_micro_batch,
    )


def policy_objective(config: Config, plan: Plan) -> PolicyObjective:
    """What the policy minimises."""
    actor, rollout = config.worker.actor, config.worker.rollout
    clip = Clip(
        low=actor.clip_ratio_low,
        high=actor.clip_ratio_high,
        dual=actor.clip_ratio_dual,
        tau_positive=actor.tau_positive,
        tau_negative=actor.tau_negative,
    )
    return PolicyObjective(
        loss=actor.loss_type,
        average=actor.loss_avg_mode,
        max_response_length=config.data.max_response_length,
        clip=clip,
        kl_penalty=config.algorithm.kl_penalty if plan.kl == "loss" else None,
        entropy_coef=actor.entropy_coef,
        correction=None if rollout.correction == "none" else rollout.correction,
        correction_cap=rollout.correction_cap,
    )


def critic_spec(config: Config, plan: Plan) -> ModelSpec:
    """The value model of estimators that need one; its weights are the actor's unless it names others."""
    critic = config.worker.critic
    return replace(
        model_spec(config, plan),
        path=str(critic.model.model_path or config.worker.actor.model.model_path),
        param_dtype=full_dtype(critic.fsdp.torch_dtype) or "float32",
        compute_dtype=computed_in(critic.fsdp, plan.device) or plan.param_dtype,
        packed=critic.padding_free,
        trust_remote_code=critic.model.trust_remote_code,
        override=critic.model.override_config,
        freeze_vision_tower=critic.model.freeze_vision_tower,
        gradient_checkpointing=critic.model.enable_gradient_checkpointing,
        lora=lora_spec(critic.model.lora, "critic"),
        sharding=sharding(critic.fsdp),
    )


def critic_engine(config: Config, plan: Plan, media: MediaInputs) -> TorchTrain:
    """The value model, trained."""
    critic = config.worker.critic
    score_budget, update_budget = budgets(config, critic, "critic")
    objective = ValueObjective(critic.loss_avg_mode, critic.cliprange_value)
    ranks = join_ranks(config, plan, critic.fsdp)
    scored = build_critic(critic_spec(config, plan), ranks)
    optim = optim_spec(critic.optim, critic.max_grad_norm, plan)
    return TorchTrain(
        scored,
        media,
        1.0,
        score_budget,
        update_budget,
        objective,
        optim,
        ranks=ranks,
        seed=config.data.seed,
        reduce_each_micro_batch=critic.fsdp.reduce_each_micro_batch,
    )


def reference_engine(
    config: Config, plan: Plan, scored: Scored, media: MediaInputs, ranks: Ranks
) -> TorchTrain | None:
    """The model that training starts from, frozen: a copy, or the policy without its adapters; None without KL.

    `scored` is the policy, on `ranks`.
    """
    if not plan.needs_reference:
        return None
    spec = model_spec(config, plan)
    if spec.lora is not None:
        frozen = Unadapted(scored)
    else:
        fsdp = config.worker.ref.fsdp
        ranks = join_ranks(config, plan, fsdp)
        dtype = plan.reference_dtype or plan.param_dtype
        spec = replace(spec, param_dtype=dtype, compute_dtype=dtype, sharding=sharding(fsdp))
        frozen = build(spec, trainable=False, ranks=ranks)
    score_budget, _ = budgets(config, config.worker.actor, "actor")
    return TorchTrain(frozen, media, config.worker.rollout.temperature, score_budget, ranks=ranks)


def rollout_engine(
    config: Config, plan: Plan, scored: Scored, media: MediaInputs, ranks: Ranks, adapters_apart: bool
) -> RolloutEngine:
    """The sampler, which shares the policy's module where that is whole; else, as vLLM, it has a copy to be fed."""
    if plan.rollout_engine == "vllm":
        return _vllm(config, plan, media, adapters_apart)
    spec, dtype = model_spec(config, plan), full_dtype(config.worker.rollout.dtype)
    return _torch(config, plan, scored if ranks.mesh is None else blank_copy(scored, spec, dtype), media)


def distant_rollout_engine(
    config: Config, plan: Plan, media: MediaInputs, adapters_apart: bool
) -> TorchRollout | VllmRollout:
    """The sampler in a process without a policy, with the weights that training starts from."""
    if plan.rollout_engine == "vllm":
        return _vllm(config, plan, media, adapters_apart)
    dtype = sampler_dtype(config, plan)
    spec = replace(model_spec(config, plan), param_dtype=dtype, compute_dtype=dtype, lora=None)
    return _torch(config, plan, build(spec, trainable=False), media)


def _torch(config: Config, plan: Plan, scored: Scored, media: MediaInputs) -> TorchRollout:
    rollout, spec = config.worker.rollout, model_spec(config, plan)
    ends = stop_ids(spec, load_model_config(spec))
    tokens = rollout.max_num_batched_tokens
    return TorchRollout(scored, media, ends, max_num_batched_tokens=tokens, **rollout.engine_kwargs)


def _vllm(config: Config, plan: Plan, media: MediaInputs, adapters_apart: bool) -> VllmRollout:
    spec = model_spec(config, plan)
    model_config = load_model_config(spec)
    settings = vllm_settings(config, plan, adapters_apart)
    return vllm_rollout(settings, model_config, banned_ids(model_config), media, stop_ids(spec, model_config))


def sends_adapters(config: Config, plan: Plan, scored: Scored) -> bool:
    """Whether the sampler takes the policy's adapters as such; where vLLM does not, the reason is told."""
    lora = config.worker.actor.model.lora
    if not lora.rank or plan.rollout_engine != "vllm":
        return False
    why = why_merged(adapter_layers(scored.model), lora.rank, config.worker.rollout.engine_kwargs)
    if why is not None:
        log.warning("vLLM gets the weights with the adapters merged into them: %s", why)
    return why is None


def vllm_settings(config: Config, plan: Plan, adapters_apart: bool = False) -> VllmSettings:
    """What the vLLM sampler is told."""
    rollout, data, model = config.worker.rollout, config.data, config.worker.actor.model
    return VllmSettings(
        model_path=str(model_folder(str(model.model_path), weights=True)),
        tokenizer_path=str(model_folder(model.tokenizer_path)) if model.tokenizer_path else None,
        dtype=sampler_dtype(config, plan),
        max_model_len=rollout.max_model_len or data.max_prompt_length + data.max_response_length,
        trust_remote_code=model.trust_remote_code,
        override=model.override_config,
        device=plan.device or "cpu",
        seed=rollout.seed,
        seed_answers=rollout.seed_answers,
        tensor_parallel_size=rollout.tensor_parallel_size,
        world_size=plan.sampling_ranks or plan.world_size,
        gpu_memory_utilization=rollout.gpu_memory_utilization,
        enforce_eager=rollout.enforce_eager,
        enable_chunked_prefill=rollout.enable_chunked_prefill,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        disable_log_stats=rollout.disable_log_stats,
        limit_images=rollout.limit_images,
        min_pixels=data.min_pixels,
        max_pixels=data.max_pixels,
        lora_rank=model.lora.rank if adapters_apart else 0,
        lora_alpha=model.lora.alpha,
        engine_kwargs=rollout.engine_kwargs,
    )


def sampler_dtype(config: Config, plan: Plan) -> str:
    """The long name of the type that a sampler with weights of its own computes in."""
    return full_dtype(config.worker.rollout.dtype) or plan.compute_dtype or plan.param_dtype


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


def group_filter(config: Config) -> Filter:
    """Which groups dynamic sampling keeps."""
    return Filter(
        key=config.algorithm.filter_key,
        low=config.algorithm.filter_low,
        high=config.algorithm.filter_high,
        draw_size=config.data.mini_rollout_batch_size or config.data.rollout_batch_size,
        max_tries=config.trainer.max_try_make_batch,
    )


def optim_spec(optim: OptimConfig, max_grad_norm: float, plan: Plan) -> OptimSpec:
    """The optimizer of the actor or the critic."""
    steps = plan.total_steps or 0
    warmup = optim.lr_warmup_steps if optim.lr_warmup_steps is not None else int(optim.lr_warmup_ratio * steps)
    return OptimSpec(
        strategy=optim.strategy,
        lr=optim.lr,
        betas=optim.betas,
        weight_decay=optim.weight_decay,
        schedule=optim.lr_scheduler_type,
        warmup_steps=warmup,
        min_lr_ratio=optim.min_lr_ratio or 0.0,
        total_steps=plan.total_steps,
        max_grad_norm=max_grad_norm,
    )


def budgets(config: Config, model: ActorConfig | CriticConfig, name: str) -> tuple[Budget, Budget]:
    """Of a pass without gradient, and of one with."""
    tokens_per_sample = config.data.max_prompt_length + config.data.max_response_length
    found = []
    for phase in ("experience", "update"):
        samples = getattr(model, f"micro_batch_size_per_device_for_{phase}")
        tokens = samples * tokens_per_sample if model.dynamic_batching else None
        found.append(Budget(tokens, samples, f"worker.{name}.micro_batch_size_per_device_for_{phase}"))
    return found[0], found[1]
