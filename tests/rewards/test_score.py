"""What the reward function sees of each answer, and that scores come back to the sample they are for."""

import numpy as np
import pytest

from easyr1.batch import Completion, Group, Prompt, Sample
from easyr1.errors import RewardError
from easyr1.rewards.score import hidden_columns_note, reward_input, score
from easyr1.rewards.worker import RewardSpec, RewardWorker

EOS = 0


def decode(ids, skip_special_tokens):
    return " ".join(str(i) for i in ids if i != EOS or not skip_special_tokens)


def a_sample(*ids):
    return Sample(Completion(np.array(ids), np.zeros(len(ids), np.float32), "stop", "0-0-0", 0))


def a_prompt(row, **columns):
    return Prompt(
        row=row, ids=np.array([5]), text=f"question {row}", ground_truth=row * 10, columns=columns, source="d"
    )


class Recorder:
    """A worker that keeps what it is asked and gives prepared scores."""

    def __init__(self, scores=None):
        self.calls = []
        self.scores = scores

    def score(self, inputs, names, progress=None):
        self.calls.append((inputs, names))
        return self.scores or [{"overall": float(i)} for i in range(len(inputs))]


def test_the_whole_rollout_goes_in_one_call_with_row_columns_and_names():
    groups = [
        Group(a_prompt(3, uid="u3", bbox=[1, 2]), [a_sample(8, 9, EOS), a_sample(8)]),
        Group(a_prompt(1, uid="u1"), [a_sample(7, 7)]),
    ]
    worker = Recorder()
    score(groups, worker, decode)
    ((inputs, names),) = worker.calls
    first = {"response": "8 9", "response_length": 3, "ground_truth": 30, "prompt": "question 3"}
    assert inputs[0] == first | {"uid": "u3", "bbox": [1, 2]}
    assert [(item["response"], item["response_length"], item["ground_truth"]) for item in inputs[1:]] == [
        ("8", 1, 30),
        ("7 7", 2, 10),
    ]
    assert names == ["row 3 of d", "row 3 of d", "row 1 of d"]
    assert [[sample.scores["overall"] for sample in group.samples] for group in groups] == [[0.0, 1.0], [2.0]]
    assert [[sample.text for sample in group.samples] for group in groups] == [["8 9", "8"], ["7 7"]]


def test_special_tokens_are_kept_where_asked():
    group = Group(a_prompt(0), [a_sample(8, EOS)])
    score([group], Recorder(), decode, skip_special_tokens=False)
    assert group.samples[0].text == "8 0"


def test_a_rows_own_prompt_is_kept_but_our_three_names_are_ours():
    item = reward_input(a_prompt(2, prompt="raw", response="old", ground_truth="old", response_length=-1), a_sample(4))
    assert item["prompt"] == "raw"
    assert (item["response"], item["ground_truth"], item["response_length"]) == ("", 20, 1)
    note = hidden_columns_note(["prompt", "response", "uid", "ground_truth"])
    assert "columns response, ground_truth:" in note
    assert hidden_columns_note(["prompt", "uid"]) is None


def test_keys_of_some_samples_are_not_made_up_for_the_others():
    group = Group(a_prompt(0), [a_sample(1), a_sample(2)])
    score([group], Recorder([{"overall": 1.0, "bonus": 2.0}, {"overall": 0.0}]), decode)
    assert [sample.scores for sample in group.samples] == [{"overall": 1.0, "bonus": 2.0}, {"overall": 0.0}]


@pytest.mark.parametrize("kind", ["batch", "sequential"])
def test_through_the_real_process_each_answer_meets_its_own_row(tmp_path, kind):
    """Groups shuffled and of unequal length; the row's number must come back with its own answers."""
    code = "def one(x):\n    said = int(x['response'])\n"
    code += "    return {'overall': 1.0, 'uid': x['uid'], 'truth': x['ground_truth'], 'said': said}\n"
    code += "def batch(xs): return [one(x) for x in xs]\ndef sequential(x): return one(x)\n"
    (tmp_path / "echo.py").write_text(code)
    random = np.random.default_rng(0)
    rows = random.permutation(20) + 1  # 0 is the end of an answer
    groups = [
        Group(a_prompt(int(row), uid=int(row) + 100), [a_sample(row) for _ in range(1 + row % 3)]) for row in rows
    ]
    with RewardWorker(RewardSpec(tmp_path / "echo.py", kind, "echo", kind), timeout_s=30) as worker:
        score(groups, worker, decode)
    for group in groups:
        row = group.prompt.row
        assert [sample.scores for sample in group.samples] == [
            {"overall": 1.0, "uid": row + 100.0, "truth": row * 10.0, "said": float(row)}
        ] * (1 + row % 3)


def test_an_error_names_the_row(tmp_path):
    (tmp_path / "bad.py").write_text("def main(x): return {'overall': 1 / (x['ground_truth'] - 20)}\n")
    groups = [Group(a_prompt(1), [a_sample(1), a_sample(2)]), Group(a_prompt(2), [a_sample(3)])]
    with (
        RewardWorker(RewardSpec(tmp_path / "bad.py", "main", "bad", "sequential"), timeout_s=30) as worker,
        pytest.raises(RewardError, match=r"bad\.py:main, sample 2 \(row 2 of d\): raised ZeroDivisionError"),
    ):
        score(groups, worker, decode)
