"""Closed forms of the estimators, and what every one of them must obey."""

import math

import numpy as np
import pytest
import torch

from easyr1.algorithms.advantages import ESTIMATORS, estimate, gdpo, grpo, grpo_passk, opo, remax
from easyr1.algorithms.needs import NEEDS

COMPARING = [name for name, needs in NEEDS.items() if needs.min_n > 1]


def at_last_token(scores, lengths):
    """Rewards as the trainer makes them: the score at the last token."""
    rewards = [torch.zeros(length) for length in lengths]
    for reward, score in zip(rewards, scores, strict=True):
        reward[-1] = score
    return rewards


def firsts(tensors):
    return torch.stack([tensor[0] for tensor in tensors])


def zeros(groups):
    return torch.zeros(groups).long()


def run(name, rewards, groups, seed=0):
    """An estimator with made-up inputs of the kinds that it needs; the parts of the score add up to it."""
    random = torch.Generator().manual_seed(seed)
    scores = torch.stack([reward.sum() for reward in rewards])
    noise = torch.randn(len(rewards), generator=random)
    return estimate(
        name,
        rewards,
        groups,
        values=[torch.randn(len(reward), generator=random) for reward in rewards],
        baselines=noise,
        parts={"noise": noise, "rest": scores - noise},
        gamma=0.9,
        lam=0.8,
    )


