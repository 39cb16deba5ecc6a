"""Numbers of the losses, and properties of every entry of the table."""

import math
from itertools import combinations, pairwise

import pytest
import torch

from easyr1.algorithms.losses import AVERAGES, LOSSES, Clip, aggregate

CLIP = Clip(low=0.2, high=0.28, dual=3.0)
WHOLE_ANSWERS = ("gspo", "gspo_token", "gmpo")  # look at all tokens of an answer


def loss_of(name, log_ratios, advantages, clip=CLIP, sample=None):
    """Losses, gradient of their sum on the log-probs, and metrics, of tokens with these log-ratios."""
    log_probs = torch.tensor(log_ratios).sub(1.0).requires_grad_()
    sample = torch.zeros(len(log_ratios)).long() if sample is None else torch.tensor(sample)
    losses, metrics = LOSSES[name](
        log_probs, torch.full((len(log_ratios),), -1.0), torch.tensor(advantages), clip=clip, sample=sample
    )
    (gradient,) = torch.autograd.grad(losses.sum(), log_probs)
    return losses.tolist(), gradient.tolist(), {key: metric.tolist() for key, metric in metrics.items()}


@pytest.mark.parametrize(
    ("name", "ratio", "advantage", "loss", "gradient", "clipped"),
    [
        ("default", 2.0, 1.0, -1.28, 0.0, (1, 0)),  # moved far enough up
        ("default", 0.5, 1.0, -0.5, -0.5, (0, 0)),  # moved the wrong way: full pull back
        ("default", 0.5, -1.0, 0.8, 0.0, (1, 0)),  # moved far enough down
        ("default", 2.0, -1.0, 2.0, 2.0, (0, 0)),  # wrong way, below the dual clip
        ("default", 10.0, -1.0, 3.0, 0.0, (0, 1)),  # dual clip
        ("default", 1.1, 1.0, -1.1, -1.1, (0, 0)),  # inside
        ("default", 2.0, 0.0, 0.0, 0.0, (0, 0)),
        ("cispo", 2.0, 1.0, 1.28 * 0.30685, -1.28, (1,)),  # log pi is ln 2 - 1
        ("cispo", 0.5, 1.0, 0.5 * 1.69315, -0.5, (0,)),  # no lower bound
        ("cispo", 2.0, -1.0, -1.28 * 0.30685, 1.28, (1,)),
        ("sapo", 1.0, 1.0, -2.0, -1.0, ()),
        ("sapo", 2.0, 1.0, -2.92423, -1.57290, ()),
        ("sapo", 0.5, 1.0, -1.51016, -0.47001, ()),
        ("sapo", 2.0, -1.0, 2.82200, 1.53622, ()),  # tau 1.05
    ],
)
def test_numbers_of_one_token(name, ratio, advantage, loss, gradient, clipped):
    losses, gradients, metrics = loss_of(name, [math.log(ratio)], [advantage])
    assert (losses[0], gradients[0]) == pytest.approx((loss, gradient), abs=1e-5)
    assert metrics.pop("ppo_kl") == pytest.approx([-math.log(ratio)], abs=1e-6)
    names = ("pg_clipfrac_higher", "pg_clipfrac_lower")[: len(clipped)]
    assert metrics == {key: [value] for key, value in zip(names, clipped, strict=True)}


def test_an_open_lower_side_and_no_dual_clip():
    assert loss_of("default", [math.log(1e-3)], [-1.0], Clip(low=1.0))[:2] == ([pytest.approx(1e-3)],) * 2
    off = Clip(dual=math.inf)
    assert loss_of("default", [math.log(10)], [-1.0], off)[:2] == ([pytest.approx(10.0)],) * 2
    assert loss_of("default", [math.log(10)], [0.0], off)[:2] == ([0.0], [0.0])


def test_gspo_has_one_ratio_an_answer_which_neighbours_and_length_leave_alone():
    log_ratios, sample = [0.1, 5.0, -0.1, 5.0, 0.3], [3, 8, 3, 8, 3]  # mean 0.1
    losses, gradient, metrics = loss_of("gspo", log_ratios, [1.0, 0.0, 1.0, 0.0, 1.0], sample=sample)
    assert losses == pytest.approx([-1.10517, 0, -1.10517, 0, -1.10517], abs=1e-5)
    assert gradient == pytest.approx([-1.10517, 0, -1.10517, 0, -1.10517], abs=1e-5)
    assert metrics["ppo_kl"] == pytest.approx([-value for value in log_ratios])


