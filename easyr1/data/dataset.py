"""Rows -> prompts: every row checked and measured before a model is built; what is too long left out and counted.

Of pictures only the headers are read here: their sizes decide how many tokens they are.

Knows what the columns mean. Does not know the order in which prompts are drawn.
"""

import functools
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from easyr1.batch import Prompt
from easyr1.data.chat import KINDS, Chat
from easyr1.data.decode import at, path_of, read_picture
from easyr1.data.media import MediaStore, Picture
from easyr1.data.sources import Rows, load_rows
from easyr1.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]  # (done, all)

OVER_LONG = "over-long"
WINDOW = 1024  # rows that are handed to the threads at a time


@dataclass(frozen=True)
class Columns:
    """Names of the columns that have a meaning; all others travel with the prompt."""

    prompt: str = "problem"
    answer: str = "answer"
    images: str = "images"
    videos: str = "videos"

    @property
    def all(self) -> tuple[str, str, str, str]:
        return self.prompt, self.answer, self.images, self.videos


@dataclass(frozen=True)
class Limits:
    """How long a prompt may be, in tokens, and whether longer ones are left out or stop the run."""

    max_prompt_length: int
    filter_overlong: bool = True


@dataclass(frozen=True)
class Report:
    """What became of the rows."""

    kept: int
    dropped: Mapping[str, int]  # number of rows by reason
    longest: int  # tokens of the longest prompt, dropped ones included
    limit: int  # tokens
    percentiles: Mapping[str, int]  # tokens of the kept prompts: p50, p90, p99, p100
    max_pictures: int  # in one kept row
    max_videos: int = 0

    def __str__(self) -> str:
        total = self.kept + sum(self.dropped.values())
        text = f"kept {self.kept} of {total}"
        for reason, count in self.dropped.items():
            text += f", dropped {count} {reason}"
        return f"{text} (longest {self.longest} tokens, limit {self.limit})"


@dataclass(frozen=True, slots=True)
class Entry:
    """A row that was read: where it is and what was computed from it."""

    table: int  # index into the tables
    row: int
    ids: np.ndarray  # (P,) int32, half the memory of what a Prompt carries
    media: tuple[str, ...]


class PromptSet(Sequence[Prompt]):
    """The prompts of a data set. Ids are held; text, answer and other columns are read from the rows when asked."""

    def __init__(
        self,
        tables: Sequence[Rows],
        entries: Sequence[Entry],
        chat: Chat,
        media: MediaStore | None,
        columns: Columns,
        report: Report,
        dropped: Sequence[Entry] = (),
    ) -> None:
        self.report = report
        self.entries = entries
        self.dropped = dropped
        self._media = media
        self._chat = chat
        self._columns = columns
        pictures = (columns.images, columns.videos)
        self._tables = [table.only([name for name in table.columns if name not in pictures]) for table in tables]

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def sources(self) -> list[tuple[str, int]]:
        """The data specs, in order, each with the number of its rows that are left."""
        counts = Counter(entry.table for entry in self.entries)
        return [(table.spec, counts[number]) for number, table in enumerate(self._tables)]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        entry = self.entries[index]
        table = self._tables[entry.table]
        row = table[entry.row]
        return Prompt(
            row=entry.row,
            ids=entry.ids.astype(np.int64),
            media=entry.media,
            text=self._chat.render(row[self._columns.prompt]),
            ground_truth=row[self._columns.answer],
            columns=self._sizes(entry) | {name: row[name] for name in row if name not in self._columns.all},
            source=table.spec,
        )

    def _sizes(self, entry: Entry) -> dict[str, list[tuple[int, int]]]:
        """(width, height) of the pictures as they were and as the model sees them, for answers with coordinates."""
        if self._media is None or not entry.media:
            return {}
        media = [self._media.picture(handle) for handle in entry.media]
        pictures = [one for one in media if not one.is_video]
        return {"image_sizes": [one.size for one in pictures], "model_image_sizes": [one.fitted for one in pictures]}


