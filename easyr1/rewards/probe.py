"""What the reward says of answers whose worth is known: the right one in every likely form, a wrong one, none at all.

A prompt that asks for one form and a reward that looks for another give zeros for ever, and nothing else would tell.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from easyr1.batch import Completion, Prompt, Sample
from easyr1.rewards.score import Worker, reward_input

MAX_TAGS = 8
OPENING = re.compile(r"<([A-Za-z][\w.-]*)\s*>")
MARKER = re.compile(r"</?[A-Za-z][\w.-]*>|\\boxed|Answer:")


@dataclass(frozen=True)
class Form:
    """A way to give an answer; `name` shows it with dots in the answer's place."""

    name: str

    def of(self, answer: str) -> str:
        return self.name.replace("…", answer)

    def is_asked_for(self, prompt: str) -> bool:
        """Whether the prompt mentions the tags and words that the form consists of."""
        return all(marker in prompt for marker in MARKER.findall(self.name))


BARE = Form("…")
USUAL_FORMS = (
    BARE,
    Form("\\boxed{…}"),
    Form("<think></think><answer>…</answer>"),
    Form("<think></think>\\boxed{…}"),
    Form("Answer: …"),
)


def forms(prompt: str) -> list[Form]:
    """The forms to try: the usual ones, each tag pair of the prompt, and all pairs in order, the answer in the last.

    >>> [form.name for form in forms("Write <plan> </plan> and <result> </result>.")][len(USUAL_FORMS) :]
    ['<plan>…</plan>', '<result>…</result>', '<plan></plan><result>…</result>']
    """
    tags = [tag for tag in dict.fromkeys(OPENING.findall(prompt)) if re.search(rf"</{re.escape(tag)}\s*>", prompt)]
    found = [*USUAL_FORMS, *(Form(f"<{tag}>…</{tag}>") for tag in tags[:MAX_TAGS])]
    if tags:
        found.append(Form("".join(f"<{tag}></{tag}>" for tag in tags[:-1]) + f"<{tags[-1]}>…</{tags[-1]}>"))
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Probe:
    """What the reward says of answers to one row."""

    prompt: Prompt
    truth: str
    empty: Mapping[str, float]
    right: Mapping[Form, Mapping[str, float]]
    wrong_answer: str
    wrong: Mapping[str, float]  # of a wrong answer in the best form

    @property
    def best(self) -> Form:
        """The first of the forms that score most; one that the prompt asks for, if it is among them."""
        most = max(scores["overall"] for scores in self.right.values())
        tied = [form for form, scores in self.right.items() if scores["overall"] == most]
        return next((form for form in tied if form.is_asked_for(self.prompt.text)), tied[0])

    @property
    def gain(self) -> float:
        """How much the best form scores above the empty answer."""
        return self.right[self.best]["overall"] - self.empty["overall"]

    @property
    def place(self) -> str:
        return f"row {self.prompt.row} of {self.prompt.source}"


def probe(rows: Sequence[Prompt], worker: Worker, count: Callable[[str], int]) -> list[Probe]:
    """Ask the reward about right answers in every form, an empty one and a wrong one; `count` counts tokens.

    Raises RewardError if the function fails on any of them, as it would in training.
    """
    truths = [_as_text(row.ground_truth) for row in rows]
    tried = [forms(row.text) for row in rows]
    answers = [["", *(form.of(truth) for form in some)] for some, truth in zip(tried, truths, strict=True)]
    scores = iter(
        _scores([(row, one) for row, some in zip(rows, answers, strict=True) for one in some], worker, count)
    )
    found = []
    for row, truth, some in zip(rows, truths, tried, strict=True):
        empty = next(scores)
        right = {form: next(scores) for form in some}
        other = next((text for text in truths if text.strip().lower() != truth.strip().lower()), f"not {truth}")
        found.append(Probe(row, truth, empty, right, other, {}))
    wrong = [(one.prompt, one.best.of(one.wrong_answer)) for one in found]
    return [replace(one, wrong=score) for one, score in zip(found, _scores(wrong, worker, count), strict=True)]


def _scores(
    answers: Sequence[tuple[Prompt, str]], worker: Worker, count: Callable[[str], int]
) -> list[dict[str, float]]:
    inputs = []
    for prompt, text in answers:
        ids = np.zeros(count(text), dtype=np.int64)
        completion = Completion(ids, ids.astype(np.float32), "stop", prompt.group_id, 0)
        inputs.append(reward_input(prompt, Sample(completion, text=text)))
    return worker.score(inputs, [f"row {prompt.row} of {prompt.source}" for prompt, _ in answers])


def _as_text(truth: Any) -> str:
    """A ground truth as a model would write it."""
    return json.dumps(truth, ensure_ascii=False, default=str) if isinstance(truth, dict | list) else str(truth)


def judge(probes: Sequence[Probe]) -> tuple[list[str], list[str]]:
    """(why the run would teach nothing, what looks wrong), in words."""
    failures, doubts = [], []
    by_source: dict[str, list[Probe]] = {}
    for one in probes:
        by_source.setdefault(one.prompt.source, []).append(one)
    for source, some in by_source.items():
        silent = [one for one in some if one.gain <= 0]
        if len(silent) == len(some):
            failures.append(
                f"{source}: the right answer scores no more than an empty one ({some[0].empty['overall']:g}), in "
                "whatever form; the reward (worker.reward.reward_function), the answers (data.answer_key) and the "
                "prompt (data.format_prompt) do not fit together"
            )
            continue
        doubts += [
            f"{one.place}: the right answer ({one.truth:.60}) scores no more than an empty one" for one in silent
        ]
        heard = [one for one in some if one.gain > 0]
        if all(one.wrong["overall"] >= one.right[one.best]["overall"] for one in heard):
            doubts.append(f"{source}: a wrong answer scores as much as the right one")
        if not any(one.best.is_asked_for(one.prompt.text) for one in heard):
            doubts.append(
                f"{source}: the form that scores most, {heard[0].best.name}, is not what the prompt asks for "
                "(data.format_prompt)"
            )
    return failures, doubts
