"""Right answers in every likely form, a wrong one and an empty one: what the reward's scores of them give away."""

import numpy as np

from easyr1.batch import Prompt
from easyr1.rewards.probe import Form, forms, judge, probe


class Scorer:
    """A worker that scores by a function of the input, and keeps the inputs."""

    def __init__(self, overall):
        self.overall = overall
        self.inputs = []

    def score(self, inputs, names, progress=None):
        self.inputs += inputs
        return [{"overall": float(self.overall(one))} for one in inputs]


def prompts(*truths, text="What?", source="a.jsonl"):
    return [
        Prompt(row=row, ids=np.zeros(1, dtype=np.int64), text=text, ground_truth=truth, source=source)
        for row, truth in enumerate(truths)
    ]


def probed(overall, *truths, **options):
    scorer = Scorer(overall)
    return probe(prompts(*truths, **options), scorer, len), scorer.inputs


def names(prompt):
    return [form.name for form in forms(prompt)]


def test_every_tag_pair_of_the_prompt_is_a_form():
    found = names("<|im_start|>user\nx < 3 > 2, <b>bold</b>, <think> </think> then <final_answer> </final_answer>")
    assert {"<b>…</b>", "<think>…</think>", "<final_answer>…</final_answer>"} <= set(found)
    assert found[-1] == "<b></b><think></think><final_answer>…</final_answer>"
    assert names("<image> without an end") == names("") == names("")[:5]
    assert names("<think></think><answer></answer>").count("<think></think><answer>…</answer>") == 1


def test_the_reward_sees_what_it_sees_in_training():
    found, inputs = probed(lambda one: one["response"] == "<think></think><answer>7</answer>", 7, "8")
    assert inputs[0]["response"] == "" and inputs[0]["response_length"] == 0
    assert inputs[1] | {} == {"prompt": "What?", "response": "7", "response_length": 1, "ground_truth": 7}
    assert (found[0].best.name, found[0].gain) == ("<think></think><answer>…</answer>", 1.0)
    assert found[0].wrong_answer == "8" and inputs[-2]["response"] == "<think></think><answer>8</answer>"


def test_a_truth_of_any_kind_is_written_as_text():
    found, _ = probed(lambda one: 0, ["左", 2], {"x": 1}, None)
    assert [one.truth for one in found] == ['["左", 2]', '{"x": 1}', "None"]


def test_equal_answers_still_have_a_wrong_one():
    found, _ = probed(lambda one: one["ground_truth"] == one["response"], "yes", "Yes ")
    assert [one.wrong_answer for one in found] == ["not yes", "not Yes "]
    assert judge(found) == ([], [])


def test_silence_in_every_form_is_a_failure():
    failures, doubts = judge(probed(lambda one: -1, "1", "2")[0])
    assert len(failures) == 1 and "a.jsonl" in failures[0] and "(-1)" in failures[0] and doubts == []


def test_silence_in_some_rows_is_a_doubt_that_names_them():
    failures, doubts = judge(probed(lambda one: one["response"] == "1" == one["ground_truth"], "1", "2")[0])
    assert failures == [] and len(doubts) == 1 and "row 1 of a.jsonl" in doubts[0]


def test_each_source_is_judged_by_itself():
    rows = prompts("1") + prompts("2", source="b.jsonl")
    found = probe(rows, Scorer(lambda one: one["response"] == "1" == one["ground_truth"]), len)
    (failure,), _ = judge(found)
    assert failure.startswith("b.jsonl")


def test_a_form_that_the_prompt_does_not_ask_for_is_a_doubt():
    def overall(one):
        return "\\boxed{" + one["ground_truth"] + "}" in one["response"]

    assert "\\boxed{…}, is not what the prompt asks for" in judge(probed(overall, "1", "2")[0])[1][0]
    assert judge(probed(overall, "1", "2", text="Put it into \\boxed{}.")[0]) == ([], [])


def test_markers_of_a_form_must_all_stand_in_the_prompt():
    form = Form("<think></think>\\boxed{…}")
    assert form.is_asked_for("<think> </think> \\boxed{}") and not form.is_asked_for("<think> </think>")
    assert Form("…").is_asked_for("")
