"""What a run would find before anything is trained: how long prompts are, and what other limits would change.

Loads no weights. Knows nothing of consoles.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from easyr1.batch import Prompt
from easyr1.data.chat import Chat
from easyr1.data.dataset import Entry, PromptSet
from easyr1.data.media import MediaStore, Picture
from easyr1.errors import ConfigError, DataError

PERCENTILES = (50, 90, 99, 100)
ROWS_MEASURED = 1000  # of a data set, where pictures are measured anew
ROWS_PROBED = 3  # of each source


@dataclass(frozen=True)
class Length:
    """Tokens of one prompt."""

    text: int
    media: int  # of its pictures and videos

    @property
    def total(self) -> int:
        return self.text + self.media


def row_lengths(prompts: PromptSet, media: MediaStore | None) -> list[Length]:
    """Lengths of all rows, those that were left out included."""
    count = (lambda handle: 0) if media is None else media.num_tokens
    return [_length(entry, count) for entry in _all_entries(prompts)]


def percentiles(values: Iterable[int]) -> list[int]:
    """The values that PERCENTILES of them do not exceed."""
    return [int(value) for value in np.percentile(list(values), PERCENTILES, method="higher")]


def kept_at(lengths: Sequence[Length], current: int) -> list[tuple[int, int]]:
    """(max_prompt_length, rows it would keep) at the current one and at round figures around the lengths there are."""
    limits = {current, *(_round_up(value) for value in percentiles(length.total for length in lengths))}
    return [(limit, sum(length.total <= limit for length in lengths)) for limit in sorted(limits)]


def _round_up(tokens: int) -> int:
    """The next multiple of 64."""
    return -(-tokens // 64) * 64


@dataclass(frozen=True)
class Change:
    """What rows would be under other pixel limits."""

    min_pixels: int | None
    max_pixels: int | None
    per_picture: float  # mean tokens
    longest: int  # tokens of the longest prompt
    kept: int  # rows within max_prompt_length
    rows: int  # that were measured


def pixel_changes(
    prompts: PromptSet, chat: Chat, media: MediaStore, limits: tuple[int | None, int | None], max_prompt_length: int
) -> list[Change]:
    """What is and what would be: `limits` (min_pixels, max_pixels), then each of them halved and doubled."""
    entries = spread([entry for entry in _all_entries(prompts) if entry.media], ROWS_MEASURED)
    low, high = limits
    others = [(low, high // 2), (low, high * 2)] if high else []
    others += [(low // 2, high), (low * 2, high)] if low else []
    possible = [limits, *((a, b) for a, b in others if a is None or b is None or 0 < a <= b)]
    pictures = [[media.picture(handle) for handle in entry.media] for entry in entries]
    text = [_length(entry, media.num_tokens).text for entry in entries]
    found = []
    for pair in possible if entries else []:
        try:
            tokens = _measurer(_store(chat.media_store(*pair)))
            counts = [[tokens(picture) for picture in row] for row in pictures]
        except (ConfigError, DataError):
            if pair == limits:
                raise
            continue  # the model's own limits or sizes exclude it
        totals = [own + sum(row) for own, row in zip(text, counts, strict=True)]
        mean = float(np.mean([one for row in counts for one in row]))
        kept = sum(total <= max_prompt_length for total in totals)
        found.append(Change(*pair, mean, max(totals), kept, len(entries)))
    return found


def _measurer(store: MediaStore) -> Callable[[Picture], int]:
    """Tokens of a picture under the limits of `store`; videos stay as they are."""

    @functools.cache
    def of_size(size: tuple[int, int]) -> int:
        return len(store.reader.measure(*size).ids)

    return lambda picture: picture.num_tokens if picture.is_video else of_size(picture.size)


def _all_entries(prompts: PromptSet) -> list[Entry]:
    return [*prompts.entries, *prompts.dropped]


def _length(entry: Entry, num_tokens: Callable[[str], int]) -> Length:
    media = sum(num_tokens(handle) for handle in entry.media)
    return Length(len(entry.ids) - media, media)


def _store(media: MediaStore | None) -> MediaStore:
    assert media is not None, "a text model was given pictures"
    return media


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` of the items, evenly spaced, the first and the last among them.

    >>> spread([1, 2, 3, 4, 5], 3)
    [1, 3, 5]
    """
    if len(items) <= count:
        return list(items)
    return [items[round(place)] for place in np.linspace(0, len(items) - 1, count)]


def probed_rows(prompts: PromptSet) -> list[Prompt]:
    """A few rows of each source."""
    by_source: dict[int, list[int]] = {}
    for place, entry in enumerate(prompts.entries):
        by_source.setdefault(entry.table, []).append(place)
    return [prompts[place] for places in by_source.values() for place in spread(places, ROWS_PROBED)]
