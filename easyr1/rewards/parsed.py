"""The answer that a response gives, as text that can be voted on. Knows no reward and no ground truth."""

import re

from easyr1.rewards.grading import bare, between, last_boxed, plain_tags

ANSWER_LINE = re.compile(r"\banswer[ *_]{0,4}[:：]\s{0,4}([^\n]+)", re.IGNORECASE)
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")  # "1,000" but not "1,2", which is a pair
MAX_CHARS = 200  # a longer "answer" is no answer


def final_answer(response: str) -> str | None:
    r"""What stands in the last <answer></answer>, else in the last \boxed{}, else behind the last "Answer:".

    None where the response has none of them.

    >>> final_answer("<think>1</think> <answer> \\boxed{12} </answer>"), final_answer("**Answer:** 12\n")
    ('12', '12')
    >>> final_answer("<answer></answer>"), final_answer("It is 12, I think.")
    ('', None)
    """
    found = between(plain_tags(response), "<answer>", "</answer>")
    if found is None:
        found = last_boxed(response)
    if found is None:
        lines = ANSWER_LINE.findall(response)
        found = lines[-1].strip(" *_\t\r") if lines else None
    return None if found is None else bare(last_boxed(found) or found)


def parsed_answer(response: str) -> str | None:
    """The final answer as far as it can be voted on: None where it is empty or very long, too."""
    answer = final_answer(response)
    return answer if answer and len(answer) <= MAX_CHARS else None


def ballot(answer: str | None) -> str | None:
    """The form in which equal answers are equal: numbers by value, other text without spaces and in small letters.

    >>> ballot("1,000.0") == ballot("1000"), ballot("A B") == ballot("ab"), ballot(None)
    (True, True, None)
    """
    if answer is None:
        return None
    try:
        return repr(float(THOUSANDS.sub("", answer)) + 0.0)  # -0 is 0
    except ValueError:
        return re.sub(r"\s+", "", answer).lower()
