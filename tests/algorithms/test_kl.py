"""The KL estimates at small and absurd gaps, and the coefficient that follows them."""

import itertools
import math

import pytest
import torch

from easyr1.algorithms.kl import KNEE, PENALTIES, AdaptiveKL, FixedKL, kl_coefficient
from easyr1.algorithms.needs import KL_WITHOUT_PULL_AS_LOSS


def penalty_and_gradient(name, d):
    """Value and gradient on log pi where log pi - log ref = d."""
    log_probs = torch.tensor([d], requires_grad=True)
    value = PENALTIES[name](log_probs, torch.zeros(1))
    (gradient,) = torch.autograd.grad(value.sum(), log_probs)
    return value.item(), gradient.item()


@pytest.mark.parametrize(
    ("name", "d", "value", "gradient"),
    [
        ("kl", 0.5, 0.5, 1.0),
        ("kl", -0.5, -0.5, 1.0),
        ("abs", -0.5, 0.5, -1.0),
        ("mse", -0.5, 0.125, -0.5),
        ("low_var_kl", -0.5, math.exp(0.5) - 1.5, 1 - math.exp(0.5)),
        ("low_var_kl", 0.5, math.exp(-0.5) - 0.5, 1 - math.exp(-0.5)),
        ("low_var_kl", -KNEE, 10.0, 1 - math.exp(KNEE)),
    ],
)
def test_closed_forms(name, d, value, gradient):
    assert penalty_and_gradient(name, d) == pytest.approx((value, gradient), abs=1e-4)


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("d", [-1e4, -100.0, -21.0, -11.0, -3.0, 3.0, 11.0, 21.0, 100.0, 1e4])
def test_a_large_gap_pulls_back_with_a_finite_gradient(name, d):
    value, gradient = penalty_and_gradient(name, d)
    assert math.isfinite(value)
    assert math.isfinite(gradient)
    assert abs(gradient) > 0.9
    if name != "kl":
        assert value > 0
        assert math.copysign(1, gradient) == math.copysign(1, d)


def test_k3_is_smooth_and_rising_across_the_knee():
    gaps = torch.linspace(-KNEE - 1, -KNEE + 1, 401).tolist()
    points = [penalty_and_gradient("low_var_kl", d) for d in gaps]
    for (value, gradient), (next_value, next_gradient) in itertools.pairwise(points):
        assert next_value < value
        assert next_gradient - gradient == pytest.approx(0.0, abs=0.08)


@pytest.mark.parametrize("name", PENALTIES)
def test_no_gap_costs_nothing_and_bfloat16_is_read_as_float32(name):
    log_probs = torch.tensor([-1.0, -7.5]).bfloat16()
    penalty = PENALTIES[name](log_probs, log_probs.clone())
    assert penalty.dtype == torch.float32
    assert penalty.tolist() == [0.0, 0.0]


def test_mean_over_the_policy_is_the_kl_for_the_unbiased_ones_and_only_k1_has_no_pull():
    """Exact expectation over a three-letter vocabulary, with the gradient on its logits."""
    logits = torch.tensor([0.3, -0.2, 0.5], requires_grad=True)
    reference = torch.tensor([0.1, 0.4, -0.3]).log_softmax(0)
    exact = (logits.log_softmax(0).exp() * (logits.log_softmax(0) - reference)).sum()
    (exact_gradient,) = torch.autograd.grad(exact, logits)
    gradients = {}
    for name, penalty in PENALTIES.items():
        log_probs = logits.log_softmax(0)
        mean = (log_probs.exp().detach() * penalty(log_probs, reference)).sum()
        if name in ("kl", "low_var_kl"):
            assert mean.item() == pytest.approx(exact.item(), abs=1e-6)
        (gradients[name],) = torch.autograd.grad(mean, logits)
    assert {name for name, gradient in gradients.items() if gradient.abs().max() < 1e-6} == KL_WITHOUT_PULL_AS_LOSS
    torch.testing.assert_close(gradients["mse"], exact_gradient)


def test_adaptive_coefficient_follows_the_kl():
    coefficient = kl_coefficient("adaptive", 0.1, target=0.05, horizon=1000.0)
    coefficient.update(0.055, 100)  # 10 % above the target
    assert coefficient.coef == pytest.approx(0.1 * (1 + 0.1 * 0.1))
    coefficient.update(10.0, 100)  # the error is cut at 0.2
    assert coefficient.coef == pytest.approx(0.101 * 1.02)
    coefficient.update(0.0, 100)
    assert coefficient.coef == pytest.approx(0.101 * 1.02 * 0.98)

    resumed = AdaptiveKL(0.1, target=0.05, horizon=1000.0)
    resumed.load(coefficient.state())
    assert resumed.coef == coefficient.coef


def test_fixed_coefficient_stays_and_the_configured_number_wins_after_a_resume():
    coefficient = kl_coefficient("fixed", 0.01, target=0.1, horizon=1e4)
    coefficient.update(99.0, 512)
    assert coefficient.coef == 0.01
    coefficient.load(FixedKL(0.5).state())
    assert coefficient.coef == 0.01


def test_senseless_coefficients_are_refused():
    with pytest.raises(ValueError, match="fixed or adaptive"):
        kl_coefficient("linear", 0.1, target=0.1, horizon=1.0)
    with pytest.raises(ValueError, match="above 0"):
        AdaptiveKL(0.1, target=0.1, horizon=0.0)
    with pytest.raises(ValueError, match="nan"):
        AdaptiveKL(0.1, target=0.1, horizon=1.0).update(math.nan, 1)
