"""The shipped reward files on a frozen table of responses, and each with the template it goes with.

A change of the table is a change of what models are trained on: it has to be made on purpose.
"""

import importlib.util
import re
import time
from pathlib import Path

import jinja2
import pytest

from easyr1.config.paths import find_file
from easyr1.rewards.load import load_reward
from easyr1.rewards.worker import RewardWorker

EXAMPLES = Path(__file__).resolve().parents[2] / "easyr1" / "examples"
DAPO = {"max_response_length": 100, "overlong_buffer_length": 20, "overlong_penalty_factor": 0.5}


def shipped(name):
    spec = importlib.util.spec_from_file_location(f"shipped_{name}", EXAMPLES / "reward_function" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MATH, R1V, DAPO_FILE = shipped("math"), shipped("r1v"), shipped("dapo")
LONG = "blah " * 20_000


# response, ground truth, format, accuracy
MATH_TABLE = [
    (r"<think>a</think> \boxed{5}", "5", 1, 1),
    ("<think>a\nb\n</think>\n\n\\boxed{5}", "5", 1, 1),
    (r"<think>\boxed{4}</think> first \boxed{6}, no: \boxed{5}", "5", 1, 1),
    (r"<think>a</think> \boxed{5}, no: \boxed{6}", "5", 1, 0),
    (r"<think>a</think> \boxed{\frac{1}{2}}", "1/2", 1, 1),
    (r"<think>a</think> \boxed{\frac{1}{2}}", "0.5", 1, 1),
    (r"<think>a</think> \boxed{ 5 }", "5", 1, 1),
    (r"<think>a</think> \boxed{5", "5", 0, 0),
    (r"\boxed{5}", "5", 0, 1),
    (r"think \boxed{5}</think>", "5", 0, 1),
    (r"<think>a</think> \boxed{5} is the answer.", "5", 1, 1),
    (r"<think>a</think> \boxed{3,000}", "3000", 1, 1),
    (r"<think>a</think> \boxed{60\%}", "0.6", 1, 1),
    (r"<think>a</think> \boxed{60%}", "0.6", 1, 1),
    (r"<think>a</think> \boxed{0.6}", "60%", 1, 1),
    (r"<think>a</think> \boxed{5}", 5, 1, 1),
    (r"<think>a</think> \boxed{5}", 5.0, 1, 1),
    (r"<think>a</think> \boxed{12\text{cm}^2}", "12", 1, 1),
    (r"<think>a</think> \boxed{12^\circ}", "12", 1, 1),
    (r"< think >a</ think > \boxed{5}", "5", 1, 1),
    ("  <think>a</think>\\boxed{5}\n", "5", 1, 1),
    (r"<think>\boxed{5}</think>", "5", 0, 1),
    (r"</think> \boxed{5} <think>", "5", 0, 1),
    ("<think>a</think> 5", "5", 0, 0),
    (r"<think>a</think> \boxed{}", "5", 1, 0),
    (r"<think>a</think> \boxed{None}", None, 1, 0),
    ("", "5", 0, 0),
    ("", "None", 0, 0),
    (rf"<think>{LONG}</think> \boxed{{5}}", "5", 1, 1),
    (rf"<think>a</think> \boxed{{{LONG}}}", "5", 1, 0),
    (r"<think>a</think> \boxed{" + "{" * 10_000, "5", 0, 0),
    (r"<think>a</think> \boxed{" + "{" * 10_000 + "}" * 10_001, "5", 1, 0),
    ("<think>" * 10_000, "5", 0, 0),
    ("</think>" * 10_000 + " " * 50_000, "5", 0, 0),
    ("< " * 50_000, "5", 0, 0),
    (r"<think>a</think> \boxed{9^9^9^9}", "5", 1, 0),
]
R1V_TABLE = [
    ("<think>a</think><answer>12</answer>", "12", 1, 1),
    ("<think>a</think>\n<answer> 12 </answer>\n", "12", 1, 1),
    ("<think>a\nb</think>\n<answer>\n12\n</answer>", "12", 1, 1),
    ("<think>a</think><answer>12.0</answer>", "12", 1, 1),
    ("<think>a</think><answer>12cm²</answer>", "12", 1, 1),
    (r"<think>a</think><answer>12\text{cm}^2</answer>", "12", 1, 1),
    ("<think>a</think><answer>12°</answer>", "12", 1, 1),
    (r"<think>a</think><answer>12^\circ</answer>", "12", 1, 1),
    (r"<think>a</think><answer>\boxed{12}</answer>", "12", 1, 1),
    (r"<think>a</think><answer>The area is \boxed{12}.</answer>", "12", 1, 1),
    ("<think>a</think><answer>8</answer>", "12", 1, 0),
    ("<think>I will use <answer> later</think><answer>12</answer>", "12", 1, 1),
    ("<think></think><answer></answer>", "12", 1, 0),
    ("< think >a</ think >< answer >12</ answer >", "12", 1, 1),
    ("<think>a</think><answer>12</answer> so 12", "12", 0, 1),
    ("So: <think>a</think><answer>12</answer>", "12", 0, 1),
    ("<think>a</think> hm <answer>12</answer>", "12", 0, 1),
    ("<think>a</think><answer>11</answer><answer>12</answer>", "12", 0, 1),
    ("<think>a</think><answer>12</answer><answer>11</answer>", "12", 0, 0),
    ("<think>a<answer>12</answer>", "12", 0, 1),
    ("<think>a</think><answer>12", "12", 0, 0),
    ("<answer>12</answer>", "12", 0, 1),
    ("12", "12", 0, 1),
    ("12", 12, 0, 1),
    ("12", 12.0, 0, 1),
    ("", "12", 0, 0),
    ("<think>a</think><answer>A</answer>", "a", 1, 1),
    (f"<think>{LONG}</think><answer>12</answer>", "12", 1, 1),
    (f"<think>a</think><answer>{LONG}</answer>", "12", 1, 0),
    ("<think>a</think><answer>" * 5_000, "12", 0, 0),
    ("{" * 100_000, "12", 0, 0),
    (" " * 100_000, "12", 0, 0),
]
# response, ground truth, accuracy
DAPO_TABLE = [
    ("work\nAnswer: 34", "34", 1),
    ("work\nAnswer: 34.", "34", 1),
    ("work\n**Answer:** 34", "34", 1),
    ("work\n**Answer**: 34", "34", 1),
    ("work\nAnswer: **34**", "34", 1),
    ("work\nanswer : $34$", "34", 1),
    ("work\nAnswer:\n34", "34", 1),
    ("work\nAnswer: \\boxed{34}", "34", 1),
    ("work\nAnswer: 34 degrees", "34", 1),
    ("work\nAnswer: 1,234", "1234", 1),
    ("work\nAnswer: \\frac12", "\\frac{1}{2}", 1),
    ("work\nAnswer: x=34", "34", 1),
    ("Answer: 33\nno\nAnswer: 34", "34", 1),
    ("Answer: 34\nno\nAnswer: 33", "34", -1),
    ("Answer: 34\n" + "a" * 300, "34", -1),
    ("the result is 34", "34", -1),
    ("no answer", "[INVALID]", -1),
    ("", "34", -1),
    ("", "", -1),
    ("Answer:", "34", -1),
    ("Answer: $Answer", "34", -1),
    (LONG + "\nAnswer: 34", "34", 1),
    ("answer" * 20_000, "34", -1),
]


def ids(table):
    return [repr(row[0][:60]) for row in table]


@pytest.fixture(scope="module", autouse=True)
def warm():
    """Loads sympy, so that its second does not count in the limits of a second."""
    MATH.accuracy_reward(r"\boxed{x+1}", "1+x")


def timed(function, *args, **kwargs):
    start = time.process_time()
    result = function(*args, **kwargs)
    assert time.process_time() - start < 1.0
    return result


@pytest.mark.parametrize(("response", "truth", "format_", "accuracy"), MATH_TABLE, ids=ids(MATH_TABLE))
def test_math_table(response, truth, format_, accuracy):
    (scores,) = timed(MATH.compute_score, [{"response": response, "response_length": 1, "ground_truth": truth}])
    assert scores == {
        "overall": pytest.approx(0.9 * accuracy + 0.1 * format_),
        "format": format_,
        "accuracy": accuracy,
    }


@pytest.mark.parametrize(("response", "truth", "format_", "accuracy"), R1V_TABLE, ids=ids(R1V_TABLE))
def test_r1v_table(response, truth, format_, accuracy):
    scores = timed(R1V.compute_score, {"response": response, "response_length": 1, "ground_truth": truth})
    assert scores == {
        "overall": pytest.approx(0.5 * accuracy + 0.5 * format_),
        "format": format_,
        "accuracy": accuracy,
    }


@pytest.mark.parametrize(("response", "truth", "accuracy"), DAPO_TABLE, ids=ids(DAPO_TABLE))
def test_dapo_table(response, truth, accuracy):
    item = {"response": response, "response_length": 1, "ground_truth": truth}
    (scores,) = timed(DAPO_FILE.compute_score, [item], **DAPO)
    assert scores == {"overall": accuracy, "accuracy": accuracy, "overlong": 0, "accuracy_normalized": accuracy == 1}


def test_weights_come_from_the_arguments():
    item = {"response": r"\boxed{5}", "response_length": 1, "ground_truth": "5"}
    assert MATH.compute_score([item], format_weight=0.25)[0]["overall"] == 0.75
    assert R1V.compute_score(item, format_weight=0.75)["overall"] == 0.25


@pytest.mark.parametrize(
    ("length", "buffer", "overlong"),
    [
        (0, 20, 0),
        (80, 20, 0),
        (81, 20, -0.05),
        (90, 20, -0.5),
        (100, 20, -1),
        (130, 20, -1),
        (100, 0, 0),
        (101, 0, -1),
    ],
)
def test_dapo_punishes_length_inside_the_buffer(length, buffer, overlong):
    item = {"response": "Answer: 34", "response_length": length, "ground_truth": "34"}
    (scores,) = DAPO_FILE.compute_score([item], **(DAPO | {"overlong_buffer_length": buffer}))
    assert scores["overlong"] == pytest.approx(overlong)
    assert scores["overall"] == pytest.approx(1 + 0.5 * overlong)


def answer_as_asked(prompt, answer):
    """A response put together from the tags, the box or the last line that the rendered prompt asks for."""
    parts = []
    for tag in dict.fromkeys(re.findall(r"<(\w+)>", prompt)):
        assert f"</{tag}>" in prompt
        parts.append(f"<{tag}> {answer if tag == 'answer' else 'reasoning'} </{tag}>")
    if r"\boxed{}" in prompt:
        parts.append(rf"\boxed{{{answer}}}")
    if line := re.search(r"^.*(Answer:) \$Answer", prompt, re.MULTILINE):
        parts.append(f"reasoning\n{line[1]} {answer}")
    return "\n".join(parts)


@pytest.mark.parametrize(("name", "kwargs"), [("math", {}), ("r1v", {}), ("dapo", DAPO)])
def test_what_a_template_asks_for_is_what_its_reward_looks_for(name, kwargs):
    template = (EXAMPLES / "format_prompt" / f"{name}.jinja").read_text(encoding="utf-8")
    question = "  <image>How large is the shaded area, in cm²?\n"
    prompt = jinja2.Environment().from_string(template).render(content=question)
    assert question.strip() in prompt
    asked = prompt.replace(question.strip(), "")
    assert "\\n" not in prompt
    assert "\n" in prompt

    spec = load_reward(f"./examples/reward_function/{name}.py:compute_score", kwargs, find_file)
    right = {"response": answer_as_asked(asked, "12 cm²"), "response_length": 9, "ground_truth": "12"}
    wrong = right | {"response": answer_as_asked(asked, "13 cm²")}
    with RewardWorker(spec, timeout_s=30) as worker:
        scores, wrong_scores = worker.score([right, wrong], ["row 0", "row 1"])
    assert scores["overall"] == 1
    assert scores["accuracy"] == 1
    assert scores.get("format", 1) == 1
    assert wrong_scores["accuracy"] < 1
    assert wrong_scores.get("format", 1) == 1
