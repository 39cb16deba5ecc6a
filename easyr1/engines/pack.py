"""Groups -> model inputs under a budget, and results back. The only code that knows padding.

A packed row holds whole pieces `[prompt][answer]...[answer]`; the padded form, for models whose layers are not plain
causal attention, holds one prompt + answer a row. Shape legend: L packed tokens, B padded rows, R position rows, N
answer tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from easyr1.balance import fill
from easyr1.batch import Group, Prompt
from easyr1.errors import ConfigError
from easyr1.models.attention import Packed, Span
from easyr1.models.positions import Positions
from easyr1.models.scored import ModelInputs

MediaInputs = Callable[[str], Mapping[str, np.ndarray]]  # handle of a picture -> its processed tensors


@dataclass(frozen=True, slots=True)
class Piece:
    """Some answers of one group: `group` and `samples` are indices into the groups that were cut."""

    group: int
    samples: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one micro-batch may hold: computed tokens, or answers where `tokens` is None."""

    tokens: int | None = None
    samples: int | None = None
    key: str = "worker.actor.micro_batch_size_per_device_for_update"


def cut(groups: Sequence[Group], budget: Budget) -> list[list[Piece]]:
    """Micro-batches of pieces, none above the budget; a group above it is split and its prompt computed again."""
    pieces = [piece for index, group in enumerate(groups) for piece in _pieces(index, group, budget)]
    if budget.tokens is None:
        assert budget.samples is not None
        bins = fill([len(piece.samples) for piece in pieces], budget.samples)
    else:
        bins = fill([piece.num_tokens for piece in pieces], budget.tokens)
    return [[pieces[index] for index in members] for members in bins]


def _pieces(index: int, group: Group, budget: Budget) -> list[Piece]:
    prompt = len(group.prompt.ids)
    pieces: list[Piece] = []
    samples: list[int] = []
    tokens = prompt
    for number, sample in enumerate(group.samples):
        length = len(sample)
        if budget.tokens is not None and prompt + length > budget.tokens:
            raise ConfigError(
                budget.key,
                f"its budget of {budget.tokens} tokens is below one prompt and answer of {prompt} + {length} tokens; "
                "raise it, or lower data.max_prompt_length or data.max_response_length",
            )
        full = len(samples) == budget.samples if budget.tokens is None else tokens + length > budget.tokens
        if samples and full:
            pieces.append(Piece(index, tuple(samples), tokens))
            samples, tokens = [], prompt
        samples.append(number)
        tokens += length
    pieces.append(Piece(index, tuple(samples), tokens))
    return pieces


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch ready for the model, and where its N answer tokens came from."""

    inputs: ModelInputs
    targets: torch.Tensor  # (N,) answer tokens; a banned one is replaced, see `allowed`
    allowed: torch.Tensor  # (N,) bool, False where the sampler met an id that it may never draw
    places: tuple[tuple[int, int], ...]  # (group, sample) of each answer, in order
    lengths: tuple[int, ...]  # of each answer

    def split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """(N,) values -> one tensor an answer."""
        return list(flat.split(list(self.lengths)))


class Packer:
    """Makes micro-batches for one model: asks positions, resolves pictures, lays answers behind their prompts."""

    def __init__(self, positions: Positions, media: MediaInputs, packed: bool, banned: torch.Tensor) -> None:
        self.positions = positions
        self.media = media
        self.packed = packed
        self.banned = banned.cpu()
        taken = set(self.banned.tolist())
        self.stand_in = next(token for token in range(len(taken) + 1) if token not in taken)

    def prompt_media(self, prompt: Prompt) -> dict[str, torch.Tensor]:
        """The processed pictures of a prompt, one after the other."""
        return _joined([_tensors(self.media(handle)) for handle in prompt.media])

    def micro_batch(self, groups: Sequence[Group], pieces: Sequence[Piece], device: torch.device) -> MicroBatch:
        """The pieces as one packed row, or as padded rows."""
        places = tuple((piece.group, sample) for piece in pieces for sample in piece.samples)
        answers = [torch.from_numpy(groups[group].samples[sample].completion.ids) for group, sample in places]
        ids = torch.cat(answers)
        allowed = ~torch.isin(ids, self.banned)
        targets = torch.where(allowed, ids, self.stand_in)
        lengths = tuple(len(answer) for answer in answers)
        lay = self._packed if self.packed else self._padded
        inputs = lay(
            [(groups[piece.group].prompt, len(piece.samples)) for piece in pieces], list(targets.split(lengths))
        )
        return MicroBatch(to_device(inputs, device), targets.to(device), allowed.to(device), places, lengths)

    def prompts(self, prompts: Sequence[Prompt]) -> tuple[ModelInputs, list[torch.Tensor]]:
        """Prompts alone as one packed row, whose last tokens are chosen; and the (R, P) positions of each."""
        inputs = self._packed([(prompt, 0) for prompt in prompts], [])
        positions = list(inputs.positions[:, 0].split([len(prompt.ids) for prompt in prompts], 1))
        ends = torch.tensor([len(prompt.ids) for prompt in prompts]).cumsum(0) - 1
        return ModelInputs(inputs.ids, inputs.positions, ends, inputs.media, inputs.layout), positions

    def _packed(self, prompts: Sequence[tuple[Prompt, int]], answers: list[torch.Tensor]) -> ModelInputs:
        """`prompts` with how many of the `answers`, which follow in order, belong to each."""
        ids, positions, media, spans, chosen = [], [], [], [], []
        start, waiting = 0, iter(answers)
        for prompt, count in prompts:
            own = [next(waiting) for _ in range(count)]
            prompt_ids, prompt_positions, prompt_media = self._prompt(prompt)
            media.append(prompt_media)
            span = Span(start, len(prompt_ids), tuple(len(answer) for answer in own))
            spans.append(span)
            ids += [prompt_ids, *own]
            positions += [prompt_positions] + [self.positions.after(prompt_positions, len(answer)) for answer in own]
            chosen += _predecessors(span)
            start = span.end
        return ModelInputs(
            ids=torch.cat(ids)[None],
            positions=torch.cat(positions, 1)[:, None],
            chosen=torch.cat(chosen) if chosen else torch.empty(0, dtype=torch.long),
            media=_joined(media),
            layout=Packed(tuple(spans)),
        )

    def _padded(self, prompts: Sequence[tuple[Prompt, int]], answers: list[torch.Tensor]) -> ModelInputs:
        """One row for each answer, padded on the right; a prompt's pictures are given once for each of its answers."""
        rows, positions, media, chosen = [], [], [], []
        waiting = iter(answers)
        widths = [len(prompt.ids) for prompt, count in prompts for _ in range(count)]
        width = max(prompt + len(answer) for prompt, answer in zip(widths, answers, strict=True))
        for prompt, count in prompts:
            prompt_ids, prompt_positions, prompt_media = self._prompt(prompt)
            for answer in [next(waiting) for _ in range(count)]:
                first = len(rows) * width + len(prompt_ids) - 1
                chosen.append(torch.arange(first, first + len(answer)))
                rows.append(torch.cat((prompt_ids, answer)))
                positions.append(torch.cat((prompt_positions, self.positions.after(prompt_positions, len(answer))), 1))
                media.append(prompt_media)
        mask = torch.stack([torch.arange(width) < len(row) for row in rows]).long()
        pad = torch.nn.functional.pad
        return ModelInputs(
            ids=torch.stack([pad(row, (0, width - len(row)), value=self.stand_in) for row in rows]),
            positions=torch.stack([pad(place, (0, width - place.shape[1])) for place in positions], 1),
            chosen=torch.cat(chosen),
            media=_joined(media),
            attention_mask=mask,
        )

    def _prompt(self, prompt: Prompt) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        ids = torch.from_numpy(prompt.ids)
        media = self.prompt_media(prompt)
        return ids, self.positions.of_prompt(ids, media), media