def load_prompts(
    specs: str | Sequence[str],
    chat: Chat,
    media: MediaStore | None,
    limits: Limits,
    *,
    columns: Columns = Columns(),
    image_dir: str | Path | None = None,
    workers: int = 16,
    progress: Progress | None = None,
) -> PromptSet:
    """Load and check every row of one or several data specs.

    `media` takes the pictures in; it is None for a text model. Relative picture paths start from `image_dir`, or
    from the folder of the data file. Raises DataError that names the first row that cannot be used: wrong types,
    missing answers, placeholders that do not match the pictures, broken pictures, and prompts that are too long
    where they are not filtered out.
    """
    if image_dir is not None and not Path(image_dir).expanduser().is_dir():
        raise ConfigError("data.image_dir", f"there is no folder {image_dir}.")
    tables = [load_rows(spec) for spec in ([specs] if isinstance(specs, str) else specs)]
    folder = Path(image_dir).expanduser() if image_dir else None
    readers = [RowReader(table, chat, media, columns, folder or table.folder) for table in tables]
    entries: list[Entry] = []
    overlong: list[Entry] = []
    done, total = 0, sum(len(table) for table in tables)
    try:
        for entry, pictures in _read_all(tables, readers, workers):
            if len(entry.ids) <= limits.max_prompt_length:
                entries.append(entry)
            elif limits.filter_overlong:
                overlong.append(entry)
            else:
                place = f"{tables[entry.table].spec}, row {entry.row}"
                raise DataError(_too_long(place, len(entry.ids), pictures, limits.max_prompt_length))
            done += 1
            if progress is not None:
                progress(done, total)
    finally:  # what was read is known to the next start, also where this one fails
        if media is not None and media.heads is not None:
            media.heads.flush()
    report = _report(entries, overlong, limits.max_prompt_length, media)
    if not entries:
        shortest = min(len(entry.ids) for entry in overlong)
        raise DataError(
            f"{specs}: no row is left: {report}. The shortest prompt has {shortest} tokens; raise "
            "data.max_prompt_length or lower data.max_pixels."
        )
    logger.info("%s: %s", specs, report)
    return PromptSet(tables, entries, chat, media, columns, report, overlong)


def _read_all(
    tables: Sequence[Rows], readers: Sequence["RowReader"], workers: int
) -> Iterator[tuple[Entry, list[Picture]]]:
    for number, (table, reader) in enumerate(zip(tables, readers, strict=True)):
        for row, (ids, pictures) in enumerate(_in_threads(reader.read, len(table), workers)):
            handles = tuple(picture.handle for picture in pictures)
            yield Entry(number, row, ids.astype(np.int32), handles), pictures


class RowReader:
    """Checks and measures the rows of one table. Safe for threads."""

    def __init__(
        self, rows: Rows, chat: Chat, media: MediaStore | None, columns: Columns, folder: Path | None
    ) -> None:
        """`folder`: where relative picture paths start. Raises DataError for missing columns."""
        rows.require(columns.prompt, "data.prompt_key")
        rows.require(columns.answer, "data.answer_key")
        self._rows = rows
        self._chat = chat
        self._media = media
        self._columns = columns
        self._folder = folder
        stored = (columns.images, columns.videos)
        self._texts = rows.only([name for name in rows.columns if name not in stored])
        self._stored = {name: rows.only([name]) for name in rows.columns if name in stored}
        fingerprint = getattr(rows.table, "_fingerprint", None)
        self._key = f"{fingerprint}|{columns.images}" if fingerprint else None
        heads = media.heads if media is not None else None
        self._was_read = heads is not None and self._key is not None and heads.get(self._key) is not None

    def read(self, number: int) -> tuple[np.ndarray, list[Picture]]:
        """Token ids (P,) int64 and pictures of one row; every DataError names the row and the column."""
        names = self._columns
        with at(f"{self._rows.spec}, row {number}"):
            row = self._texts[number]
            with at(f"column {names.answer!r} (data.answer_key)"):
                if _is_none(row[names.answer]):
                    raise DataError("it is empty, but the reward function needs an answer.")
            with at(f"column {names.videos!r} (data.video_key)"):
                videos = self._add_videos(number)
            with at(f"column {names.images!r} (data.image_key)"):
                pictures = self._add_pictures(number)
            with at(f"column {names.prompt!r} (data.prompt_key)"):
                self._require_columns(row[names.prompt])
                ids, _, media = self._chat.prepare(row[names.prompt], pictures, videos)
        return ids, media

    def _add_pictures(self, number: int) -> list[Picture]:
        column = self._columns.images
        if (known := self._known(number)) is not None:
            return known
        pictures = []
        images = self._items(column, number)
        for place, image in enumerate(images):
            reread = functools.partial(_stored_bytes, self._stored[column], number, place)
            with at(f"item {place}"):
                pictures.append(self._seeing().add(image, self._folder, reread, self._place(column, number, place)))
        if images and all(path_of(image) is None for image in images):
            self._remember(number, pictures)
        return pictures

    def _known(self, number: int) -> list[Picture] | None:
        """The pictures of a row, out of what an earlier run read of this table; None where it did not."""
        media, column = self._media, self._columns.images
        if not self._was_read or media is None or media.heads is None:
            return None
        heads = media.heads.get(f"{self._key}|{number}")
        if heads is None:
            return None
        return [
            media.add_known(
                head,
                functools.partial(_stored_bytes, self._stored[column], number, place),
                self._place(column, number, place),
            )
            for place, head in enumerate(heads)
        ]

    def _remember(self, number: int, pictures: Sequence[Picture]) -> None:
        """Keep the heads of pictures that lie in the table itself, for the next run."""
        if self._media is not None and self._media.heads is not None and self._key is not None:
            self._media.heads.put(self._key, [])
            self._media.heads.put(f"{self._key}|{number}", [one.head for one in pictures if one.head is not None])

    def _add_videos(self, number: int) -> list[Picture]:
        column = self._columns.videos
        items = _videos(self._items(column, number))
        videos = []
        for place, item in enumerate(items):
            reread = functools.partial(_stored_video, self._stored[column], number, place)
            with at(f"item {place}"):
                store, where = self._seeing(), self._place(column, number, place)
                videos.append(store.add_video(item, self._folder, reread, where))
        return videos

    def _items(self, column: str, number: int) -> list[Any]:
        """What a row holds of a column of pictures or videos, if there is one."""
        return _as_list(self._stored[column][number][column]) if column in self._stored else []

    def _seeing(self) -> MediaStore:
        if self._media is None:
            raise DataError(
                "it has pictures, but this is a text model; take a vision-language model, or a data.image_key that "
                "names no column."
            )
        return self._media

    def _place(self, column: str, number: int, place: int) -> str:
        return f"{self._rows.spec}, row {number}: column {column!r}: item {place}"

    def _require_columns(self, content: Any) -> None:
        """Placeholders without any column of pictures or videos: most likely the wrong key."""
        for word, kind in KINDS.items():
            column = getattr(self._columns, f"{kind}s")
            if kind == "video" and (self._media is None or self._media.videos is None):
                continue  # plain text
            if column not in self._stored and isinstance(content, str) and word in content:
                raise DataError(
                    f"it has {word} placeholders, but there is no column {column!r} with "
                    f"{'pictures' if kind == 'image' else 'videos'} (data.{kind}_key). Columns found: "
                    f"{', '.join(self._rows.columns)}."
                )


