"""Pictures and videos by content handle: measured from their headers, decoded once and ahead of use.

Pictures are resized nowhere else: the over-long filter, the sampler and the trainer all ask the same store, so that
they see the same pixels and the same number of tokens. Does not know model families, rows or text.
"""

import copy
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from easyr1.data.decode import at, local_file, open_upright, path_of, read_file, read_picture, upright_size
from easyr1.data.heads import Head, Heads, file_key
from easyr1.data.latest import Latest
from easyr1.data.processor import Measured, Reader
from easyr1.data.video import Clip, Video, VideoReader, open_video
from easyr1.errors import DataError

AHEAD = 4  # most threads that decode ahead
COLOURS = 3
MOST_BYTES_PER_PIXEL = 2 * COLOURS * 4  # of inputs: two moments in float32


@dataclass(frozen=True)
class Picture:
    """What is known of a picture or video without its pixels. Sizes are (width, height), upright."""

    handle: str
    size: tuple[int, int]
    measured: Measured | Clip = field(repr=False, compare=False)
    head: Head | None = field(default=None, repr=False, compare=False)  # of a picture

    @property
    def is_video(self) -> bool:
        return isinstance(self.measured, Clip)

    @property
    def fitted(self) -> tuple[int, int]:
        """(width, height) after resizing to the pixel limits."""
        return self.measured.fitted

    @property
    def num_tokens(self) -> int:
        return len(self.measured.ids)


@dataclass(frozen=True)
class _Source:
    """Where a picture or video is read again; `place` names row and file for errors."""

    place: str
    read: Callable[[], Any]  # the bytes of a picture's file, or a Video


