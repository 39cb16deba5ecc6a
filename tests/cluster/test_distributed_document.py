"""docs/distributed.md names what is handed on of the environment, and its recipes for GPUs ask for GPUs."""

import re
from pathlib import Path

import pytest

from easyr1.cluster.environment import NAMES, PREFIXES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/distributed.md").read_text()


def test_all_that_ranks_get_of_the_environment_is_named():
    section = TEXT.partition("## Environment")[2].partition("\n## ")[0]
    words = section.replace("`", " ").split()
    assert [name for name in (*PREFIXES, *NAMES) if name not in words and name.upper() not in words] == []


@pytest.mark.parametrize(("file", "count"), [("docs/distributed.md", 3), ("easyr1/examples/runtime_env.yaml", 1)])
def test_commands_for_many_gpus_do_not_leave_the_device_to_the_driver_s_machine(file, count):
    text = (ROOT / file).read_text()
    commands = re.findall(r"easyr1(?:\.cli\.main)? train (?:.*\\\n)*.*", text)
    assert len(commands) == count
    assert all("trainer.nnodes=" in command and "trainer.device=cuda" in command for command in commands)
