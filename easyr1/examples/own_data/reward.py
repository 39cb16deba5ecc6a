"""The reward: what an answer is worth. Change it to what you want more of; `easyr1 check` tries it on known answers.

It looks for what prompt.jinja asks for: if one of them changes, change the other, or nothing will ever be right.
"""

from typing import Any

from easyr1.rewards.grading import between, same_answer

REWARD_NAME = "own_data"  # shown at the start of a run
REWARD_TYPE = "batch"  # all answers of a step at once; "sequential": one dict in, one dict out


def compute_score(reward_inputs: list[dict[str, Any]], format_weight: float = 0.1) -> list[dict[str, float]]:
    """One dict of numbers for each answer: "overall" is learnt from, all others are shown as curves."""
    return [score(one["response"], one["ground_truth"], format_weight) for one in reward_inputs]


def score(response: str, ground_truth: Any, format_weight: float) -> dict[str, float]:
    """Of one answer: `response` is the model's text, `ground_truth` the column answer of its row."""
    answer = between(response, "<answer>", "</answer>")
    has_form = response.strip().startswith("<think>") and "</think>" in response and answer is not None
    accuracy = float(same_answer(answer, ground_truth))  # 12, 12.0 and 12 cm are the same
    return {
        "overall": (1 - format_weight) * accuracy + format_weight * float(has_form),
        "accuracy": accuracy,
        "format": float(has_form),
    }
