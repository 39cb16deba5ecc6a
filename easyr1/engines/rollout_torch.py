"""In-process sampling with the trained module itself: continuous batching over a cache that keeps each prompt once.

A prompt and its pictures are computed once for all its answers. Answers that end leave at once and waiting ones take
their place; each draws from its own random numbers, so neither changes what another says. Models with the padded
layout go through Hugging Face's `generate` instead, one prompt at a time. Does not know rewards, text or optimizers.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from easyr1.batch import Completion, Prompt
from easyr1.engines.pack import MediaInputs, Packer, to_device
from easyr1.engines.protocols import Progress, Sampling
from easyr1.engines.rollout_generate import generate_padded
from easyr1.engines.sampling import Uniforms, draw
from easyr1.models.attention import Packed
from easyr1.models.kv_cache import DecodeStep, KvCache
from easyr1.models.positions import Positions
from easyr1.models.scored import ModelInputs, Scored


@dataclass(slots=True)
class _Answer:
    """An answer on its way."""

    prompt: int  # index among the prompts that were asked
    number: int  # which of the prompt's answers
    uniforms: Uniforms
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish_reason: str = ""  # empty while it grows

    def take(self, token: int, log_prob: float, sampling: Sampling, stop_ids: frozenset[int]) -> None:
        """One more token, which may be the last."""
        self.ids.append(token)
        self.log_probs.append(log_prob)
        if token in stop_ids and not sampling.ignore_eos:
            self.finish_reason = "stop"
        elif len(self.ids) >= sampling.max_tokens:
            self.finish_reason = "length"


@dataclass(slots=True)
class _Slot:
    """A prompt whose keys are in the cache."""

    prompt: int
    next_position: int
    log_probs: torch.Tensor  # (V,) for the first token of each answer
    rows: int = 0  # live answers
    waiting: int = 0  # answers that have no row yet


class TorchRollout:
    """A RolloutEngine that shares `scored` with the trainer (one rank), or owns a copy fed by `load`.

    See engines/sync.py for who feeds it.

    `max_num_seqs` bounds the answers decoded together, `max_num_batched_tokens` the prompt tokens of one prefill.
    """

    droppable = ("generate",)  # nothing of a call is left when it ends early

    def __init__(
        self,
        scored: Scored,
        media: MediaInputs,
        stop_ids: frozenset[int],
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 8192,
    ) -> None:
        self.scored = scored
        self.stop_ids = stop_ids
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.packer = Packer(Positions(scored.model), media, scored.packed, scored.banned)
        self.version = 0

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Copy full tensors in by name, all there are, or none where the module is the trainer's own."""
        own, fed = self.tensors(), set[str]()
        for name, tensor in weights:
            own[name].copy_(tensor)
            fed.add(name)
        missing = sorted(own.keys() - fed) if fed else []
        assert not missing, f"{len(missing)} of {len(own)} weights did not come: {', '.join(missing[:3])}"
        self.version = version

    def tensors(self) -> dict[str, torch.Tensor]:
        """The sampler's own weights by name, tied ones under each name."""
        return self.scored.model.state_dict()

    def rest(self) -> None:
        """There is nothing to give back: the weights are the trainer's, keys and values live for one call."""

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """For each prompt its `sampling.n` answers. A vision token id can never be among them."""
        was_training = self.scored.training
        self.scored.eval()  # gradient checkpointing has no place here
        try:
            if self.scored.packed:
                answers = _Run(self, prompts, sampling, progress).finish()
            else:
                answers = self._one_by_one(prompts, sampling, progress)
        finally:
            self.scored.train(was_training)
        return [
            [self._completion(prompt, answer) for answer in group]
            for prompt, group in zip(prompts, answers, strict=True)
        ]

    def _completion(self, prompt: Prompt, answer: _Answer) -> Completion:
        return Completion(
            ids=np.array(answer.ids, dtype=np.int64),
            log_probs=np.array(answer.log_probs, dtype=np.float32),
            finish_reason="stop" if answer.finish_reason == "stop" else "length",
            group_id=prompt.group_id,
            weights_version=self.version,
        )

    def _one_by_one(
        self, prompts: Sequence[Prompt], sampling: Sampling, progress: Progress | None
    ) -> list[list[_Answer]]:
        groups = []
        for index, prompt in enumerate(prompts):
            answers = new_answers(index, prompt, sampling)
            stops = frozenset() if sampling.ignore_eos else self.stop_ids
            generate_padded(self.scored, self.packer, prompt, answers, sampling, stops)
            groups.append(answers)
            if progress is not None:
                progress((index + 1) * sampling.n, len(prompts) * sampling.n)
        return groups


def new_answers(index: int, prompt: Prompt, sampling: Sampling) -> list[_Answer]:
    """The answers that a prompt is going to get, each with its own random numbers."""
    return [_Answer(index, number, Uniforms(sampling.seed, prompt, number)) for number in range(sampling.n)]