@pytest.mark.parametrize(
    ("name", "scores", "expected"),
    [
        ("grpo", [1, 0, 0, 1], [0.86602, -0.86602, -0.86602, 0.86602]),
        ("grpo", [1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
        ("grpo", [3.0, 1.0], [0.70711, -0.70711]),
        ("grpo_passk", [1, 0, 0, 0], [2.0, 0, 0, 0]),
        ("grpo_passk", [0.5, 0.9, 0.1], [0, 1.0, 0]),
        ("grpo_passk", [1, 0, 1, 0], [0, 0, 0, 0]),
        ("dr_grpo", [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
        ("dr_grpo", [10, 6], [2, -2]),
        ("rloo", [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
        ("rloo", [10, 6], [4, -4]),
        ("opo", [1, 0, 0, 0], [0.9, -0.1, -0.1, -0.1]),  # lengths 1, 2, 3, 4: the baseline is 1 / 10
    ],
)
def test_numbers_of_one_group(name, scores, expected):
    rewards = at_last_token(scores, [1, 2, 3, 4][: len(scores)])
    advantages, returns = ESTIMATORS[name](rewards, zeros(len(scores)))
    torch.testing.assert_close(firsts(advantages), torch.tensor(expected).float(), atol=1e-5, rtol=0)
    for advantage, value in zip(advantages, returns, strict=True):
        assert (advantage == advantage[0]).all()
        assert torch.equal(advantage, value)


def test_grpo_sums_the_token_rewards_so_that_a_kl_in_the_reward_counts():
    spread = [torch.tensor([-0.25, -0.25, 1.0]), torch.tensor([-0.5, 0.0])]
    summed = [torch.tensor([0.0, 0.0, 0.5]), torch.tensor([0.0, -0.5])]
    for one, other in zip(grpo(spread, zeros(2))[0], grpo(summed, zeros(2))[0], strict=True):
        torch.testing.assert_close(one, other)


def test_a_lead_within_rounding_is_a_tie():
    rewards = [torch.tensor([0.1, 0.2], dtype=torch.float64), torch.tensor([0.3], dtype=torch.float64), torch.zeros(1)]
    assert firsts(grpo_passk(rewards, zeros(3))[0]).tolist() == [0, 0, 0]


def test_opo_weighs_the_baseline_by_length():
    advantages, _ = opo(at_last_token([1, 0, 0.5], [6, 2, 2]), zeros(3))
    torch.testing.assert_close(firsts(advantages), torch.tensor([0.3, -0.7, -0.2]))  # baseline (6 + 0 + 1) / 10


def test_gdpo_standardises_each_part_then_their_sum_over_the_batch():
    groups = torch.tensor([0, 0, 0, 0, 1, 1])
    parts = {"right": torch.tensor([1, 0, 1, 0, 5, 5.0]), "short": torch.tensor([9, 0, 0, 9, 2, 2.0])}
    advantages, _ = gdpo(at_last_token([0] * 6, [1] * 6), groups, parts=parts)
    # both parts give +-0.86603 in the first group, so 1.73205, -1.73205, 0, 0; their std over six samples is 1.09545
    expected = torch.tensor([1.58114, -1.58114, 0, 0, 0, 0])
    torch.testing.assert_close(firsts(advantages), expected, atol=1e-5, rtol=0)
    assert firsts(advantages)[4:].tolist() == [0, 0]


def test_gdpo_tells_combinations_apart_that_grpo_takes_for_the_same():
    parts = {"a": torch.tensor([0.0, 1.0, 0.0, 0.0]), "b": torch.tensor([1.0, 0.0, 0.0, 1.0])}
    rewards = at_last_token((parts["a"] + parts["b"]).tolist(), [1] * 4)
    assert len({round(x, 4) for x in firsts(grpo(rewards, zeros(4))[0]).tolist()}) == 2
    assert len({round(x, 4) for x in firsts(gdpo(rewards, zeros(4), parts=parts)[0]).tolist()}) == 3


def test_remax_compares_with_the_greedy_answer_of_its_own_prompt():
    rewards = [torch.tensor([0.0, 0.8]), torch.tensor([0.25, -0.5])]  # as many samples as tokens
    advantages, returns = remax(rewards, torch.tensor([0, 1]), baselines=torch.tensor([0.5, -0.75]))
    torch.testing.assert_close(torch.stack(advantages), torch.tensor([[0.3, 0.3], [0.5, 0.5]]))
    torch.testing.assert_close(torch.stack(returns), torch.tensor([[0.8, 0.8], [-0.25, -0.5]]))


def test_reinforce_plus_plus_baseline_whitens_what_the_group_leaves():
    rewards = at_last_token([1, 0, 7, 7], [1, 3, 2, 2])
    advantages, returns = ESTIMATORS["reinforce_plus_plus_baseline"](rewards, torch.tensor([0, 0, 1, 1]))
    # tokens 0.5, three times -0.5, four times 0: mean -0.125, std 0.35355
    torch.testing.assert_close(firsts(advantages[:2]), torch.tensor([1.76777, -1.06066]), atol=1e-5, rtol=0)
    assert torch.cat(advantages[2:]).tolist() == [0, 0, 0, 0]
    assert firsts(returns).tolist() == [0.5, -0.5, 0, 0]


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("value", [0.0, 1.0, 0.3, -1e4])
def test_equal_scores_give_exactly_zero(name, value):
    # 0.1 + 0.2 is not 0.3 in floating point; summed in another order the same score differs in its last bits
    rewards = [
        torch.tensor([value, 0.0, 0.0]),
        torch.tensor([value / 3] * 3),
        torch.tensor([value * 0.7, value * 0.3]),
    ]
    same = torch.full((3,), value)
    togo = [reward.flip(0).cumsum(0).flip(0) for reward in rewards]  # a critic that knows it all
    if not (NEEDS[name].discount or NEEDS[name].greedy_baseline):  # the others do not look at single tokens
        togo = None
    elif name == "reinforce_plus_plus":
        rewards = at_last_token([value] * 3, [3, 1, 2])
    advantages, _ = estimate(name, rewards, zeros(3), values=togo, baselines=same, parts={"a": same, "b": same / 3})
    for advantage in advantages:
        assert torch.equal(advantage, torch.zeros_like(advantage))


@pytest.mark.parametrize("name", COMPARING)
def test_a_flat_group_among_others_gets_exactly_zero(name):
    rewards = at_last_token([1, 0, 0.25, 0.3, 0.1 + 0.2, 0.3], [2, 1, 5, 4, 1, 3])
    flat = torch.tensor([1, 0, 0, 2, 2, 2.0])
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    advantages, _ = estimate(name, rewards, groups, parts={"a": flat, "b": -flat / 3})
    assert firsts(advantages)[:3].abs().max() > 0.1
    assert torch.equal(torch.cat(advantages[3:]), torch.zeros(8))


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name not in COMPARING and name != "remax"])
def test_a_single_token_gives_exactly_zero(name):
    advantages, _ = run(name, [torch.tensor([5.0])], zeros(1))
    assert advantages[0].tolist() == [0.0]


def test_a_small_difference_that_is_meant_is_kept():
    advantages, _ = grpo(at_last_token([0.5, 0.501], [1, 1]), zeros(2))
    assert advantages[1][0] == pytest.approx(0.7061, abs=1e-3)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_sample_order_changes_nothing(name):
    random = np.random.default_rng(0)
    lengths = random.integers(1, 9, size=24).tolist()
    rewards = at_last_token(random.normal(size=24).tolist(), lengths)
    scores, groups = torch.stack([reward.sum() for reward in rewards]), torch.arange(6).repeat_interleave(4)
    inputs = {"values": [reward.cumsum(0) - 0.5 for reward in rewards], "baselines": scores.roll(1)}
    inputs |= {"parts": {"a": scores.roll(1), "b": scores - scores.roll(1)}, "gamma": 0.9, "lam": 0.8}
    plain = estimate(name, rewards, groups, **inputs)
    order = random.permutation(24).tolist()
    inputs |= {"values": [inputs["values"][i] for i in order], "baselines": inputs["baselines"][order]}
    inputs |= {"parts": {part: values[order] for part, values in inputs["parts"].items()}}
    shuffled = estimate(name, [rewards[i] for i in order], groups[order], **inputs)
    for expected, result in zip(plain, shuffled, strict=True):
        for place, i in enumerate(order):
            torch.testing.assert_close(result[place], expected[i])


@pytest.mark.parametrize("name", [name for name in COMPARING if not NEEDS[name].parts])
def test_interleaved_prompts_are_the_same_groups_and_their_level_does_not_matter(name):
    # p1, p2, p1, p2: treating neighbours as a group would compare answers to different prompts
    groups = torch.tensor([0, 1, 0, 1])
    advantages = firsts(estimate(name, at_last_token([1, 55, 0, 55], [1] * 4), groups)[0])
    assert advantages[0] > 0.4 and advantages[[1, 3]].tolist() == [0, 0]
    lifted = firsts(estimate(name, at_last_token([8, 3, 7, 3], [1] * 4), groups)[0])
    torch.testing.assert_close(lifted, advantages)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_output_is_ragged_float32_like_the_rewards(name):
    rewards = [torch.ones(3, dtype=torch.float64), torch.zeros(1, dtype=torch.float64), torch.zeros(0)]
    for result in run(name, rewards, torch.tensor([1, 1, 1])):
        assert [(len(tensor), tensor.dtype) for tensor in result] == [(length, torch.float32) for length in (3, 1, 0)]
        result[0][0] = 9.0  # no shared storage behind the tokens
        assert result[0][1] != 9.0


@pytest.mark.parametrize("name", COMPARING)
def test_too_few_answers_are_refused_with_the_cure(name):
    with pytest.raises(ValueError, match=rf"1 of 2 groups have a single answer, but {name} .*rollout\.n"):
        run(name, at_last_token([1, 0, 1], [1, 1, 1]), torch.tensor([0, 0, 1]))


@pytest.mark.parametrize(
    ("name", "inputs", "words"),
    [
        ("grpoo", {}, "unknown estimator 'grpoo'.*grpo, "),
        ("gae", {}, "gae needs the critic's values"),
        ("gae", {"values": [torch.zeros(2), torch.zeros(2)]}, "values must hold one number for each token"),
        ("gae", {"values": [torch.zeros(2), torch.tensor([math.nan])]}, "values of 1 of 2 samples are not finite"),
        ("remax", {}, "remax needs the score of a greedy answer"),
        ("remax", {"baselines": torch.zeros(2, 1)}, "baselines must hold one finite number"),
        ("gdpo", {"parts": {}}, "gdpo needs parts of the score"),
        ("gdpo", {"parts": {"format": torch.zeros(3)}}, "format must hold one finite number"),
        ("grpo", {"groups": torch.zeros(3)}, "groups must hold one finite number"),
        ("grpo", {"rewards": [torch.zeros(2), torch.tensor([math.inf])]}, "rewards of 1 of 2.*first sample 1"),
    ],
)
def test_what_an_estimator_cannot_use_is_refused(name, inputs, words):
    inputs = {"rewards": [torch.zeros(2), torch.ones(1)], "groups": torch.zeros(2)} | inputs
    with pytest.raises(ValueError, match=words):
        estimate(name, **inputs)


def test_an_estimator_gets_its_discounts_and_nothing_that_it_did_not_ask_for():
    rewards = [torch.tensor([0.0, 1.0]), torch.zeros(2)]
    offered = {"values": [torch.zeros(2)] * 2, "baselines": torch.zeros(2), "parts": {"a": torch.zeros(2)}}
    assert estimate("grpo", rewards, zeros(2), **offered)[0][0][0] == pytest.approx(0.70711, abs=1e-5)
    _, returns = estimate("reinforce_plus_plus", rewards, zeros(2), gamma=0.5, lam=0.0, **offered)
    assert returns[0].tolist() == [0.5, 1.0]
    _, returns = estimate("gae", rewards, zeros(2), gamma=0.5, lam=0.5, **offered)
    assert returns[0].tolist() == [0.25, 1.0]
