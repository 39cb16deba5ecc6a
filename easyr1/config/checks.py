"""Keys against each other and against the data: batch sizes, lengths, ranks, KL switches. Raises ConfigError."""

import re

from easyr1.config.actor import FsdpConfig
from easyr1.config.placement import sampling_ranks
from easyr1.config.plan import Facts
from easyr1.config.sampler import NAME_KEY, check_engine_kwargs
from easyr1.config.schema import Config, CriticConfig
from easyr1.errors import ConfigError

TORCH_ENGINE_KWARGS = ("max_num_seqs",)  # answers decoded together


def check_together(config: Config, given: frozenset[str], facts: Facts, world_size: int, sampler: str) -> None:
    """All checks that need no files and no devices; `sampler` is the one that was chosen.

    Raises ConfigError with the numbers and the cure.
    """
    check_ranks(config, world_size)
    check_sequence(config, facts)
    check_batches(config, world_size)
    check_sources(config)
    check_rows(config, facts)
    check_lengths(config, given, facts, sampler)
    check_pictures(config, facts)
    check_sampling(config, facts)
    check_engine(config, sampler)
    check_kl(config, given, facts)
    check_critic(config, facts)
    check_lora(config)
    _check_precision("worker.actor.fsdp", config.worker.actor.fsdp)


def check_ranks(config: Config, world_size: int) -> None:
    """Ranks that work on one thing together must divide all ranks."""
    actor, ref, critic, rollout = config.worker.actor, config.worker.ref, config.worker.critic, config.worker.rollout
    if not config.worker.hybrid_engine and rollout.n_gpus is None:
        raise ConfigError(
            "worker.rollout.n_gpus",
            "null, but worker.hybrid_engine=false lets other devices sample than those that train; set how many, such "
            "as 1, or worker.hybrid_engine=true",
        )
    sampling, size = sampling_ranks(config) or world_size, rollout.tensor_parallel_size
    if sampling % size and rollout.name != "torch":
        cure = f"set a divisor of {sampling}, such as {_divisor(sampling, size)}"
        message = f"{size} ranks each cannot share out {sampling} ranks; {cure}"
        raise ConfigError("worker.rollout.tensor_parallel_size", message)
    for key, size in (
        ("worker.actor.ulysses_size", actor.ulysses_size),
        ("worker.actor.fsdp.fsdp_size", min(actor.fsdp.fsdp_size, world_size)),
        ("worker.ref.fsdp.fsdp_size", min(ref.fsdp.fsdp_size, world_size)),
        ("worker.critic.fsdp.fsdp_size", min(critic.fsdp.fsdp_size, world_size)),
    ):
        if size > 1 and world_size % size:
            cure = f"set a divisor of {world_size}, such as {_divisor(world_size, size)}"
            raise ConfigError(key, f"{size} ranks each cannot share out {world_size} ranks; {cure}")


def check_sequence(config: Config, facts: Facts) -> None:
    """Ranks that share rows: packed ones."""
    actor, critic = config.worker.actor, config.worker.critic
    needs = (facts.estimators or {}).get(config.algorithm.adv_estimator)
    with_critic = needs is not None and needs.values
    for name, section in (("actor", actor), ("critic", critic if with_critic else None)):
        if section is not None and actor.ulysses_size > 1 and not section.padding_free:
            raise ConfigError(
                f"worker.{name}.padding_free",
                f"false gives padded rows, which {actor.ulysses_size} ranks cannot share; set true, or "
                "worker.actor.ulysses_size=1",
            )


def check_batches(config: Config, world_size: int) -> None:
    """Prompts per rollout, per draw, per optimizer step and per pass must fit into each other and onto the ranks.

    Whole groups go to replicas by what they cost, and a mini-batch is the same however many there are; so this is not
    what the engines need, it is what gives every replica the same work.
    """
    data, actor, n = config.data, config.worker.actor, config.worker.rollout.n
    replicas = world_size // actor.ulysses_size
    to = f"{replicas} ranks" if actor.ulysses_size == 1 else f"{replicas} times {actor.ulysses_size} ranks"
    for key, prompts in (
        ("data.rollout_batch_size", data.rollout_batch_size),
        ("data.mini_rollout_batch_size", data.mini_rollout_batch_size),
    ):
        if prompts is not None and prompts % replicas:
            ranks = _divisor(prompts, replicas) * actor.ulysses_size
            cure = f"use {_multiple(prompts, replicas)} prompts or {ranks} ranks"
            raise ConfigError(key, f"{prompts} prompts cannot be shared out evenly to {to}; {cure}")
    _check_update("worker.actor.global_batch_size", data.rollout_batch_size, actor.global_batch_size)
    samples = actor.global_batch_size * n
    if samples % replicas:
        cure = f"use global_batch_size={_multiple(actor.global_batch_size, replicas)}"
        message = f"{actor.global_batch_size} prompts x {n} answers = {samples} samples per update"
        raise ConfigError("worker.actor.global_batch_size", f"{message} cannot be shared out evenly to {to}; {cure}")
    if actor.micro_batch_size_per_device_for_update > samples // replicas:
        raise ConfigError(
            "worker.actor.micro_batch_size_per_device_for_update",
            f"{actor.micro_batch_size_per_device_for_update} samples per pass, but a rank has only "
            f"{samples // replicas} per update ({samples} samples on {to}); "
            f"set at most {samples // replicas} or raise worker.actor.global_batch_size",
        )


