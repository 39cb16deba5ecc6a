"""Whether a run may go on from a checkpoint by itself: the keys that decide what is learnt must be as they were."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from easyr1.config.schema import Config, walk

# How long, where, how fast, how often and who is told. The learning rate follows the new number of steps.
MAY_DIFFER = re.compile(
    r"trainer\.(?!critic_warmup$).*"
    r"|data\.(val_.*|filter_overlong_prompts_workers|on_bad_media)"
    r"|worker\.hybrid_engine"
    r"|worker\.(actor|critic)\.(micro_batch_size_.*|padding_free|dynamic_batching|ulysses_size|use_torch_compile)"
    r"|worker\.(actor|critic)\.model\.enable_gradient_checkpointing"
    r"|worker\.(actor|critic|ref)\.(strategy|offload\..*)"
    r"|worker\.(actor|critic|ref)\.fsdp\.(enable_.*|use_orig_params|fsdp_size|reduce_each_micro_batch)"
    r"|worker\.rollout\.(name|gpu_memory_utilization|enforce_eager|enable_chunked_prefill|tensor_parallel_size|n_gpus)"
    r"|worker\.rollout\.(max_.*|disable_.*|engine_kwargs|val_override_config|probe_freq|seed_answers)"
    r"|worker\.reward\.(num_cpus|timeout_s)"
)


def differences(then: Mapping[str, Any], now: Config) -> list[str]:
    """A line for each key that decides what is learnt and that `then` (as `to_mapping` wrote it) has otherwise.

    A key that `then` does not know came later; it is passed over.
    """
    return [
        f"{key}: {old!r} then, {new!r} now" for key, old, new in _changed(then, now) if not MAY_DIFFER.fullmatch(key)
    ]


def _changed(then: Mapping[str, Any], now: Config) -> Iterator[tuple[str, Any, Any]]:
    for key, _, value in walk(now):
        *sections, last = key.split(".")
        branch: Any = then
        for section in sections:
            branch = branch.get(section, {})
        new = list(value) if isinstance(value, tuple) else value
        if last in branch and branch[last] != new:
            yield key, branch[last], new
