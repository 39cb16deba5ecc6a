"""What is known before anything is loaded: what this version's code offers, and what this machine has."""

import os
from dataclasses import replace

from easyr1.algorithms.needs import KL_NAMES, LOSS_NAMES, NEEDS
from easyr1.config.plan import Facts
from easyr1.config.supported import installed_vllm
from easyr1.tracking.loggers import LOGGERS
from easyr1.tracking.services import unready

OPTIMIZERS = ("adamw", "adamw_bf16")


def code_facts(dry_run: bool = False) -> Facts:
    """What this version's code offers. Loads no torch."""
    return Facts(
        estimators=NEEDS,
        losses=LOSS_NAMES,
        kl_penalties=KL_NAMES,
        loggers=tuple(LOGGERS),
        unready_loggers=unready(),
        optimizers=OPTIMIZERS,
        dry_run=dry_run,
    )


def machine_facts(facts: Facts) -> Facts:
    """The same, with the GPUs that torch sees, the vLLM that is installed, and whether a cluster of Ray is named."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cluster = os.environ.get("RAY_ADDRESS", "") not in ("", "local")
    return replace(facts, device="cuda" if gpus else "cpu", num_devices=gpus, cluster=cluster, vllm=installed_vllm())