def check_sources(config: Config) -> None:
    """A weight for each source of training rows."""
    files, weights = config.data.train_files, config.data.train_weights
    num_files = 1 if isinstance(files, str) else len(files)
    if weights is not None and len(weights) != num_files:
        raise ConfigError(
            "data.train_weights",
            f"{len(weights)} weights for {num_files} sources of data.train_files; give one for each, in their order, "
            "or null",
        )


def check_rows(config: Config, facts: Facts) -> None:
    """Enough rows for a step."""
    prompts = config.data.rollout_batch_size
    if facts.train_rows is not None and facts.train_rows < prompts and not config.trainer.val_only:
        after = "the length filter" + (" and data.train_weights" if config.data.train_weights else "")
        cure = (
            f"set at most {facts.train_rows} (and worker.actor.global_batch_size with it)" if facts.train_rows else ""
        )
        raise ConfigError(
            "data.rollout_batch_size",
            f"{prompts} prompts per step, but there are {facts.train_rows} training rows (after {after}); "
            + (cure or "check data.train_files and data.max_prompt_length"),
        )
    if facts.val_rows == 0:
        raise ConfigError(
            "data.val_files", "no validation row is left; check data.val_files and data.max_prompt_length"
        )


def check_lengths(config: Config, given: frozenset[str], facts: Facts, sampler: str) -> None:
    """Prompt and answer must fit where they go."""
    data, rollout = config.data, config.worker.rollout
    longest = data.max_prompt_length + data.max_response_length
    limits = {"worker.rollout.max_model_len": rollout.max_model_len}
    key = "worker.rollout.max_num_batched_tokens"
    if sampler == "vllm" or key in given:
        limits[key] = rollout.max_num_batched_tokens
    for key, limit in limits.items():
        if limit is not None and limit < longest:
            parts = f"{data.max_prompt_length} + {data.max_response_length}"
            need = f"data.max_prompt_length + data.max_response_length = {parts} = {longest}"
            raise ConfigError(key, f"{limit} tokens are too few for {need}; set at least {longest}")
    if facts.max_prompt_tokens is not None and facts.max_prompt_tokens > data.max_prompt_length:
        raise ConfigError(
            "data.max_prompt_length",
            f"the longest prompt has {facts.max_prompt_tokens} tokens, the limit is {data.max_prompt_length}; "
            "raise it, lower data.max_pixels, or set data.filter_overlong_prompts=true",
        )


def check_pictures(config: Config, facts: Facts) -> None:
    """Size and number of pictures."""
    smallest, largest = config.data.min_pixels, config.data.max_pixels
    if smallest is not None and largest is not None and smallest > largest:
        raise ConfigError("data.min_pixels", f"{smallest} is more than data.max_pixels={largest}; lower it")
    if config.worker.rollout.name == "vllm" and facts.max_videos:
        raise ConfigError(
            NAME_KEY, "vLLM is given pictures only in this version, and there are rows with videos; set torch"
        )
    limit = config.worker.rollout.limit_images
    if 0 < limit < (facts.max_images or 0):
        cure = f"set {facts.max_images}, or 0 for no limit"
        raise ConfigError(
            "worker.rollout.limit_images", f"a row has {facts.max_images} pictures, the limit is {limit}; {cure}"
        )


def check_sampling(config: Config, facts: Facts) -> None:
    """Answers must differ, and there must be enough of them."""
    rollout, estimator = config.worker.rollout, config.algorithm.adv_estimator
    if rollout.temperature == 0 and not config.trainer.val_only:
        raise ConfigError(
            "worker.rollout.temperature",
            "0 gives the same answer every time, so there is nothing to learn from; set it above 0, for example 1.0 "
            "(for greedy validation: worker.rollout.val_override_config.temperature=0)",
        )
    needs = (facts.estimators or {}).get(estimator)
    if needs is not None and rollout.n < needs.min_n:
        raise ConfigError(
            "worker.rollout.n",
            f"{rollout.n} answer per prompt, but {estimator} compares at least {needs.min_n}; "
            f"set worker.rollout.n to {needs.min_n} or more, for example 8",
        )
    if rollout.correction != "none" and config.worker.actor.old_log_probs == "sampler":
        raise ConfigError(
            "worker.rollout.correction",
            f"{rollout.correction} weighs how the trainer's log-probs differ from the sampler's, but with "
            "worker.actor.old_log_probs=sampler they are the same; set auto or recompute, or correction=none",
        )
    if config.algorithm.online_filtering and rollout.n < 2:
        raise ConfigError(
            "worker.rollout.n",
            f"{rollout.n} answer per prompt never differs from itself, so algorithm.online_filtering would drop every "
            "group; set worker.rollout.n to 2 or more, or algorithm.online_filtering=false",
        )
    algorithm = config.algorithm
    if algorithm.online_filtering and algorithm.filter_low >= algorithm.filter_high:
        limits = f"filter_low={algorithm.filter_low} is not below filter_high={algorithm.filter_high}"
        raise ConfigError("algorithm.filter_low", f"{limits}, so no group would be kept")


