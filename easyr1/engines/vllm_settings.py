"""What the vLLM sampler is told: its arguments and its environment. Imports no vllm."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from easyr1.config.sampler import NAME_KEY, check_engine_kwargs
from easyr1.data.processor import image_token_id
from easyr1.engines.vllm_adapters import room_for
from easyr1.errors import ConfigError

PICTURE_MODELS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
CPU_CACHE_BYTES = 1 << 30  # keys and values on a CPU, where a share of the memory would take it from the trainer


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
    lora_rank: int = 0  # of adapters that are handed over as such; 0: none are
    lora_alpha: float = 0.0
    engine_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sleeps(self) -> bool:
        """Whether the engine gives its memory back while the model is trained; vLLM can on GPUs alone."""
        return self.device == "cuda"


@dataclass(frozen=True)
class Vision:
    """How pictures lie in prompts: the id that each of their tokens has, patches along the side of one."""

    token: int
    merge_size: int


def takes_pictures(model_config: Any) -> bool:
    """Whether vLLM can be given the model's pictures; a text model has none."""
    return image_token_id(model_config) is None or model_config.model_type in PICTURE_MODELS


def vision_of(model_config: Any) -> Vision | None:
    """None for a text model; ConfigError where vLLM cannot be given the model's pictures."""
    token = image_token_id(model_config)
    if token is None:
        return None
    if not takes_pictures(model_config):
        raise ConfigError(
            NAME_KEY,
            f"vLLM is given pictures for {', '.join(PICTURE_MODELS)} in this version, not for "
            f"{model_config.model_type}; set torch",
        )
    return Vision(token, model_config.vision_config.spatial_merge_size)


def arguments(settings: VllmSettings, sees: bool) -> dict[str, Any]:
    """Keyword arguments of vllm.LLM for a model that sees pictures or not.

    `engine_kwargs` come last and win over all that is not our own; ConfigError for what is.
    """
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
    if settings.lora_rank:
        found |= room_for(settings.lora_rank)
    if sees:
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


def set_rank() -> None:
    """Tell vLLM which of the process group's ranks it runs in; it reads this from variables."""
    device = torch.cuda.current_device() if torch.cuda.is_available() else torch.distributed.get_rank()
    os.environ |= {
        "RANK": str(torch.distributed.get_rank()),
        "WORLD_SIZE": str(torch.distributed.get_world_size()),
        "LOCAL_RANK": str(device),
    }


def set_environment(device: str) -> None:
    """Variables that must stand before vllm is imported."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # weights are handed over inside one process
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # the new runner's sampler is another one, not tested here
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if device == "cpu":
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # the threads are the trainer's, too
