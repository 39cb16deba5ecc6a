"""Weights for a sampler that differs from the trainer: closed forms, no gradient, nothing broken at any gap."""

import math

import pytest
import torch

from easyr1.algorithms.corrections import CORRECTIONS, effective_share, mismatch

SAMPLER = torch.tensor([-1.0, -1.0, -1.0, -3.0, -2.0, -2.0])
TRAINER = torch.tensor([-1.0, -0.5, -2.5, -1.0, -2.1, -1.9])  # ratios 1, 1.65, 0.22, 7.39, 0.90, 1.11
SAMPLE = torch.tensor([0, 0, 0, 1, 2, 2])
RATIOS = [1.0, math.exp(0.5), math.exp(-1.5), math.exp(2.0), math.exp(-0.1), math.exp(0.1)]


@pytest.mark.parametrize(
    ("name", "wanted"),
    (
        ("tis", [RATIOS[0], RATIOS[1], RATIOS[2], 2.0, RATIOS[4], RATIOS[5]]),
        ("mis", [RATIOS[0], RATIOS[1], RATIOS[2], 0.0, RATIOS[4], RATIOS[5]]),
        ("icepop", [RATIOS[0], RATIOS[1], 0.0, 0.0, RATIOS[4], RATIOS[5]]),
        ("seq_mask", [1.0, 1.0, 1.0, 0.0, 1.0, 1.0]),  # means of the logs: -1/3, 2, 0
    ),
)
def test_closed_forms(name, wanted):
    assert CORRECTIONS[name](TRAINER, SAMPLER, SAMPLE, 2.0).tolist() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("name", CORRECTIONS)
def test_agreement_weighs_one_whatever_the_order_and_no_gradient_flows(name):
    log_probs = SAMPLER.clone().requires_grad_()
    weights = CORRECTIONS[name](log_probs, SAMPLER, SAMPLE, 2.0)
    assert weights.tolist() == [1.0] * 6 and not weights.requires_grad
    order = torch.tensor([3, 5, 0, 2, 4, 1])
    mixed = CORRECTIONS[name](TRAINER[order], SAMPLER[order], SAMPLE[order], 2.0)
    assert torch.equal(mixed, CORRECTIONS[name](TRAINER, SAMPLER, SAMPLE, 2.0)[order])


@pytest.mark.parametrize("name", CORRECTIONS)
@pytest.mark.parametrize("gap", (-1e4, -50.0, 50.0, 1e4))
def test_finite_at_any_gap(name, gap):
    weights = CORRECTIONS[name](SAMPLER + gap, SAMPLER, SAMPLE, 2.0)
    assert torch.isfinite(weights).all()
    assert all(torch.isfinite(value).all() for value in mismatch(SAMPLER + gap, SAMPLER).values())


def test_mismatch_is_zero_for_equal_sides_and_its_kl_is_k3():
    equal = mismatch(SAMPLER, SAMPLER)
    assert all((equal[name] == 0).all() for name in ("rollout_gap", "rollout_kl"))
    found = mismatch(TRAINER, SAMPLER)
    gap = TRAINER - SAMPLER
    torch.testing.assert_close(found["rollout_gap"], gap.abs())
    torch.testing.assert_close(found["rollout_kl"], gap.exp() - 1 - gap)
    mean, squared = found["rollout_weight"].mean(), found["rollout_weight_squared"].mean()
    ess = found["rollout_weight"].sum() ** 2 / (found["rollout_weight"] ** 2).sum()
    assert effective_share(float(mean), float(squared)) == pytest.approx(float(ess) / 6)