def to_device(inputs: ModelInputs, device: torch.device) -> ModelInputs:
    """The same inputs with their tensors on `device`."""
    return ModelInputs(
        ids=inputs.ids.to(device),
        positions=inputs.positions.to(device),
        chosen=inputs.chosen.to(device),
        media={name: tensor.to(device) for name, tensor in inputs.media.items()},
        layout=inputs.layout,
        attention_mask=None if inputs.attention_mask is None else inputs.attention_mask.to(device),
    )


def _predecessors(span: Span) -> list[torch.Tensor]:
    """For each answer, where the hidden states lie that predict its tokens: the prompt's end, then its own tokens."""
    last, start = span.start + span.prompt - 1, span.start + span.prompt
    found = []
    for length in span.answers:
        index = torch.arange(start - 1, start + length - 1)
        index[0] = last
        found.append(index)
        start += length
    return found


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(array) for name, array in arrays.items()}


def _joined(media: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The pictures of several prompts, one after the other along the first dimension.

    Where they differ in another one (numbers of tiles, rows of pixels) they are filled up with zeros behind their end,
    as the families' own processors do.
    """
    names = dict.fromkeys(name for part in media for name in part)
    return {name: _stacked([part[name] for part in media if name in part]) for name in names}


def _stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if len({tensor.shape[1:] for tensor in tensors}) == 1:
        return torch.cat(list(tensors))
    sizes = torch.tensor([tensor.shape[1:] for tensor in tensors]).amax(0).tolist()
    return torch.cat([_filled(tensor, sizes) for tensor in tensors])


def _filled(tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Zeros behind the end of every dimension but the first, up to `sizes`."""
    missing = [(0, size - own) for own, size in zip(tensor.shape[1:], sizes, strict=True)]
    return torch.nn.functional.pad(tensor, [count for pair in reversed(missing) for count in pair])