class _Run:
    """One call of `generate`: the queue, the live rows and their cache."""

    def __init__(
        self, engine: TorchRollout, prompts: Sequence[Prompt], sampling: Sampling, progress: Progress | None
    ) -> None:
        self.engine = engine
        self.prompts = prompts
        self.sampling = sampling
        self.progress = progress
        self.device = engine.scored.device
        self.cache = KvCache()
        self.slots: list[_Slot] = []
        self.rows: list[_Answer] = []
        self.queue = deque(range(len(prompts)))
        self.answers = [new_answers(index, prompt, sampling) for index, prompt in enumerate(prompts)]
        self.done = self.tokens = 0
        self.step: DecodeStep | None = None  # kept while no row comes or goes

    def finish(self) -> list[list[_Answer]]:
        """Prefill, decode, retire and refill until every answer has ended."""
        while self.queue or self.slots:
            self._admit()
            if self.rows:
                self._decode()
        return self.answers

    def _admit(self) -> None:
        """Give free rows to waiting answers of known prompts, then prefill new prompts for the rest."""
        self._start(self.slots)
        while self.queue and len(self.rows) < self.engine.max_num_seqs:
            first = len(self.slots)
            self._prefill()
            self._start(self.slots[first:])

    def _prefill(self) -> None:
        """Compute the next prompts, as many as can get a row now, within the token budget; one at the least."""
        free = self.engine.max_num_seqs - len(self.rows)
        batch: list[int] = []
        tokens = 0
        while self.queue and len(batch) * self.sampling.n < free:
            tokens += len(self.prompts[self.queue[0]].ids)
            if batch and tokens > self.engine.max_num_batched_tokens:
                break
            batch.append(self.queue.popleft())
        packer = self.engine.packer
        inputs, positions = packer.prompts([self.prompts[index] for index in batch])
        assert isinstance(inputs.layout, Packed)
        self.cache.open_slots([span.prompt for span in inputs.layout.spans])
        layout = Packed(inputs.layout.spans, sink=self.cache)
        inputs = ModelInputs(inputs.ids, inputs.positions, inputs.chosen, inputs.media, layout)
        log_probs = self._log_probs(to_device(inputs, self.device))
        for index, place, row in zip(batch, positions, log_probs, strict=True):
            self.slots.append(_Slot(index, int(place.max()) + 1, row, waiting=self.sampling.n))

    def _start(self, slots: Sequence[_Slot]) -> None:
        """Draw the first token of waiting answers while rows are free."""
        started: list[tuple[_Answer, _Slot]] = []
        for slot in slots:
            while slot.waiting and len(self.rows) + len(started) < self.engine.max_num_seqs:
                started.append((self.answers[slot.prompt][self.sampling.n - slot.waiting], slot))
                slot.waiting -= 1
        if not started:
            return
        number_of = {id(slot): number for number, slot in enumerate(self.slots)}
        for answer, slot in started:
            self.cache.add_row(number_of[id(slot)])
            self.rows.append(answer)
            slot.rows += 1
        self._take(torch.stack([slot.log_probs for _, slot in started]), len(self.rows) - len(started))

    def _decode(self) -> None:
        """One more token for every live answer."""
        if self.step is None:
            self.step = DecodeStep(self.cache, self.device)
        first = [self.slots[slot].next_position for slot in self.cache.row_slot]
        places = torch.tensor(first) + torch.tensor(self.cache.row_length)
        inputs = ModelInputs(
            ids=torch.tensor([[answer.ids[-1] for answer in self.rows]]),
            positions=places.expand(self.engine.packer.positions.rows, 1, -1),
            chosen=torch.arange(len(self.rows)),
            layout=self.step,
        )
        log_probs = self._log_probs(to_device(inputs, self.device))
        self.cache.advance()
        self.step.advance()
        self._take(log_probs, 0)

    def _log_probs(self, inputs: ModelInputs) -> torch.Tensor:
        """(N, V) log-probs of the next token over the ids that may be drawn; greedy sampling has temperature 1."""
        found = self.engine.scored(inputs, temperature=self.sampling.temperature or 1.0)
        assert isinstance(found, torch.Tensor)
        return found

    def _take(self, log_probs: torch.Tensor, first_row: int) -> None:
        """Draw a token for the rows from `first_row` on and retire the answers that it ends."""
        rows = self.rows[first_row:]
        uniforms = torch.tensor([answer.uniforms.next() for answer in rows], dtype=torch.float64, device=self.device)
        ids = draw(log_probs, uniforms, self.sampling)
        self.tokens += len(rows)
        taken = log_probs.gather(-1, ids[:, None])[:, 0].tolist()
        for answer, token, log_prob in zip(rows, ids.tolist(), taken, strict=True):
            answer.take(token, log_prob, self.sampling, self.engine.stop_ids)
        if first_row or any(answer.finish_reason for answer in rows):
            self.step = None
        self._retire()

    def _retire(self) -> None:
        """Drop ended answers, and prompts that none needs any more."""
        for row in reversed(range(len(self.rows))):
            if self.rows[row].finish_reason:
                self.slots[self.cache.row_slot[row]].rows -= 1
                self.cache.drop_row(row)
                _drop(self.rows, row)
                self._count()
        for number in reversed(range(len(self.slots))):
            if not self.slots[number].rows and not self.slots[number].waiting:
                self.cache.drop_slot(number)
                _drop(self.slots, number)

    def _count(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, len(self.prompts) * self.sampling.n, self.tokens)


def _drop(values: list, index: int) -> None:
    """Remove one; the last takes its place, as in the cache."""
    last = values.pop()
    if index < len(values):
        values[index] = last
