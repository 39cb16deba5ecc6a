"""Variables of the environment that reach every rank. Values are secrets (keys of loggers and hubs): never logged."""

import os
from collections.abc import Mapping

PREFIXES = (
    "EASYR1_",
    "GLOO_",
    "HF_",
    "HUGGINGFACE_",
    "KMP_",
    "MLFLOW_",
    "MODELSCOPE_",
    "NCCL_",
    "OMP_",
    "SWANLAB_",
    "TENSORBOARD_",
    "TORCH_NCCL_",
    "TRANSFORMERS_",
    "VLLM_",
    "WANDB_",
)
NAMES = (
    "USE_MODELSCOPE_HUB",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TOKENIZERS_PARALLELISM",
    "TQDM_DISABLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)


def travelling(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of the variables that ranks get.

    >>> travelling({"HF_HOME": "/data", "HOME": "/root", "NO_PROXY": "*"})
    {'HF_HOME': '/data', 'NO_PROXY': '*'}
    """
    return {name: value for name, value in variables.items() if name in NAMES or name.startswith(PREFIXES)}


def threads(ranks_on_node: int) -> int:
    """OpenMP threads of one rank, where nobody set OMP_NUM_THREADS: its share of the cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // ranks_on_node)
