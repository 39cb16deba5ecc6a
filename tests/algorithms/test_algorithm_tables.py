"""The names that a configuration may use are the ones that exist, are documented, and cost no torch to look up."""

import doctest
import subprocess
import sys
from pathlib import Path

import pytest

from easyr1.algorithms import advantages, kl, losses, needs

ROOT = Path(__file__).resolve().parents[2]


def test_the_names_without_torch_are_the_names_of_the_tables():
    assert set(needs.NEEDS) == set(advantages.ESTIMATORS)
    assert tuple(losses.LOSSES) == needs.LOSS_NAMES
    assert tuple(losses.AVERAGES) == needs.AVG_MODES
    assert tuple(kl.PENALTIES) == needs.KL_NAMES
    for kl_type in needs.KL_TYPES:
        assert kl.kl_coefficient(kl_type, 0.1, target=0.1, horizon=1.0).coef == 0.1


def test_needs_import_no_torch():
    code = "import easyr1.algorithms.needs, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("module", [advantages, losses, kl], ids=lambda module: module.__name__)
def test_the_numbers_in_the_docstrings_are_true(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("algorithm.adv_estimator", advantages.ESTIMATORS),
        ("worker.actor.loss_type", losses.LOSSES),
        ("worker.actor.loss_avg_mode", losses.AVERAGES),
        ("algorithm.kl_penalty", kl.PENALTIES),
        ("algorithm.kl_type", needs.KL_TYPES),
    ],
)
def test_every_entry_is_documented(key, names):
    text = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    for name in names:
        assert f"`{key}={name}`" in text
