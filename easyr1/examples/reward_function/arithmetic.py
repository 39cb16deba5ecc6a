"""Arithmetic in whole numbers: the last number of the response is its answer.

Goes with examples/format_prompt/arithmetic.jinja.
"""

import re
from typing import Any

REWARD_NAME = "arithmetic"
REWARD_TYPE = "sequential"
WHOLE_NUMBER = re.compile(r"\d{1,20}")


def compute_score(reward_input: dict[str, Any]) -> dict[str, float]:
    """Scores of one response: accuracy, which is all that counts, and whether it holds nothing but a number."""
    response = reward_input["response"]
    numbers = WHOLE_NUMBER.findall(response)
    accuracy = 1.0 if numbers and int(numbers[-1]) == int(reward_input["ground_truth"]) else 0.0
    alone = 1.0 if WHOLE_NUMBER.fullmatch(response.strip().rstrip(".")) else 0.0
    return {"overall": accuracy, "accuracy": accuracy, "number_only": alone}
