"""A short supervised training that turns an untrained model into a mediocre base for reinforcement learning.

Its teacher is careless: it often takes a digit for the one that looks like it, names the smaller of two digits as
often as the larger, and forgets parts of the format. So the base finds out what pictures and words are about, but it
mixes up 3 and 8: looking closely is left to the reward. Rows and pictures come through the same code as in every run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from easyr1.batch import Completion, Group, Prompt, Sample
from easyr1.data.chat import Chat
from easyr1.data.dataset import PromptSet
from easyr1.data.loader import Loader
from easyr1.engines.optimizer import OptimSpec, adamw, learning_rate
from easyr1.engines.pack import MediaInputs, Packer, Piece
from easyr1.examples.quickstart.digits import TWO
from easyr1.models.positions import Positions
from easyr1.models.scored import Scored
from easyr1.seeding import generator
from easyr1.tracking.progress import Tick

LOOK_ALIKES = ((0, 2), (1, 7), (3, 8), (4, 9), (5, 6))
LOOK_ALIKE = {one: other for pair in LOOK_ALIKES for one, other in (pair, pair[::-1])}


@dataclass(frozen=True)
class Lessons:
    """How long the teacher teaches, and how often it errs."""

    num_steps: int = 120
    rows_per_step: int = 48
    lr: float = 2e-3
    warmup_steps: int = 10
    misread: float = 0.4  # share of the digits taken for their look-alike
    mistaken: float = 0.5  # share of the pairs whose smaller digit is named
    broken: float = 0.3  # share of the answers that lack a part of the format


def cold_start(
    scored: Scored, chat: Chat, prompts: PromptSet, media: MediaInputs, lessons: Lessons, seed: int, tick: Tick
) -> None:
    """Train `scored` in place on the teacher's answers to rows drawn by `seed`."""
    optim = OptimSpec(lr=lessons.lr, warmup_steps=lessons.warmup_steps)
    optimizer = adamw(scored.parameters(), optim)
    packer = Packer(Positions(scored.model), media, scored.packed, scored.banned)
    loader = Loader(prompts, lessons.rows_per_step, seed=seed)
    teacher = Teacher(chat, lessons, generator(seed))
    scored.train()
    for step in range(1, lessons.num_steps + 1):
        loss = negative_log_likelihood(scored, packer, teacher.answers(loader.next()))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(scored.parameters(), optim.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(optim, step)
        optimizer.step()
        tick(step, lessons.num_steps)
    scored.eval()


def negative_log_likelihood(scored: Scored, packer: Packer, groups: Sequence[Group]) -> torch.Tensor:
    """Mean over all answer tokens."""
    pieces = [Piece(number, tuple(range(len(group.samples))), group.num_tokens) for number, group in enumerate(groups)]
    batch = packer.micro_batch(groups, pieces, scored.device)
    log_probs = scored(batch.inputs, batch.targets).log_probs
    return -log_probs.mean()


class Teacher:
    """Answers questions about digits, carelessly."""

    def __init__(self, chat: Chat, lessons: Lessons, random: np.random.Generator) -> None:
        self._tokenizer = chat.tokenizer
        self._lessons = lessons
        self._random = random

    def answers(self, prompts: Sequence[Prompt]) -> list[Group]:
        """Each prompt with one answer."""
        return [Group(prompt, [self._sample(prompt)]) for prompt in prompts]

    def answer(self, task: str, digits: Sequence[int]) -> str:
        """What the teacher writes about pictures that show `digits`."""
        seen = [LOOK_ALIKE[digit] if self._errs(self._lessons.misread) else digit for digit in digits]
        named = min(seen) if task == TWO and self._errs(self._lessons.mistaken) else max(seen)
        thinking, answer = f"<think>I see {' and '.join(map(str, seen))}.", f"<answer>{named}</answer>"
        if not self._errs(self._lessons.broken):
            return f"{thinking}</think>{answer}"
        return str(self._random.choice([answer, f"{thinking}{answer}", f"{thinking}</think>{named}"]))

    def _errs(self, share: float) -> bool:
        return bool(self._random.random() < share)

    def _sample(self, prompt: Prompt) -> Sample:
        text = self.answer(prompt.columns["task"], prompt.columns["digits"])
        ids = [*self._tokenizer.encode(text, add_special_tokens=False), self._tokenizer.eos_token_id]
        untold = np.zeros(len(ids), dtype=np.float32)
        return Sample(Completion(np.array(ids), untold, "stop", prompt.group_id, weights_version=0), text)
