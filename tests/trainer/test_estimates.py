"""The estimators against what they stand for: all choices counted through."""

import itertools

import numpy as np
import pytest

from easyr1.rewards.parsed import ballot
from easyr1.trainer import estimates
from easyr1.trainer.estimates import interval, maj_at, pass_at, vote


@pytest.mark.parametrize("size", [1, 2, 5, 7])
def test_pass_at_k_is_the_share_of_choices_with_a_right_answer(size):
    for right, k in itertools.product(range(size + 1), range(1, size + 1)):
        chosen = list(itertools.combinations([True] * right + [False] * (size - right), k))
        assert pass_at(size, right, k) == pytest.approx(np.mean([any(one) for one in chosen]))


def test_pass_at_k_is_unbiased():
    draw, chance, k = np.random.default_rng(0), 0.3, 3
    found = [pass_at(6, int(count), k) for count in draw.binomial(6, chance, size=20_000)]
    assert np.mean(found) == pytest.approx(1 - (1 - chance) ** k, abs=0.01)


def test_k_beyond_the_answers_is_refused():
    for wrong in (0, 4):
        with pytest.raises(ValueError, match="1 to 3"):
            pass_at(3, 1, wrong)
        with pytest.raises(ValueError, match="1 to 3"):
            maj_at(["a"] * 3, [True] * 3, wrong)


def counted(ballots, right, k):
    """The same by the book: every choice of k, the most frequent answers, their rightness shared among ties."""
    found = []
    for places in itertools.combinations(range(len(ballots)), k):
        given = [ballots[place] for place in places if ballots[place] is not None]
        tops = {one for one in given if given.count(one) == max(map(given.count, given))}
        rightness = [np.mean([right[place] for place in places if ballots[place] == top]) for top in tops]
        found.append(np.mean(rightness) if rightness else 0.0)
    return np.mean(found)


def test_maj_at_k_is_the_mean_over_all_choices():
    draw = np.random.default_rng(1)
    for _ in range(30):
        ballots = [draw.choice(["1", "2", "3", None]) for _ in range(6)]
        right = [ballot == "1" for ballot in ballots]
        for k in (1, 2, 3, 6):
            assert maj_at(ballots, right, k) == pytest.approx(counted(ballots, right, k))


def test_many_choices_are_drawn_and_come_close(monkeypatch):
    ballots, right = ["1"] * 7 + ["2"] * 5 + [None] * 2, [True] * 7 + [False] * 7
    exact = counted(ballots, right, 4)  # of 1001 choices
    assert maj_at(ballots, right, 4, seed=3) == pytest.approx(exact, abs=0.05)
    assert maj_at(ballots, right, 4, seed=3) == maj_at(ballots, right, 4, seed=3)
    monkeypatch.setattr(estimates, "MAX_SUBSETS", 1001)
    assert maj_at(ballots, right, 4) == pytest.approx(exact)


def test_with_one_answer_the_vote_is_that_answer_and_silence_is_wrong():
    assert vote(["x"], [True]) == 1.0 and vote([None], [True]) == 0.0


def test_the_interval_covers_the_truth_as_often_as_it_says():
    draw = np.random.default_rng(2)
    covered = []
    for trial in range(80):
        low, high = interval((draw.random(60) < 0.4).astype(float).tolist(), seed=trial)
        covered.append(low <= 0.4 <= high)
    assert 0.88 < np.mean(covered) < 1
    assert interval([0.0, 1.0] * 10, seed=1) == interval([0.0, 1.0] * 10, seed=1)


def test_answers_vote_together_only_if_they_are_equal():
    for one, other in (("1,000", "1000.0"), ("1,234,567.50", "1234567.5"), ("-0", "0"), ("A  b", "a B")):
        assert ballot(one) == ballot(other)
    for one, other in (("1,2", "12"), ("1,5", "15"), ("(1,2)", "(12)"), ("1,0000", "10000")):
        assert ballot(one) != ballot(other)