def test_gspo_clips_whole_answers():
    for name in ("gspo", "gspo_token"):
        losses, gradient, metrics = loss_of(name, [0.9, -0.3], [1.0, 1.0])  # mean 0.3, ratio 1.34986
        assert (losses, gradient) == (pytest.approx([-1.28, -1.28]), [0, 0])
        assert metrics["pg_clipfrac_higher"] == [1, 1]
        losses, gradient, metrics = loss_of(name, [9.0, -5.0], [-1.0, -1.0])  # mean 2, ratio 7.4
        assert (losses, gradient, metrics["pg_clipfrac_lower"]) == ([3, 3], [0, 0], [1, 1])


def test_gspo_token_keeps_the_gradients_of_different_tokens_apart():
    advantages = [1.0, -2.0, 4.0]
    value, shared, _ = loss_of("gspo", [0.1, -0.1, 0.3], advantages)
    same_value, own, _ = loss_of("gspo_token", [0.1, -0.1, 0.3], advantages)
    assert same_value == pytest.approx(value)
    assert shared == pytest.approx([-1.10517] * 3, abs=1e-5)  # the mean advantage is 1
    assert own == pytest.approx([-1.10517, 2.21034, -4.42068], abs=1e-5)


def test_gmpo_clips_tokens_before_their_geometric_mean():
    losses, gradient, metrics = loss_of("gmpo", [0.5, -0.5], [1.0, 1.0])  # kept ln 1.28 and -0.5, mean -0.12657
    assert losses == pytest.approx([-0.88111, -0.88111], abs=1e-5)
    assert gradient == pytest.approx([0.0, -0.88111], abs=1e-5)
    assert metrics["pg_clipfrac_higher"] == [1, 0]
    losses, gradient, metrics = loss_of("gmpo", [0.5, -0.5], [-1.0, -1.0])  # kept 0.5 and ln 0.8, mean 0.13843
    assert losses == pytest.approx([1.14847, 1.14847], abs=1e-5)
    assert gradient == pytest.approx([1.14847, 0.0], abs=1e-5)
    assert metrics["pg_clipfrac_higher"] == [0, 1]
    assert loss_of("gmpo", [0.0, 0.0, 0.0], [1.0, 3.0, 5.0], sample=[0, 0, 1])[0] == [-2, -2, -5]


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"low": -0.1}, "clip low -0.1"),
        ({"low": 1.5}, "must lie in"),
        ({"high": -0.1}, "clip high -0.1"),
        ({"high": math.nan}, "clip high nan"),
        ({"dual": 1.0}, "dual clip 1.0"),
        ({"tau_negative": 0.0}, "temperatures"),
    ],
)
def test_senseless_clip_ranges_are_refused(bounds, words):
    with pytest.raises(ValueError, match=words):
        Clip(**bounds)


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
    losses, metrics = LOSSES[name](log_probs, log_probs.detach().clone(), advantages, sample=sample, clip=CLIP)
    (gradient,) = torch.autograd.grad(losses.sum(), log_probs)
    torch.testing.assert_close(gradient, -advantages)
    assert all((metric == 0).all() for metric in metrics.values())


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_ragged_float32_per_token_and_metrics_have_no_gradient(name):
    log_probs, old, advantages, sample, _ = a_batch()
    log_probs = log_probs.bfloat16().requires_grad_()
    losses, metrics = LOSSES[name](log_probs, old.bfloat16(), advantages, sample=sample, clip=CLIP)
    assert {(value.shape, value.dtype) for value in (losses, *metrics.values())} == {((11,), torch.float32)}
    assert "ppo_kl" in metrics and not any(metric.requires_grad for metric in metrics.values())


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("gap", [-500.0, -50.0, 50.0, 500.0])
def test_an_absurd_ratio_gives_finite_numbers(name, gap, advantage):
    for sample in ([0, 0, 0], [0, 1, 1]):
        losses, gradient, metrics = loss_of(name, [gap, -gap, 0.1], [advantage] * 3, sample=sample)
        assert all(math.isfinite(value) for values in (losses, gradient, *metrics.values()) for value in values)


@pytest.mark.parametrize("name", LOSSES)
def test_order_and_numbers_of_the_samples_do_not_matter(name):
    log_probs, old, advantages, sample, _ = a_batch()
    order = torch.tensor([9, 10, 4, 5, 6, 7, 8, 3, 0, 1, 2])
    plain, _ = LOSSES[name](log_probs, old, advantages, sample=sample, clip=CLIP)
    moved, _ = LOSSES[name](log_probs[order], old[order], advantages[order], sample=90 - 7 * sample[order], clip=CLIP)
    torch.testing.assert_close(moved, plain[order])


