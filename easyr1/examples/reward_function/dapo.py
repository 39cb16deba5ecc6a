"""Mathematics as in DAPO (arXiv:2503.14476): a last line `Answer: ...`, +1 or -1, and a penalty for great length.

Goes with examples/format_prompt/dapo.jinja.
"""

import re
from typing import Any

from easyr1.rewards.grading import last_boxed, same_answer

REWARD_NAME = "dapo"
REWARD_TYPE = "batch"

NUM_CHARS_READ = 300  # the answer stands at the end
ANSWER_LINE = re.compile(r"\banswer[ *_]{0,4}[:：]\s{0,4}([^\n]+)", re.IGNORECASE)


def find_answer(response: str) -> str | None:
    """What follows the last `Answer:` near the end of the response; None if there is none."""
    lines = ANSWER_LINE.findall(response[-NUM_CHARS_READ:])
    if not lines:
        return None
    answer = lines[-1].strip().strip("*_").strip()
    return last_boxed(answer) or answer


def accuracy_reward(response: str, ground_truth: Any) -> float:
    """1 if the answer means the same as the ground truth, else -1; no answer is a wrong one."""
    return 1.0 if same_answer(find_answer(response), ground_truth) else -1.0


def soft_overlong_punishment(response_length: int, max_response_length: int, overlong_buffer_length: int) -> float:
    """0 up to the buffer, then falling to -1 at the longest length allowed (equation 13); a buffer of 0 is off."""
    num_tokens_over = response_length - (max_response_length - overlong_buffer_length)
    if num_tokens_over <= 0:
        return 0.0
    return max(-1.0, -num_tokens_over / overlong_buffer_length) if overlong_buffer_length > 0 else -1.0


def compute_score(
    reward_inputs: list[dict[str, Any]],
    max_response_length: int,
    overlong_buffer_length: int,
    overlong_penalty_factor: float,
) -> list[dict[str, float]]:
    """Scores of all responses; lengths are in tokens, max_response_length the same as data.max_response_length."""
    scores = []
    for reward_input in reward_inputs:
        accuracy_score = accuracy_reward(reward_input["response"], reward_input["ground_truth"])
        overlong_score = soft_overlong_punishment(
            reward_input["response_length"], max_response_length, overlong_buffer_length
        )
        scores.append(
            {
                "overall": accuracy_score + overlong_penalty_factor * overlong_score,
                "accuracy": accuracy_score,
                "overlong": overlong_score,
                "accuracy_normalized": 0.5 * (accuracy_score + 1.0),
            }
        )
    return scores
