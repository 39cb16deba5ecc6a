"""The store of any family in a process that knows nothing of this one."""

import os
import subprocess
import sys

import pytest
from ray import cloudpickle

from tests import commands
from tests.family_scenes import world

READ = """
import pickle, sys
import numpy as np
store, handle, expected = pickle.load(sys.stdin.buffer)
found = store.inputs(handle)
assert found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in found)
assert store.reader.measure(77, 55).fitted == store.reader.measure(77, 55).fitted
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ("qwen2_5_vl", "gemma3", "idefics3", "pixtral"))
def test_a_store_reads_the_same_pictures_in_another_process(name):
    here = world(name)
    handle = here.prompts()[0].media[0]
    parcel = cloudpickle.dumps((here.media, handle, dict(here.inputs(handle))))
    environment = os.environ | {"PYTHONPATH": str(commands.ROOT)}
    subprocess.run([sys.executable, "-c", READ], input=parcel, check=True, env=environment, timeout=120)