def test_the_losses_pull_in_different_directions():
    gradients = {}
    for name, loss in LOSSES.items():
        log_probs, old, advantages, sample, _ = a_batch()
        log_probs.requires_grad_()
        losses, _ = loss(log_probs, old, advantages, sample=sample, clip=CLIP)
        (gradients[name],) = torch.autograd.grad(losses.sum(), log_probs)
    for one, other in combinations(set(LOSSES) - {"gspo_token"}, 2):  # gspo's, where answers have one advantage
        assert torch.nn.functional.cosine_similarity(gradients[one], gradients[other], dim=0) < 0.999, (one, other)
    torch.testing.assert_close(gradients["gspo"], gradients["gspo_token"])


def cuts_of(lengths):
    """Ways to cut a mini-batch: whole, by sample, pairs, one cut empty; and inside a sample."""
    ends = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    total = ends[-1]
    yield "whole", [(0, total)]
    yield "sample", list(pairwise(ends))
    yield "pairs", [(ends[0], ends[2]), (ends[2], ends[4])]
    yield "empty", [(0, ends[1]), (ends[1], ends[1]), (ends[1], total)]
    yield "token", [(i, i + 1) for i in range(total)]
    yield "inside", [(0, 2), (2, 7), (7, total)]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("mode", AVERAGES)
def test_loss_and_gradient_do_not_depend_on_the_cut(name, mode):
    lengths = (3, 1, 5, 2)
    log_probs, old, advantages, sample, full_lengths = a_batch(lengths)
    counts = {"num_tokens": 11, "num_samples": 4, "lengths": full_lengths, "max_length": 8}
    results = {}
    for label, cut in cuts_of(lengths):
        if name in WHOLE_ANSWERS and label in ("token", "inside"):
            continue
        leaf = log_probs.clone().requires_grad_()
        total = 0.0
        for start, stop in cut:
            part = slice(start, stop)
            losses, _ = LOSSES[name](leaf[part], old[part], advantages[part], sample=sample[part], clip=CLIP)
            share = aggregate(losses, sample[part], mode, **counts)
            share.backward()
            total += share.item()
        results[label] = total, leaf.grad
    for label, (total, gradient) in results.items():
        assert total == pytest.approx(results["whole"][0], abs=1e-6), label
        torch.testing.assert_close(gradient, results["whole"][1], atol=1e-7, rtol=1e-6)


def test_averages_of_the_written_case():
    values, sample = torch.tensor([4.0, 0.0, 0.0, 0.0]), torch.tensor([0, 1, 1, 1])
    counts = {"num_tokens": 4, "num_samples": 2, "lengths": torch.tensor([1, 3]), "max_length": 5}
    for mode, expected in (("token", 1.0), ("seq", 2.0), ("seq_sum_const", 0.4)):
        for cut in ([slice(0, 4)], [slice(0, 1), slice(1, 4)], [slice(0, 2), slice(2, 3), slice(3, 4)]):
            parts = [aggregate(values[part], sample[part], mode, **counts) for part in cut]
            assert sum(part.item() for part in parts) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mode", "weights"),
    [("token", [1 / 1100] * 2), ("seq", [1 / 200, 1 / 2000]), ("seq_sum_const", [1 / 4096] * 2)],
)
def test_a_long_and_a_short_sample_weigh_as_the_mode_says(mode, weights):
    lengths = torch.tensor([100, 1000])
    sample = torch.tensor([0, 1]).repeat_interleave(lengths)
    values = torch.zeros(1100, requires_grad=True)
    aggregate(values, sample, mode, num_tokens=1100, num_samples=2, lengths=lengths, max_length=2048).backward()
    assert values.grad[[0, 1099]].tolist() == pytest.approx(weights)


def test_aggregate_refuses_what_it_does_not_know():
    empty, none = torch.zeros(0), torch.zeros(0).long()
    with pytest.raises(ValueError, match=r"'sum'.*token, seq"):
        aggregate(empty, none, "sum", num_tokens=1, num_samples=1, lengths=none)
    with pytest.raises(ValueError, match="nothing to average"):
        aggregate(empty, none, "token", num_tokens=0, num_samples=0, lengths=none)
    with pytest.raises(ValueError, match="greatest length"):
        aggregate(empty, none, "seq_sum_const", num_tokens=1, num_samples=1, lengths=none)
