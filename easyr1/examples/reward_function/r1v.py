"""Questions about pictures, R1-V style: the reasoning in <think></think>, the answer in <answer></answer>.

Goes with examples/format_prompt/r1v.jinja.
"""

from typing import Any

from easyr1.rewards.grading import between, last_boxed, plain_tags, same_answer

REWARD_NAME = "r1v"
REWARD_TYPE = "sequential"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def format_reward(response: str) -> float:
    """1 if the response is <think>...</think><answer>...</answer> and nothing else but white space."""
    thinking, closed, rest = plain_tags(response).strip().partition("</think>")
    rest = rest.strip()
    answer = rest.removeprefix("<answer>").removesuffix("</answer>")
    is_whole = thinking.startswith("<think>") and closed and rest == f"<answer>{answer}</answer>"
    return 1.0 if is_whole and not any(tag in answer for tag in TAGS) else 0.0


def accuracy_reward(response: str, ground_truth: Any) -> float:
    """1 if the last answer means the same as the ground truth; without tags, the whole response is the answer."""
    answer = between(plain_tags(response), "<answer>", "</answer>")
    if answer is None:
        answer = response
    return 1.0 if same_answer(last_boxed(answer) or answer, ground_truth) else 0.0


def compute_score(reward_input: dict[str, Any], format_weight: float = 0.5) -> dict[str, float]:
    """Scores of one response: format and accuracy, in equal shares unless `format_weight` says otherwise."""
    format_score = format_reward(reward_input["response"])
    accuracy_score = accuracy_reward(reward_input["response"], reward_input["ground_truth"])
    return {
        "overall": (1 - format_weight) * accuracy_score + format_weight * format_score,
        "format": format_score,
        "accuracy": accuracy_score,
    }
