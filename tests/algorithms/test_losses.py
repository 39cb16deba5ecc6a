"""Numbers of the losses, the averaging that no cut may change, and properties of every entry of the table."""

import itertools
import math

import pytest
import torch

from easyr1.algorithms.losses import AVERAGES, LOSSES, aggregate, log_clip_range, ppo_clip

CLIPS = {"clip_low": 0.2, "clip_high": 0.28, "clip_dual": 3.0}


def ratio_loss(ratio, advantage, **clips):
    """Loss, gradient on the log-prob and metrics of one token with the given ratio."""
    log_probs = torch.tensor([math.log(ratio) - 1.0], requires_grad=True)
    losses, metrics = ppo_clip(
        log_probs, torch.tensor([-1.0]), torch.tensor([advantage]), sample=torch.tensor([0]), **(CLIPS | clips)
    )
    (gradient,) = torch.autograd.grad(losses.sum(), log_probs)
    return losses.item(), gradient.item(), {name: metric.item() for name, metric in metrics.items()}


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "higher", "lower"),
    [
        (2.0, 1.0, -1.28, 0.0, 1, 0),  # moved far enough up
        (0.5, 1.0, -0.5, -0.5, 0, 0),  # moved the wrong way: full pull back
        (0.5, -1.0, 0.8, 0.0, 1, 0),  # moved far enough down
        (2.0, -1.0, 2.0, 2.0, 0, 0),  # wrong way, below the dual clip
        (10.0, -1.0, 3.0, 0.0, 0, 1),  # dual clip
        (1.1, 1.0, -1.1, -1.1, 0, 0),  # inside
        (2.0, 0.0, 0.0, 0.0, 0, 0),
    ],
)
def test_ppo_clip_numbers(ratio, advantage, loss, gradient, higher, lower):
    result = ratio_loss(ratio, advantage)
    assert result[:2] == pytest.approx((loss, gradient), abs=1e-5)
    assert result[2] == {
        "ppo_kl": pytest.approx(-math.log(ratio), abs=1e-6),
        "pg_clipfrac_higher": higher,
        "pg_clipfrac_lower": lower,
    }


def test_an_open_lower_side_and_no_dual_clip():
    assert ratio_loss(1e-3, -1.0, clip_low=1.0)[:2] == pytest.approx((1e-3, 1e-3), abs=1e-7)
    assert ratio_loss(10.0, -1.0, clip_dual=math.inf)[:2] == pytest.approx((10.0, 10.0), abs=1e-4)
    assert ratio_loss(10.0, 0.0, clip_dual=math.inf)[:2] == (0.0, 0.0)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [-500.0, 500.0])
def test_an_absurd_ratio_gives_finite_numbers(log_ratio, advantage):
    log_probs = torch.tensor([log_ratio], requires_grad=True)
    losses, _ = ppo_clip(log_probs, torch.zeros(1), torch.tensor([advantage]), sample=torch.zeros(1).long(), **CLIPS)
    losses.sum().backward()
    assert losses.isfinite().all()
    assert log_probs.grad.isfinite().all()


@pytest.mark.parametrize(("low", "high"), [(-0.1, 0.2), (1.5, 0.2), (0.2, -0.1)])
def test_senseless_clip_ranges_are_refused(low, high):
    with pytest.raises(ValueError, match="clip_low"):
        log_clip_range(low, high)


def a_batch(lengths=(3, 1, 5, 2), seed=0):
    """Log-probs, old log-probs, advantages and sample ids of a made-up mini-batch with some clipping."""
    random = torch.Generator().manual_seed(seed)
    num_tokens = sum(lengths)
    old = -torch.rand(num_tokens, generator=random) - 0.1
    log_probs = old + 0.4 * torch.randn(num_tokens, generator=random)
    per_sample = torch.randn(len(lengths), generator=random)
    sample = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    return log_probs, old, per_sample[sample], sample, torch.tensor(lengths)


