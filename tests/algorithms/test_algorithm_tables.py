"""The names that a configuration may use are the ones that exist, are documented, and cost no torch to look up."""

import subprocess
import sys
from pathlib import Path
from typing import get_args

from easyr1.algorithms import advantages, describe, kl, losses, needs
from easyr1.config.schema import known_keys

ROOT = Path(__file__).resolve().parents[2]


def test_the_names_without_torch_are_the_names_of_the_tables():
    assert set(needs.NEEDS) == set(advantages.ESTIMATORS)
    assert tuple(losses.LOSSES) == needs.LOSS_NAMES
    assert tuple(losses.AVERAGES) == needs.AVG_MODES
    assert (*kl.PENALTIES, needs.FULL_KL) == needs.KL_NAMES
    for kl_type in needs.KL_TYPES:
        assert kl.kl_coefficient(kl_type, 0.1, target=0.1, horizon=1.0).coef == 0.1


def test_needs_import_no_torch():
    code = "import easyr1.algorithms.needs, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_the_page_of_the_algorithms_is_not_stale():
    assert describe.TARGET.read_text(encoding="utf-8") == describe.markdown_text(), "run make config"


def test_every_entry_has_an_idea_a_source_and_keys_that_exist():
    known = set(known_keys())
    for family in describe.FAMILIES[:2]:
        for name in family.table:
            idea, fields = describe.read_docstring(family.table[name])
            assert idea.endswith(".") and fields["Formula"] and "arXiv:" in fields["Paper"], name
            text = describe.entry_text(family, name)
            assert f"### `{family.key}={name}`" in text and "\n- tests: " in text
            assert {f"worker.actor.{key}" for key in fields.get("Keys", "loss_type").split(", ")} <= known


def test_the_schema_allows_the_averages_that_exist():
    assert get_args(known_keys()["worker.actor.loss_avg_mode"][0]) == needs.AVG_MODES