class MediaStore:
    """Pictures and videos by handle, with the model inputs of those used last.

    A handle is a hash of the encoded file and of the resizing rule: equal pictures share one handle, in every process
    and every run. The store keeps where a picture can be read again, not its pixels. Safe for threads.
    """

    def __init__(
        self,
        reader: Reader,
        cache_bytes: int = 1 << 30,
        decoded_bytes: int = 4 << 30,
        videos: VideoReader | None = None,
        heads: Heads | None = None,
    ) -> None:
        """`videos` None: the model takes none. `heads` None: every file is read anew.

        Of the pictures used last, `cache_bytes` of inputs and `decoded_bytes` of 8-bit pixels are kept.
        """
        self.reader = reader
        self.videos = videos
        self.heads = heads
        self._pictures: dict[str, Picture] = {}
        self._sources: dict[str, _Source] = {}
        self._start(cache_bytes, decoded_bytes)

    def _start(self, cache_bytes: int, decoded_bytes: int) -> None:
        """With nothing decoded."""
        self._decoded: Latest[Image.Image] = Latest(self._fitted, _image_bytes, decoded_bytes)
        self._inputs: Latest[dict[str, np.ndarray]] = Latest(self._made, _num_bytes, cache_bytes)
        self._workers: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs to read the pictures itself: where they are and what was measured.

        Pictures that lie in a table are read from the file that the table lies in; neither bytes nor pixels travel.
        """
        kept = ("reader", "videos", "_pictures", "_sources")
        sizes = {"cache_bytes": self._inputs.budget, "decoded_bytes": self._decoded.budget}
        return {name: getattr(self, name) for name in kept} | sizes

    def __setstate__(self, state: dict[str, Any]) -> None:
        sizes = {name: state.pop(name) for name in ("cache_bytes", "decoded_bytes")}
        self.__dict__.update(state, heads=None)
        self._start(**sizes)

    def for_ranks(self, count: int) -> "MediaStore":
        """The store to send to `count` processes on one machine, which share its bounds on memory."""
        sent = copy.copy(self)
        sent._start(self._inputs.budget // count, self._decoded.budget // count)
        return sent

    def __len__(self) -> int:
        return len(self._pictures)

    def add(
        self, image: Any, folder: Path | None = None, reread: Callable[[], bytes] | None = None, place: str = ""
    ) -> Picture:
        """Take a picture in: a PIL image, a path, the bytes of a file or {"bytes": ..., "path": ...}.

        Relative paths start from `folder`. Only the header is read, and that of a file that did not change since an
        earlier run not even once. `reread` gives the same bytes again later, so that the store need not hold them;
        `place` says where the picture comes from. Raises DataError that names the file.
        """
        if (given := path_of(image)) is not None:
            return self._add_file(given, folder, place)
        data, path = read_picture(image, folder)
        name = str(path or (image.get("path") if isinstance(image, dict) else None) or "")
        return self.add_known(_head(data, name), reread or functools.partial(_held, data), place)

    def add_known(self, head: Head, read: Callable[[], bytes], place: str = "") -> Picture:
        """Take in a picture whose header was read before; `read` gives its bytes."""
        handle = _hash(f"{head.digest} {self.reader.rule}")
        with self._lock:
            known = self._pictures.get(handle)
        if known is not None:
            return known
        named = f"picture {head.name or 'without a file name'}"
        with at(named):
            measured = self.reader.measure(head.width, head.height)
        source = _Source(f"{place}: {named}" if place else named, read)
        return self._keep(Picture(handle, (head.width, head.height), measured, head), source)

    def add_video(
        self, item: Any, folder: Path | None = None, reread: Callable[[], Any] | None = None, place: str = ""
    ) -> Picture:
        """Take a video in, see open_video; `reread` gives the same item again. DataError names the file."""
        if self.videos is None:
            raise DataError("this model takes no videos; see docs/data.md for those that do.")
        video = open_video(item, folder)
        footage = video.footage
        handle = _hash(f"{footage.digest} {self.videos.rule}")
        reopen = functools.partial(_held, video)
        if reread is not None and not video.is_light:
            reopen = functools.partial(_reopened, reread, folder)
        picture = Picture(handle, footage.size, self.videos.measure(footage))
        return self._keep(picture, _Source(f"{place}: video" if place else "video", reopen))

    def picture(self, handle: str) -> Picture:
        return self._pictures[handle]

    def num_tokens(self, handle: str) -> int:
        return self._pictures[handle].num_tokens

    def image(self, handle: str) -> Image.Image:
        """The upright RGB picture at the size that the model sees; of a video its first frame. Do not write to it."""
        picture = self._pictures[handle]
        if isinstance(picture.measured, Clip):
            with at(self._sources[handle].place):
                (first,) = self._sources[handle].read().read(picture.measured.indices[:1])
            return first.resize(picture.fitted)
        return self._decoded.get(handle)

    def inputs(self, handle: str) -> dict[str, np.ndarray]:
        """Model inputs of one picture, as the model's family names and shapes them (see data/processor.py).

        The arrays are shared by all callers: do not write to them. Raises DataError, which names row and file, where
        the body of the file is broken or has changed.
        """
        return self._inputs.get(handle)

    def prefetch(self, handles: Iterable[str]) -> None:
        """Start to decode what is asked for next, in the background and as far as it is kept until then."""
        room = {True: self._inputs.budget // 2, False: self._decoded.budget // 2}
        for handle in dict.fromkeys(handles):
            is_video = self._pictures[handle].is_video
            room[is_video] -= self._most_bytes(handle)
            if room[is_video] < 0 or handle in self._inputs or handle in self._decoded:
                continue
            with self._lock:
                if self._workers is None:
                    self._workers = ThreadPoolExecutor(min(AHEAD, os.cpu_count() or 1), "pictures")
            self._workers.submit(self.problem, handle)

    def problem(self, handle: str) -> str | None:
        """What is wrong with the body of a picture or video, told with row and file; None once it was decoded."""
        try:
            if self._pictures[handle].is_video:
                self._inputs.get(handle)
            else:
                self._decoded.get(handle)
        except DataError as error:
            return str(error)
        return None

    def deep_check(self, workers: int = 16, progress: Callable[[int, int], None] | None = None) -> list[str]:
        """Decode every picture and video; what is wrong with them, each with the first row that holds it."""
        found = []
        with ThreadPoolExecutor(min(workers, os.cpu_count() or 1)) as threads:
            for done, problem in enumerate(threads.map(self._decoding_problem, list(self._pictures)), start=1):
                if problem is not None:
                    found.append(problem)
                if progress is not None:
                    progress(done, len(self._pictures))
        return found

    def _add_file(self, given: str | os.PathLike[str], folder: Path | None, place: str) -> Picture:
        path = local_file(given, folder, "picture")
        key = file_key(path)
        heads = self.heads.get(key) if self.heads is not None and key is not None else None
        if not heads:
            is_relative = not Path(given).expanduser().is_absolute()
            heads = [_head(read_file(path, "picture", is_relative), str(path))]
            if self.heads is not None and key is not None and key == file_key(path):
                self.heads.put(key, heads)
        return self.add_known(heads[0], functools.partial(_read_again, path), place)

    def _keep(self, picture: Picture, source: _Source) -> Picture:
        """The picture, or the equal one that was there before."""
        with self._lock:
            self._sources.setdefault(picture.handle, source)
            return self._pictures.setdefault(picture.handle, picture)

    def _made(self, handle: str) -> dict[str, np.ndarray]:
        measured = self._pictures[handle].measured
        if isinstance(measured, Clip):
            assert self.videos is not None
            with at(self._sources[handle].place):
                return self.videos.inputs(self._sources[handle].read(), measured)
        return self.reader.inputs(self.image(handle))

    def _fitted(self, handle: str) -> Image.Image:
        picture = self._pictures[handle]
        return self.reader.resize(self._opened(picture), picture.fitted)

    def _opened(self, picture: Picture) -> Image.Image:
        """The whole picture, which must be the one that was measured."""
        assert picture.head is not None
        source = self._sources[picture.handle]
        with at(source.place):
            data = source.read()
            if hashlib.sha256(data).hexdigest() != picture.head.digest:
                raise DataError("the file has changed since it was measured.")
            return open_upright(data)

    def _decoding_problem(self, handle: str) -> str | None:
        picture = self._pictures[handle]
        try:
            if isinstance(picture.measured, Clip):
                with at(self._sources[handle].place):
                    self._sources[handle].read().read(picture.measured.indices)
            else:
                self._opened(picture)
        except DataError as error:
            return str(error)
        return None

    def _most_bytes(self, handle: str) -> int:
        picture = self._pictures[handle]
        pixels = picture.fitted[0] * picture.fitted[1]
        if isinstance(picture.measured, Clip):
            return picture.measured.grid[0] * pixels * MOST_BYTES_PER_PIXEL
        return pixels * COLOURS


def _head(data: bytes, name: str) -> Head:
    """What a picture's file is and how large; DataError that names it."""
    with at(f"picture {name or 'without a file name'}"):
        return Head(hashlib.sha256(data).hexdigest(), *upright_size(data), name)


def _read_again(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{error.strerror or error}.") from error


def _reopened(reread: Callable[[], Any], folder: Path | None) -> Video:
    return open_video(reread(), folder)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _held(thing: Any) -> Any:
    return thing


def _image_bytes(image: Image.Image) -> int:
    return image.width * image.height * COLOURS


def _num_bytes(inputs: dict[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in inputs.values())
