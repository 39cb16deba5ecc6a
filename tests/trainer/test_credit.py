"""Scores become rewards and advantages, by the estimator that the settings name."""

import numpy as np
import pytest

from easyr1.batch import Completion, Group, Prompt, Sample
from easyr1.errors import RewardError
from easyr1.trainer.credit import KlInReward, assign


def group(number, scores, lengths):
    """A prompt with answers of these lengths and scores."""
    prompt = Prompt(row=number, ids=np.arange(3), index=number)
    samples = []
    for one, length in zip(scores, lengths, strict=True):
        ids, log_probs = np.arange(length), np.full(length, -1.0, np.float32)
        samples.append(Sample(Completion(ids, log_probs, "stop", prompt.group_id, 0), scores=one))
    return Group(prompt, samples)


def overall(*scores):
    return [{"overall": score} for score in scores]


def test_answers_are_compared_within_their_prompt_only():
    groups = [group(0, overall(1, 0), [2, 1]), group(1, overall(9, 9), [1, 3])]
    assert assign(groups, "dr_grpo") is None
    assert [sample.advantages.tolist() for sample in groups[0].samples] == [[0.5, 0.5], [-0.5]]
    assert [sample.advantages.tolist() for sample in groups[1].samples] == [[0.0], [0.0, 0.0, 0.0]]
    assert groups[0].samples[0].rewards.tolist() == [0, 1] and groups[0].samples[0].advantages.dtype == np.float32


def test_discount_and_kl_reach_the_estimator():
    groups = [group(0, overall(1, 0), [3, 1])]
    for sample in groups[0].samples:
        sample.old_log_probs = np.full(len(sample), -1.0, np.float32)
        sample.ref_log_probs = np.full(len(sample), -1.5, np.float32)  # d = 0.5 at every token
    kl = assign(groups, "reinforce_plus_plus", KlInReward("kl", 0.2), gamma=0.5)
    assert kl == pytest.approx(0.5)
    assert groups[0].samples[0].rewards == pytest.approx([-0.1, -0.1, 0.9])
    assert groups[0].samples[0].returns == pytest.approx([0.075, 0.35, 0.9])


def test_a_critics_values_reach_the_estimator():
    groups = [group(0, overall(1, 0), [2, 1])]
    for sample in groups[0].samples:
        sample.values = np.full(len(sample), 0.5, np.float32)
    assign(groups, "gae", gamma=1.0, lam=0.0)
    assert groups[0].samples[0].returns.tolist() == [0.5, 1.0]


def test_parts_of_the_score_are_all_but_the_overall_one():
    parts = [{"overall": 0, "right": 1, "short": 1}, {"overall": 7, "right": 0, "short": 0}]
    parts += [{"overall": 7, "right": 1, "short": 0}, {"overall": 7, "right": 0, "short": 1}]
    groups = [group(0, parts, [1, 1, 1, 1])]
    assign(groups, "gdpo")
    found = [sample.advantages[0] for sample in groups[0].samples]
    assert found == pytest.approx([1.22474, -1.22474, 0, 0], abs=1e-5)


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (overall(1, 0), 'nothing but "overall"'),
        ([{"overall": 1, "right": 1}, {"overall": 0}], "leaves out 'right' for 1 of 2 samples"),
    ],
)
def test_scores_without_their_parts_are_told(scores, words):
    with pytest.raises(RewardError, match=words):
        assign([group(0, scores, [1, 1])], "gdpo")
