"""Keys and values of live answers: each prompt's kept once for all its answers, each answer's own beside it.

The sampler's two layouts meet here: a `Packed` prefill stores its prompts into the cache (`store`), a `DecodeStep`
lets one new token of every live answer attend to its prompt and to its own past. Rows (answers) and slots (prompts)
are kept dense: whoever leaves is replaced by the last, so a step works on views and copies nothing but the row that
moves.

Shape legend: B live answers, S live prompts, M most answers of one prompt, H query heads, K key/value heads, P longest
prompt, C longest answer, D head width.
"""

from collections.abc import Sequence

import numpy as np
import torch

from easyr1.models.attention import Span


class _Buffer:
    """Rows of keys or values, (rows, K, length, D), that grows by doubling in rows and length."""

    def __init__(self) -> None:
        self.tensor: torch.Tensor | None = None

    def reserve(self, like: torch.Tensor, rows: int, length: int) -> torch.Tensor:
        """At least (rows, K, length, D); `like` is (1, K, any, D) and gives heads, width, type and device."""
        old = self.tensor
        if old is not None and old.shape[0] >= rows and old.shape[2] >= length:
            return old
        old_rows, old_length = (0, 0) if old is None else (old.shape[0], old.shape[2])
        rows = max(rows, 2 * old_rows if rows > old_rows else old_rows)
        length = max(length, 2 * old_length if length > old_length else old_length)
        grown = like.new_zeros(rows, like.shape[1], length, like.shape[3])
        if old is not None:
            grown[:old_rows, :, :old_length] = old
        self.tensor = grown
        return grown

    def move(self, source: int, target: int, length: int) -> None:
        if self.tensor is not None:
            self.tensor[target, :, :length] = self.tensor[source, :, :length]