@pytest.mark.parametrize("name", LOSSES)
def test_on_policy_the_gradient_is_reinforce_and_nothing_is_clipped(name):
    log_probs, _, advantages, sample, _ = a_batch()
    log_probs.requires_grad_()
    losses, metrics = LOSSES[name](log_probs, log_probs.detach().clone(), advantages, sample=sample, **CLIPS)
    (gradient,) = torch.autograd.grad(losses.sum(), log_probs)
    torch.testing.assert_close(gradient, -advantages)
    assert all((metric == 0).all() and not metric.requires_grad for metric in metrics.values())


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_ragged_float32_per_token(name):
    log_probs, old, advantages, sample, _ = a_batch()
    losses, metrics = LOSSES[name](log_probs.bfloat16(), old.bfloat16(), advantages, sample=sample, **CLIPS)
    assert {(value.shape, value.dtype) for value in (losses, *metrics.values())} == {((11,), torch.float32)}


def test_token_and_sequence_means_of_the_written_case():
    values, lengths = torch.tensor([4.0, 0.0, 0.0, 0.0]), torch.tensor([1, 3])
    sample = torch.tensor([0, 1, 1, 1])
    for mode, expected in (("token", 1.0), ("seq", 2.0)):
        for cut in ([slice(0, 4)], [slice(0, 1), slice(1, 4)], [slice(0, 2), slice(2, 3), slice(3, 4)]):
            parts = [
                aggregate(values[part], sample[part], mode, num_tokens=4, num_samples=2, lengths=lengths)
                for part in cut
            ]
            assert sum(part.item() for part in parts) == pytest.approx(expected)


def cuts_of(lengths):
    """Ways to cut a mini-batch: whole, by sample, pairs, every token alone, inside a sample, one cut empty."""
    ends = list(itertools.accumulate(lengths, initial=0))
    total = ends[-1]
    yield "whole", [(0, total)]
    yield "sample", list(itertools.pairwise(ends))
    yield "pairs", [(ends[0], ends[2]), (ends[2], ends[4])]
    yield "token", [(i, i + 1) for i in range(total)]
    yield "inside", [(0, 2), (2, 2), (2, 7), (7, total)]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("mode", AVERAGES)
def test_loss_and_gradient_do_not_depend_on_the_cut(name, mode):
    lengths = (3, 1, 5, 2)
    log_probs, old, advantages, sample, full_lengths = a_batch(lengths)
    results = {}
    for label, cut in cuts_of(lengths):
        leaf = log_probs.clone().requires_grad_()
        total = 0.0
        for start, stop in cut:
            part = slice(start, stop)
            losses, _ = LOSSES[name](leaf[part], old[part], advantages[part], sample=sample[part], **CLIPS)
            share = aggregate(losses, sample[part], mode, num_tokens=11, num_samples=4, lengths=full_lengths)
            share.backward()
            total += share.item()
        results[label] = total, leaf.grad
    for label, (total, gradient) in results.items():
        assert total == pytest.approx(results["whole"][0], abs=1e-6), label
        torch.testing.assert_close(gradient, results["whole"][1], atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize(("mode", "weights"), [("token", [1 / 1100] * 2), ("seq", [1 / 200, 1 / 2000])])
def test_a_long_and_a_short_sample_weigh_as_the_mode_says(mode, weights):
    lengths = torch.tensor([100, 1000])
    sample = torch.tensor([0, 1]).repeat_interleave(lengths)
    values = torch.zeros(1100, requires_grad=True)
    aggregate(values, sample, mode, num_tokens=1100, num_samples=2, lengths=lengths).backward()
    assert values.grad[[0, 1099]].tolist() == pytest.approx(weights)


def test_aggregate_refuses_what_it_does_not_know():
    empty, none = torch.zeros(0), torch.zeros(0).long()
    with pytest.raises(ValueError, match=r"'sum'.*token, seq"):
        aggregate(empty, none, "sum", num_tokens=1, num_samples=1, lengths=none)
    with pytest.raises(ValueError, match="nothing to average"):
        aggregate(empty, none, "token", num_tokens=0, num_samples=0, lengths=none)
