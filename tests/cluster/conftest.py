import os
from pathlib import Path

import fakes
import pytest
import ray

from easyr1.cluster.place import Places
from easyr1.cluster.ray_group import open_ray_group

SECRETS = {"WANDB_API_KEY": "secret-one", "HF_TOKEN": "secret-two", "USE_MODELSCOPE_HUB": "secret-three"}


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="session")
def cluster():
    """Room for several groups at a time."""
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def group(cluster, folder):
    """Two ranks for all tests that leave them whole."""
    before = dict(os.environ)
    os.environ.update(SECRETS)
    try:
        with open_ray_group(fakes.make, Places(1, 2, "cpu"), folder, hang_timeout_s=60) as ranks:
            yield ranks
    finally:
        os.environ.clear()
        os.environ.update(before)
