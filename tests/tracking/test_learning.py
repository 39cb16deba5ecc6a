"""The phases of learning: format, then content, then a plateau."""

import pytest

from easyr1.tracking.learning import learning, plateau


def curves(form, accuracy, every=10):
    return {
        name: [(every * index, value) for index, value in enumerate(values)]
        for name, values in (("val/format_reward", form), ("val/accuracy_reward", accuracy))
        if values
    }


def test_the_format_phase_ends_at_the_first_validation_with_nine_tenths():
    found = learning(curves([0.2, 0.89, 0.9, 0.7], [0.1, 0.2, 0.3, 0.4]))
    assert (found.format_end, found.content_end) == (20, None)
    assert found.marks == [(20, "format learnt")]
    assert found.words == (
        "The format was learnt by step 20 (0.90). Content is being learnt: a plateau shows after 5 validations, "
        "there are 2."
    )


def test_a_format_that_is_not_learnt_yet():
    found = learning(curves([0.2, 0.89], [0.1, 0.2]))
    assert found.marks == []
    assert found.words == "Still in the format phase: the validation format reached 0.89, not yet 0.9."


def test_the_content_phase_ends_when_five_validations_gain_too_little():
    found = learning(curves([0.95] * 8, [0.1, 0.3, 0.5, 0.55, 0.56, 0.565, 0.515, 0.6]))
    assert found.marks == [(0, "format learnt"), (60, "plateau")]
    assert found.words == (
        "The format was there at step 0 already (0.95). Content was learnt until step 60; a plateau since: the 5 "
        "validations up to there gained less than 0.02."
    )


def test_validations_before_the_format_are_no_plateau_of_content():
    found = learning(curves([0.1] * 5 + [0.9] * 4, [0.1] * 9))
    assert (found.format_end, found.content_end) == (50, None)
    assert learning(curves([0.1] * 5 + [0.9] * 5, [0.1] * 10)).content_end == 90


def test_content_that_still_gains():
    assert learning(curves([0.9] * 6, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])).words.endswith("being learnt: it still gains.")


def test_a_run_without_a_format_score_has_no_format_phase():
    found = learning(curves([], [0.5] * 5))
    assert found.marks == [(40, "plateau")]
    assert found.words.startswith("Content was learnt until step 40")
    overall = {"val/reward_score": [(step, 0.5) for step in range(5)]}
    assert learning(overall).content_end == 4


@pytest.mark.parametrize("found", ({}, curves([0.9], [0.9])))
def test_nothing_is_said_before_there_are_two_validations(found):
    assert learning(found).marks == []
    assert "from the second validation on" in learning(found).words


def test_a_plateau_needs_less_than_the_gain():
    assert plateau([(step, value) for step, value in enumerate([0.0, 0.0, 0.0, 0.0, 0.02])]) is None
    assert plateau([(step, value) for step, value in enumerate([0.0, 0.0, 0.0, 0.0, 0.0199])]) == 4
