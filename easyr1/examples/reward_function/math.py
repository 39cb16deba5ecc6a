r"""Mathematics with the reasoning in <think></think> and the final answer in \boxed{}.

Goes with examples/format_prompt/math.jinja.
"""

from typing import Any

from easyr1.rewards.grading import last_boxed, plain_tags, same_answer

REWARD_NAME = "math"
REWARD_TYPE = "batch"


def format_reward(response: str) -> float:
    """1 if the response begins with <think>, closes it, and then boxes an answer; text after the box is fine."""
    thinking, closed, rest = plain_tags(response).strip().rpartition("</think>")
    return 1.0 if closed and thinking.startswith("<think>") and last_boxed(rest) is not None else 0.0


def accuracy_reward(response: str, ground_truth: Any) -> float:
    """1 if the last boxed answer, wherever it stands, means the same as the ground truth."""
    return 1.0 if same_answer(last_boxed(response), ground_truth) else 0.0


def compute_score(reward_inputs: list[dict[str, Any]], format_weight: float = 0.1) -> list[dict[str, float]]:
    """Scores of all responses: accuracy, with a small share for the format."""
    scores = []
    for reward_input in reward_inputs:
        format_score = format_reward(reward_input["response"])
        accuracy_score = accuracy_reward(reward_input["response"], reward_input["ground_truth"])
        scores.append(
            {
                "overall": (1 - format_weight) * accuracy_score + format_weight * format_score,
                "format": format_score,
                "accuracy": accuracy_score,
            }
        )
    return scores
