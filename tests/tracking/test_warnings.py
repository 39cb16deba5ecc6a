"""Each warning fires on what it is for, and stays silent just short of it."""

import time

import pytest

from easyr1.tracking.rules import (
    RULES,
    constant_reward,
    entropy_collapse,
    large_gradients,
    mismatch,
    no_spread,
    not_finite,
    rising_kl,
    truncation,
)


def curve(*values):
    return [(step, value) for step, value in enumerate(values, start=1)]


def test_a_reward_that_never_changes():
    said = constant_reward({"reward/overall": curve(0.3, *[0.5] * 10)})
    assert said is not None and said.startswith("the training reward was 0.5 in each of the last 10 steps")
    assert constant_reward({"critic/score/mean": curve(*[0.0] * 10)})
    assert constant_reward({"reward/overall": curve(*[0.5] * 9)}) is None  # too early to tell
    assert constant_reward({"reward/overall": curve(*[0.5] * 9, 0.501)}) is None


def test_truncated_answers():
    said = truncation({"response_length/clip_ratio": curve(*[0.0] * 20, *[0.3] * 10)})
    assert said == (
        "30% of the answers in training were cut at data.max_response_length, before they could give a result"
    )
    assert "the last validation" in str(truncation({"val_response_length/clip_ratio": curve(0.0, 0.5)}))
    assert truncation({"val_response_length/clip_ratio": curve(0.9, 0.1)}) is None
    assert truncation({"response_length/clip_ratio": curve(*[0.9] * 20, *[0.2] * 10)}) is None  # it was so once


def test_groups_without_spread():
    assert "in 90% of the groups of the last 2 steps" in str(no_spread({"rollout/flat_groups": curve(0.85, 0.95)}))
    assert no_spread({"rollout/flat_groups": curve(*[1.0] * 5, *[0.8] * 10)}) is None
    hard = {"rollout/flat_groups": curve(0.9), "reward/accuracy": curve(0.89), "reward/overall": curve(0.95)}
    assert "take harder or easier rows" in str(no_spread(hard))
    assert "all but solved, take harder rows" in str(no_spread({**hard, "reward/accuracy": curve(0.9)}))


def test_a_sampler_that_disagrees_with_the_trainer():
    assert "differ by 0.04 nats a token over the last 3 steps" in str(mismatch({"rollout/kl": curve(0.0, 0.06, 0.06)}))
    assert mismatch({"rollout/kl": curve(*[0.5] * 3, *[0.02] * 10)}) is None


def test_a_kl_that_rises_fivefold_within_five_steps():
    said = rising_kl({"actor/kl_loss": curve(0.01, 0.01, 0.02, 0.03, 0.04, 0.05)})
    assert said is not None and "rose from 0.01 to 0.05 within 5 steps, at step 6" in said
    assert rising_kl({"actor/kl_penalty": curve(0.01, 0.06)})
    assert rising_kl({"actor/kl_loss": curve(0.01, 0.02, 0.03, 0.04, 0.045, 0.048, 0.06)}) is None  # in six steps
    assert rising_kl({"actor/kl_loss": curve(0.0, 0.001, 0.01, 0.02)}) is None  # below the floor


def test_a_long_run_takes_no_longer_than_its_steps():
    start = time.monotonic()
    for rule in RULES:
        rule({name: curve(*[0.01] * 30_000) for name in ("actor/kl_loss", "actor/grad_norm", "actor/entropy")})
    assert time.monotonic() - start < 5


def test_a_gradient_far_above_its_median():
    said = large_gradients({"actor/grad_norm": curve(1.0, 1.0, 11.0, 1.0, 1.0, 12.0)})
    assert said == "actor/grad_norm was above 10 times its median of 1 at step 3 and 1 other step"
    assert "critic/grad_norm" in str(large_gradients({"critic/grad_norm": curve(1.0, 1.0, 1.0, 1.0, 10.5)}))
    assert large_gradients({"actor/grad_norm": curve(1.0, 1.0, 10.0, 1.0, 1.0)}) is None
    assert large_gradients({"actor/grad_norm": curve(1.0, 1.0, 1.0, 99.0)}) is None  # too few for a median
    assert large_gradients({"actor/grad_norm": curve(*[0.0] * 6, 1.0)}) is None  # a median of nothing


def test_an_entropy_that_collapses():
    said = entropy_collapse({"actor/entropy": curve(*[0.4] * 5, *[0.03] * 5)})
    assert said is not None and said.startswith("the entropy fell from 0.4 to 0.03 nats a token")
    assert entropy_collapse({"actor/entropy": curve(*[0.4] * 5, *[0.05] * 5)}) is None
    assert entropy_collapse({"actor/entropy": curve(*[2.0] * 5, *[0.1] * 5)}) is None  # much less, but not little
    assert entropy_collapse({"actor/entropy": curve(*[0.4] * 4, *[0.01] * 5)}) is None  # too early to tell
    low = {"actor/entropy": curve(*[0.4] * 5, *[0.03] * 5), "reward/accuracy": curve(*[0.5] * 5, *[0.89] * 10)}
    assert entropy_collapse(low)
    assert entropy_collapse({**low, "reward/accuracy": curve(*[0.5] * 5, *[0.9] * 10)}) is None  # right, so it may be


def test_numbers_that_are_none():
    found = [(3, "actor/loss", "nan"), (4, "actor/loss", "inf"), (4, "b", "nan"), (5, "actor/loss", "nan")]
    assert not_finite(found) == [
        "actor/loss was not a finite number at step 3 and 2 other steps",
        "b was not a finite number at step 4",
    ]
    assert not_finite([]) == []


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_fires_where_nothing_is_logged_or_a_run_is_well(rule):
    assert rule({}) is None
    well = {
        "reward/overall": curve(*[step / 50 for step in range(40)]),
        "response_length/clip_ratio": curve(*[0.01] * 40),
        "rollout/flat_groups": curve(*[0.3] * 40),
        "rollout/kl": curve(*[0.001] * 40),
        "actor/kl_loss": curve(*[step / 1000 for step in range(40)]),
        "actor/grad_norm": curve(*[1 + step % 3 for step in range(40)]),
        "actor/entropy": curve(*[0.5 - step / 100 for step in range(40)]),
    }
    assert rule(well) is None