def check_engine(config: Config, sampler: str) -> None:
    """Further arguments of the sampler."""
    given = config.worker.rollout.engine_kwargs
    if sampler == "vllm":
        check_engine_kwargs(given)
        return
    rows = given.get("max_num_seqs", 1)
    if not isinstance(rows, int) or rows < 1:
        raise ConfigError("worker.rollout.engine_kwargs.max_num_seqs", f"got {rows!r}, expected a whole number >= 1")
    if unknown := [name for name in given if name not in TORCH_ENGINE_KWARGS]:
        names = ", ".join(unknown)
        raise ConfigError(
            "worker.rollout.engine_kwargs", f"the torch sampler takes {', '.join(TORCH_ENGINE_KWARGS)}, not {names}"
        )


def check_kl(config: Config, given: frozenset[str], facts: Facts) -> None:
    """The KL switches must not contradict each other, nor the estimator."""
    algorithm = config.algorithm
    if algorithm.disable_kl and algorithm.use_kl_loss and "algorithm.use_kl_loss" in given:
        raise ConfigError(
            "algorithm.use_kl_loss", "true contradicts algorithm.disable_kl=true; leave out the one you do not want"
        )
    needs = (facts.estimators or {}).get(algorithm.adv_estimator)
    if needs is not None and needs.parts and not (algorithm.use_kl_loss or algorithm.disable_kl):
        raise ConfigError(
            "algorithm.use_kl_loss",
            f"false takes the KL off the reward, but {algorithm.adv_estimator} looks at the parts of the score, and "
            "the KL is none of them; set true, or algorithm.disable_kl=true",
        )


def check_critic(config: Config, facts: Facts) -> None:
    """The critic's batch, where the estimator has a critic."""
    needs = (facts.estimators or {}).get(config.algorithm.adv_estimator)
    critic: CriticConfig = config.worker.critic
    if needs is not None and needs.values:
        _check_update("worker.critic.global_batch_size", config.data.rollout_batch_size, critic.global_batch_size)
        if critic.ulysses_size != config.worker.actor.ulysses_size:
            raise ConfigError(
                "worker.critic.ulysses_size",
                f"{critic.ulysses_size} ranks share a sequence of the critic and {config.worker.actor.ulysses_size} "
                "one of the actor; both get the same samples on the same ranks, so set the same number",
            )
        _check_precision("worker.critic.fsdp", critic.fsdp)


def _check_precision(section: str, fsdp: FsdpConfig) -> None:
    """Weights of 16 bits cannot be computed with in 32: nothing casts them up."""
    if fsdp.mp_param_dtype in ("fp32", "float32") and fsdp.torch_dtype not in (None, "fp32", "float32"):
        raise ConfigError(
            f"{section}.mp_param_dtype",
            f"{fsdp.mp_param_dtype} computation has nothing to gain from weights kept in {fsdp.torch_dtype}; "
            f"set {section}.torch_dtype=fp32, or leave mp_param_dtype at null to compute in {fsdp.torch_dtype}",
        )


def check_lora(config: Config) -> None:
    """The pattern of layers without adapters, where there are adapters at all."""
    for name, lora in (("actor", config.worker.actor.model.lora), ("critic", config.worker.critic.model.lora)):
        if not lora.rank or lora.exclude_modules is None:
            continue
        try:
            re.compile(lora.exclude_modules)
        except re.error as error:
            raise ConfigError(
                f"worker.{name}.model.lora.exclude_modules",
                f"{lora.exclude_modules!r} is no regular expression ({error}); write for example .*visual.*, or null",
            ) from error


def _check_update(key: str, rollout: int, update: int) -> None:
    if rollout % update:
        cure = f"set {key}={_divisor(rollout, update)}, or data.rollout_batch_size={_multiple(rollout, update)}"
        raise ConfigError(
            key, f"{update} prompts per update do not divide data.rollout_batch_size={rollout} prompts; {cure}"
        )


def _divisor(number: int, near: int) -> int:
    """The divisor of `number` nearest to `near`."""
    return min((size for size in range(1, number + 1) if number % size == 0), key=lambda size: abs(size - near))


def _multiple(number: int, of: int) -> int:
    """The multiple of `of` nearest to `number`, at least one of them."""
    return max(of, round(number / of) * of)
