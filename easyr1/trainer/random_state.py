"""The random generators of this process, whoever draws from them, seeded at the start and kept in checkpoints.

Order of rows and sampling have streams of their own (`seeding`), which need no state.
"""

import base64
import random
from typing import Any

import numpy as np
import torch


def seed_generators(seed: int) -> None:
    """Start the generators of Python, numpy and torch (all devices) anew."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state(devices: bool = True) -> dict[str, Any]:
    """The state of all of them, ready for JSON; without `devices` no GPU is asked, which would take memory of it."""
    cuda = torch.cuda.get_rng_state_all() if devices and torch.cuda.is_available() else []
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "torch": _text(torch.get_rng_state()),
        "cuda": [_text(state) for state in cuda],
    }


def restore_random_state(state: dict[str, Any], devices: bool = True) -> None:
    """Take up what `random_state` gave; devices that were not there then keep what they have, as all do without
    `devices`.
    """
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(_state(state["torch"]))
    if devices and torch.cuda.is_available():
        for device, text in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(_state(text), device)


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _state(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
