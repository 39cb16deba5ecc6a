"""Which logged answers a report shows, and what it leaves out where there are too many."""

import base64
import json

import pytest

from easyr1.tracking import answers
from easyr1.tracking.answers import index_rows, is_right, read_answers, spread

PNG = base64.b64encode(answers.PNG_START + bytes(60)).decode()


def put(folder, *rows):
    path = folder / "generations.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def val(step, row, response="r", **more):
    return {"step": step, "split": "val", "row": row, "source": "s", "prompt": f"Q{row}", "response": response, **more}


def train(step, group, **more):
    rest = {"row": 3, "prompt": "P", "response": "r", "scores": {"overall": 1.0}, "advantage": 0.5}
    return {"step": step, "split": "train", "group": group, **rest, **more}


def texts(item):
    return [answer["text"] for answer in item["answers"]]


def test_answers_to_one_row_stand_together_in_order_of_steps(tmp_path):
    found = read_answers(put(tmp_path, *(val(step, row, f"{row} at {step}") for step in (2, 0, 1) for row in (1, 2))))
    assert [(item["prompt"], texts(item)) for item in found.questions] == [
        ("Q1", ["1 at 0", "1 at 1", "1 at 2"]),
        ("Q2", ["2 at 0", "2 at 1", "2 at 2"]),
    ]
    assert found.left_out == []


def test_a_step_that_was_validated_again_shows_the_later_answer(tmp_path):
    found = read_answers(put(tmp_path, val(2, 1, "first"), val(2, 1, "again")))
    assert [texts(item) for item in found.questions] == [["again"]]


def test_a_group_stands_together_with_all_that_is_known_of_each_answer(tmp_path):
    rows = [
        train(1, "0-0-0", images=[PNG], scores={"overall": 0.9, "format": 1}, parsed="7", truncated=False),
        train(1, "0-0-0", scores={"overall": 0.1}, advantage=-1.5, truncated=True),
        train(1, "0-1-0"),
    ]
    first, second = read_answers(put(tmp_path, *rows)).groups
    assert (first["step"], first["group"], first["row"], first["pictures"]) == (1, "0-0-0", "3", [0])
    assert first["answers"] == [
        {
            "text": "r",
            "parsed": "7",
            "scores": [["overall", 0.9], ["format", 1]],
            "right": True,
            "truncated": False,
            "advantage": 0.5,
        },
        {
            "text": "r",
            "parsed": None,
            "scores": [["overall", 0.1]],
            "right": False,
            "truncated": True,
            "advantage": -1.5,
        },
    ]
    assert len(second["answers"]) == 1


def test_a_picture_lies_in_the_page_once(tmp_path):
    rows = [val(0, 1, images=[PNG]), val(5, 1, images=[PNG]), *(train(1, "a", images=[PNG]) for _ in range(3))]
    found = read_answers(put(tmp_path, *rows))
    assert found.pictures == [PNG]
    assert found.questions[0]["pictures"] == found.groups[0]["pictures"] == [0]


def test_no_more_is_parsed_and_shown_than_the_bounds_allow_and_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "MAX_QUESTIONS", 2)
    monkeypatch.setattr(answers, "MAX_VALIDATIONS", 3)
    monkeypatch.setattr(answers, "MAX_TRAINING_STEPS", 2)
    rows = [val(step, row) for step in range(9) for row in range(5)] + [train(step, "g") for step in range(1, 8)]
    path = put(tmp_path, *rows)
    parsed = []
    monkeypatch.setattr(answers.json, "loads", lambda text, loads=json.loads: parsed.append(text) or loads(text))
    found = read_answers(path)
    assert len(parsed) == 3 * 2 + 2
    assert [[answer["step"] for answer in item["answers"]] for item in found.questions] == [[0, 4, 8]] * 2
    assert [group["step"] for group in found.groups] == [1, 7]
    assert found.left_out == ["3 of 9 validations", "2 of 5 validation rows", "2 of 7 logged training steps"]


def test_where_space_ends_first_and_last_steps_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "MAX_TEXT", 3000)
    rows = [val(step, 1, f"{step}" * 800) for step in range(5)] + [train(1, "g", response="t" * 800)]
    found = read_answers(put(tmp_path, *rows))
    assert [[answer["step"] for answer in item["answers"]] for item in found.questions] == [[0, 2, 4]]
    assert found.groups == []
    assert found.left_out[-1] == "all but 3 of their answers, for which the page has no room"


def test_pictures_that_do_not_fit_are_named_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "MAX_PICTURE_TEXT", len(PNG) + 3)
    other = base64.b64encode(answers.PNG_START + bytes(61)).decode()
    found = read_answers(put(tmp_path, val(0, 1, images=[PNG, other, "no PNG", 5]), val(0, 2, images=[PNG])))
    assert [item["pictures"] for item in found.questions] == [[0, -1, -2, -2], [0]]
    assert found.pictures == [PNG]


def test_long_answers_are_cut_in_the_middle_and_image_tokens_counted(tmp_path):
    prompt = "<|vision_start|>" + "<|image_pad|>" * 1024 + "<|vision_end|>Which digit?"
    row = {"step": 0, "prompt": prompt, "response": "start " + "so " * 9000 + "end"}
    (question,) = read_answers(put(tmp_path, row)).questions
    assert question["prompt"] == "<|vision_start|><|image_pad|>×1024<|vision_end|>Which digit?"
    (answer,) = texts(question)
    assert answer.startswith("start so") and answer.endswith("so end") and "characters left out" in answer
    assert len(answer) < 2600


def test_rows_are_found_by_their_first_bytes(tmp_path):
    path = put(tmp_path, val(3, 1), train(4, "g"), {"step": 5, "row": 1}, {"odd": 1})
    with path.open("a") as file:
        file.write('{"step": 6, "split": "val", "torn')
    places = index_rows(path)
    assert {split: sorted(steps) for split, steps in places.items()} == {"val": [0, 3, 5, 6], "train": [4]}
    data = path.read_bytes()
    ((offset, length),) = places["train"][4]
    assert json.loads(data[offset : offset + length])["group"] == "g"
    shown = [answer["step"] for item in read_answers(path).questions for answer in item["answers"]]
    assert sorted(shown) == [0, 3, 5]


def test_no_file_no_answers(tmp_path):
    found = read_answers(tmp_path / "generations.jsonl")
    assert (found.questions, found.groups, found.left_out) == ([], [], [])


@pytest.mark.parametrize(
    ("scores", "right"),
    [
        ({"accuracy": 1.0, "overall": 0.1}, True),
        ({"accuracy": -1.0, "overall": 0.9}, False),
        ({"overall": 0.5}, True),
        ({"overall": 0.4, "format": 1.0}, False),
        ({"score": 1.0}, None),
        ({"accuracy": "yes"}, None),
    ],
)
def test_right_is_told_by_the_accuracy_then_by_the_overall_score(scores, right):
    assert is_right(scores) is right


def test_a_spread_keeps_both_ends():
    assert spread(list(range(100)), 4) == [0, 33, 66, 99]
    assert spread([1, 2], 5) == [1, 2]
    assert (spread([1, 2, 3], 1), spread([1, 2], 0)) == ([1], [])
