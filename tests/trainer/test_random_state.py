"""Which generators' states a checkpoint holds: those of GPUs only where this process computes on them."""

from types import SimpleNamespace

import pytest
import torch

from easyr1.trainer.loop import Trainer
from easyr1.trainer.random_state import random_state, restore_random_state

STATE = torch.arange(16, dtype=torch.uint8)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU whose use is noted."""
    used = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: used.append("asked") or [STATE])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: used.append((state.tolist(), device)))
    return used


def test_a_process_that_computes_keeps_its_gpus_states(gpu):
    restore_random_state(random_state())
    assert gpu == ["asked", (STATE.tolist(), 0)]


@pytest.mark.parametrize("in_driver", (True, False))
def test_a_driver_whose_ranks_are_elsewhere_leaves_gpus_alone(gpu, in_driver):
    there = random_state()  # of a run on one rank
    gpu.clear()
    driver = SimpleNamespace(plan=SimpleNamespace(in_driver=in_driver), dynamic=None)
    driver.loader = driver.kl = SimpleNamespace(state=dict)
    driver.computes = Trainer.computes.fget(driver)
    found = Trainer.state(driver)["random"]
    restore_random_state(there, driver.computes)
    assert bool(gpu) == bool(found["cuda"]) == in_driver
