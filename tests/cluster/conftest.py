from pathlib import Path

import fakes
import pytest

from easyr1.cluster.place import Places
from easyr1.cluster.ray_group import open_ray_group


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="session")
def group(folder):
    """Two ranks for all tests that leave them whole."""
    with open_ray_group(fakes.make, Places(1, 2, "cpu"), folder, hang_timeout_s=60) as ranks:
        yield ranks
