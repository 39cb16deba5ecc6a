"""A press in the number game: the response names the place 0, 1 or 2 of a digit on the screen.

Goes with examples/format_prompt/android_gui.jinja.
"""

import re
from typing import Any

REWARD_NAME = "android_gui"
REWARD_TYPE = "batch"
PLACE = re.compile(r"[012]")


def compute_score(reward_inputs: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Scores of all responses: 1 if the first place named is the right one."""
    scores = []
    for reward_input in reward_inputs:
        named = PLACE.search(reward_input["response"])
        right = named is not None and named.group() == str(reward_input["ground_truth"]).strip()
        scores.append({"overall": float(right), "accuracy": float(right)})
    return scores