def _stored_item(stored: Rows, number: int, place: int) -> Any:
    """A picture or video as it stands in the table."""
    (items,) = stored[number].values()
    return _as_list(items)[place]


def _videos(items: list[Any]) -> list[Any]:
    """The videos of a row; bare frames are those of one."""
    return [items] if items and not isinstance(items[0], (str, dict, list)) else items


def _stored_video(stored: Rows, number: int, place: int) -> Any:
    (items,) = stored[number].values()
    return _videos(_as_list(items))[place]


def _stored_bytes(stored: Rows, number: int, place: int) -> bytes:
    """The bytes of a picture that lies in the table itself."""
    return read_picture(_stored_item(stored, number, place), None)[0]


def _is_none(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _as_list(value: Any) -> list[Any]:
    """Media of a row in any form: none (None, NaN, []), one, or a list."""
    if _is_none(value):
        return []
    return value if isinstance(value, list) else [value]


def _in_threads(read: Callable[[int], Any], count: int, workers: int) -> Iterator[Any]:
    """read(0), read(1), ... in order, computed ahead by threads; decoding and tokenizing let other threads run."""
    with ThreadPoolExecutor(max_workers=min(workers, os.cpu_count() or 1)) as threads:
        for start in range(0, count, WINDOW):
            yield from threads.map(read, range(start, min(start + WINDOW, count)))


def _too_long(place: str, needed: int, pictures: Sequence[Picture], limit: int) -> str:
    of_pictures = sum(picture.num_tokens for picture in pictures)
    return (
        f"{place}: the prompt needs {needed} tokens ({of_pictures} of them for {len(pictures)} pictures), but "
        f"data.max_prompt_length is {limit}. Raise it, lower data.max_pixels, or leave such rows out with "
        "data.filter_overlong_prompts=true."
    )


def _report(entries: Sequence[Entry], overlong: Sequence[Entry], limit: int, media: MediaStore | None) -> Report:
    videos = [
        sum(media.picture(handle).is_video for handle in entry.media) if media is not None else 0 for entry in entries
    ]
    lengths = [len(entry.ids) for entry in entries]
    points = (50, 90, 99, 100)
    values = np.percentile(lengths, points, method="higher").tolist() if lengths else []
    return Report(
        kept=len(entries),
        dropped={OVER_LONG: len(overlong)} if overlong else {},
        longest=max(len(entry.ids) for entry in (*entries, *overlong)),
        limit=limit,
        percentiles={f"p{point}": int(value) for point, value in zip(points, values, strict=False)},
        max_pictures=max((len(entry.media) - own for entry, own in zip(entries, videos, strict=True)), default=0),
        max_videos=max(videos, default=0),
    )
