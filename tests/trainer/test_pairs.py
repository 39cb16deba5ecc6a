"""Every estimator and every loss trains: two steps with two updates each on a tiny vision-language model."""

import itertools
import math

import pytest
import runs

from easyr1.algorithms.needs import AVG_MODES, LOSS_NAMES
from easyr1.trainer.known import code_facts

ESTIMATORS = tuple(code_facts().estimators or ())
ONE_EACH = {(estimator, "default") for estimator in ESTIMATORS} | {("grpo", loss) for loss in LOSS_NAMES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Model and data, shared by all runs."""
    return tmp_path_factory.mktemp("pairs")


def train(folder, **settings):
    """The metrics of two steps in a run folder of its own."""
    name = "-".join(str(value) for value in settings.values())
    settings |= {"trainer__val_before_train": "false", "trainer__val_freq": -1, "trainer__save_freq": -1}
    settings |= {"trainer__save_checkpoint_path": folder / name, "trainer__find_last_checkpoint": "false"}
    runs.run(runs.arguments(folder, "qwen2_5_vl", **settings))
    return runs.steps(folder / name)


def assert_it_learns(steps):
    """Finite numbers, applied updates, and a policy that moves away from the one that sampled."""
    assert sorted(steps) == [1, 2]
    for metrics in steps.values():
        assert all(math.isfinite(value) for value in metrics.values() if isinstance(value, float))
        assert metrics["actor/skipped_updates"] == 0
        assert metrics["critic/advantages/max"] > metrics["critic/advantages/min"]
        assert metrics["actor/grad_norm"] > 0 and abs(metrics["actor/ppo_kl"]) > 0


@pytest.mark.parametrize(("estimator", "loss"), sorted(ONE_EACH))
def test_every_estimator_and_every_loss_trains(folder, estimator, loss):
    assert_it_learns(train(folder, algorithm__adv_estimator=estimator, worker__actor__loss_type=loss))


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "loss"), sorted(set(itertools.product(ESTIMATORS, LOSS_NAMES)) - ONE_EACH))
def test_every_pair_trains(folder, estimator, loss):
    assert_it_learns(train(folder, algorithm__adv_estimator=estimator, worker__actor__loss_type=loss))


@pytest.mark.parametrize("average", AVG_MODES)
def test_every_average_trains(folder, average):
    assert_it_learns(train(folder, worker__actor__loss_avg_mode=average))