class KvCache:
    """The keys and values of all layers for the live prompts and answers."""

    def __init__(self) -> None:
        self.prompt_length: list[int] = []  # of each slot
        self.row_slot: list[int] = []  # the slot of each row's prompt
        self.row_length: list[int] = []  # tokens of each row whose keys are stored
        self._prompts: dict[int, tuple[_Buffer, _Buffer]] = {}
        self._answers: dict[int, tuple[_Buffer, _Buffer]] = {}

    def open_slots(self, lengths: Sequence[int]) -> list[int]:
        """New slots for prompts of these lengths; the next prefill fills them in this order."""
        first = len(self.prompt_length)
        self.prompt_length.extend(lengths)
        return list(range(first, len(self.prompt_length)))

    def store(self, layer: int, spans: Sequence[Span], key: torch.Tensor, value: torch.Tensor) -> None:
        """Keep the prompts of a prefill, (1, K, L, D) each, in the slots opened last."""
        first = len(self.prompt_length) - len(spans)
        buffers = self._prompts.setdefault(layer, (_Buffer(), _Buffer()))
        longest = max(span.prompt for span in spans)
        for buffer, tensor in zip(buffers, (key, value), strict=True):
            kept = buffer.reserve(tensor, len(self.prompt_length), longest)
            for slot, span in enumerate(spans, start=first):
                kept[slot, :, : span.prompt] = tensor[0, :, span.start : span.start + span.prompt]

    def add_row(self, slot: int) -> None:
        self.row_slot.append(slot)
        self.row_length.append(0)

    def advance(self) -> None:
        """A token of every row has been stored in every layer."""
        self.row_length = [length + 1 for length in self.row_length]

    def drop_row(self, row: int) -> None:
        """Forget a row; the last row takes its place."""
        last = len(self.row_slot) - 1
        if row != last:
            for buffers in self._answers.values():
                for buffer in buffers:
                    buffer.move(last, row, self.row_length[last])
        _drop(self.row_slot, row)
        _drop(self.row_length, row)

    def drop_slot(self, slot: int) -> None:
        """Forget a prompt without rows; the last prompt takes its place."""
        last = len(self.prompt_length) - 1
        if slot != last:
            for buffers in self._prompts.values():
                for buffer in buffers:
                    buffer.move(last, slot, self.prompt_length[last])
        _drop(self.prompt_length, slot)
        self.row_slot = [slot if old == last else old for old in self.row_slot]

    def append(
        self, layer: int, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put one token of every row, (1, K, B, D), behind its past -> the layer's (rows, K, C or more, D) buffers."""
        buffers = self._answers.setdefault(layer, (_Buffer(), _Buffer()))
        rows = torch.arange(len(self.row_slot), device=key.device)
        kept = []
        for buffer, tensor in zip(buffers, (key, value), strict=True):
            full = buffer.reserve(tensor, len(self.row_slot), max(self.row_length) + 1)
            full[rows, :, lengths] = tensor[0].transpose(0, 1)
            kept.append(full)
        return kept[0], kept[1]

    def prompts(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (buffer.tensor for buffer in self._prompts[layer])
        assert keys is not None and values is not None
        return keys, values


class DecodeStep:
    """The layout of one token for every live row: sees its prompt, its own past and itself.

    Serves step after step (`advance`) as long as no row comes or goes.
    """

    def __init__(self, cache: KvCache, device: torch.device) -> None:
        self.cache = cache
        slots = np.asarray(cache.row_slot)
        self._place_rows(slots, device)
        self.longest_prompt = max(cache.prompt_length)
        self.prompt_lengths = torch.tensor(cache.prompt_length, device=device)[torch.from_numpy(slots).to(device)]
        self.lengths = torch.tensor(cache.row_length, device=device)
        self._begin()

    def advance(self) -> None:
        """Go on to the next token of the same rows."""
        self.lengths = self.lengths + 1
        self._begin()

    def _begin(self) -> None:
        self.longest_answer = max(self.cache.row_length) + 1
        self._masks: dict[tuple[int | None, torch.dtype], torch.Tensor] = {}

    def _place_rows(self, slots: np.ndarray, device: torch.device) -> None:
        """Where each row sits in the (S, M) table of answers by prompt: a prompt's answers share one product."""
        num_slots = len(self.cache.prompt_length)
        counts = np.bincount(slots, minlength=num_slots)
        most = int(counts.max())
        order = np.argsort(slots, kind="stable")
        within = np.arange(len(slots)) - np.repeat(np.cumsum(counts) - counts, counts)
        table = np.zeros(num_slots * most, dtype=np.int64)  # empty places borrow row 0 and are never read back
        places = np.empty(len(slots), dtype=np.int64)
        places[order] = slots[order] * most + within
        table[places] = np.arange(len(slots))
        self.table = torch.from_numpy(table).to(device)
        self.places = torch.from_numpy(places).to(device)
        self.shape = (num_slots, most)

    def _mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """(B, 1, 1, P + C), 0 where the token may look and -inf where not."""
        if (window, dtype) not in self._masks:
            prompt = torch.arange(self.longest_prompt, device=self.lengths.device)[None]
            own = torch.arange(self.longest_answer, device=self.lengths.device)[None]
            hidden = torch.cat((prompt >= self.prompt_lengths[:, None], own > self.lengths[:, None]), 1)
            if window is not None:
                here = self.prompt_lengths + self.lengths
                behind = torch.cat((here[:, None] - prompt, self.lengths[:, None] - own), 1)
                hidden |= behind >= window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))
            self._masks[window, dtype] = mask[:, None, None]
        return self._masks[window, dtype]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        """query (1, H, B, D), key and value (1, K, B, D) -> (1, B, H, D)."""
        rows, (num_slots, most) = query.shape[2], self.shape
        num_kv, width = key.shape[1], value.shape[-1]
        repeat = query.shape[1] // num_kv
        own_keys, own_values = self.cache.append(layer, key, value, self.lengths)
        own_keys, own_values = (tensor[:rows, :, : self.longest_answer] for tensor in (own_keys, own_values))
        prompt_keys, prompt_values = (
            tensor[:num_slots, :, : self.longest_prompt] for tensor in self.cache.prompts(layer)
        )
        by_row = query[0].transpose(0, 1).unflatten(1, (num_kv, repeat)) * scale  # (B, K, repeat, D)
        by_slot = (
            by_row[self.table].unflatten(0, (num_slots, most)).transpose(1, 2).flatten(2, 3)
        )  # (S, K, M * repeat, D)
        to_prompt = self._by_row(by_slot @ prompt_keys.transpose(-1, -2), repeat)
        to_own = by_row @ own_keys.transpose(-1, -2)
        scores = torch.cat((to_prompt, to_own), -1) + self._mask(window, query.dtype)
        weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
        seen, own = weights.split((self.longest_prompt, self.longest_answer), -1)
        seen = seen[self.table].unflatten(0, (num_slots, most)).transpose(1, 2).flatten(2, 3)
        out = self._by_row(seen @ prompt_values, repeat) + own @ own_values
        return out.reshape(1, rows, num_kv * repeat, width)

    def _by_row(self, by_slot: torch.Tensor, repeat: int) -> torch.Tensor:
        """(S, K, M * repeat, X) -> (B, K, repeat, X)."""
        return by_slot.unflatten(2, (self.shape[1], repeat)).transpose(1, 2).flatten(0, 1)[self.places]


def _drop(values: list[int], index: int) -> None:
    last = values.pop()
    if index < len(values):
        values[index] = last
