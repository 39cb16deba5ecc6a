"""Pictures: open, turn upright, resize to the pixel budget once, and hand the model's inputs out by content handle.

Pictures are resized nowhere else: the over-long filter, the sampler and the trainer all ask the same store, so that
they see the same pixels and the same number of tokens. Does not know model families, rows or text.
"""

import functools
import hashlib
import io
import os
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from easyr1.data.processor import Measured, Reader
from easyr1.errors import DataError

# What Pillow raises for files that are truncated or broken, by format.
BROKEN_FILE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error)


@dataclass(frozen=True)
class Picture:
    """What is known of a picture without its pixels. Sizes are (width, height) of the upright picture."""

    handle: str
    size: tuple[int, int]
    measured: Measured = field(repr=False, compare=False)

    @property
    def fitted(self) -> tuple[int, int]:
        """(width, height) after resizing to the pixel limits."""
        return self.measured.fitted

    @property
    def num_tokens(self) -> int:
        return len(self.measured.ids)


def open_upright(data: bytes) -> Image.Image:
    """Decode a picture wholly, turn it as its EXIF orientation says, and make it 8-bit RGB.

    Transparency is laid on white, as a page or a browser shows it; 16-bit grey is scaled down.
    Raises DataError for broken files, for pictures of more pixels than Pillow calls safe and for modes without a
    known range.
    """
    try:
        image = Image.open(io.BytesIO(data))
        if image.width * image.height > (Image.MAX_IMAGE_PIXELS or float("inf")):
            raise DataError(f"{image.width}x{image.height} pixels is more than {Image.MAX_IMAGE_PIXELS}; shrink it.")
        return to_rgb(ImageOps.exif_transpose(image))
    except DataError:
        raise
    except Image.DecompressionBombError as error:
        raise DataError(f"{error} Shrink the picture.") from error
    except UnidentifiedImageError as error:
        raise DataError(f"no picture in a format that Pillow reads; it begins with {data[:12]!r}.") from error
    except BROKEN_FILE_ERRORS as error:
        raise DataError(
            f"not a whole picture ({error or type(error).__name__}); {len(data)} bytes were read."
        ) from error


def to_rgb(image: Image.Image) -> Image.Image:
    """8-bit RGB of a picture of any mode; see open_upright."""
    if image.mode.startswith("I"):
        grey = np.asarray(image, dtype=np.int64).clip(0, 65535)
        return Image.fromarray(((grey * 255 + 32767) // 65535).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise DataError("a picture of floating-point numbers has no agreed range of brightness; save it as 8 bit.")
    if image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


class MediaStore:
    """Pictures by handle, with the model inputs of those used last.

    A handle is the SHA-256 of the encoded file and of the resizing rule: equal pictures share one handle, in every
    process and every run. The store keeps where a picture can be read again, not its pixels. Safe for threads.
    """

    def __init__(self, reader: Reader, cache_bytes: int = 1 << 30) -> None:
        self.reader = reader
        self._pictures: dict[str, Picture] = {}
        self._readers: dict[str, Callable[[], bytes]] = {}
        self._cache: OrderedDict[str, dict[str, np.ndarray]] = OrderedDict()
        self._cache_bytes = cache_bytes
        self._cached_bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._pictures)

    def add(self, image: Any, folder: Path | None = None, reread: Callable[[], bytes] | None = None) -> Picture:
        """Take a picture in: a PIL image, a path, the bytes of a file or {"bytes": ..., "path": ...}.

        Relative paths start from `folder`. The picture is decoded wholly once, to find out that it can be.
        `reread` gives the same bytes again later, so that the store need not hold them.
        Raises DataError that names the file.
        """
        data, path = read_picture(image, folder)
        try:
            picture = self._measure(data)
        except DataError as error:
            name = path or (image.get("path") if isinstance(image, dict) else None) or "without a file name"
            raise DataError(f"picture {name}: {error}") from error
        if path is not None:
            reread = path.read_bytes
        with self._lock:
            self._pictures.setdefault(picture.handle, picture)
            self._readers.setdefault(picture.handle, reread or functools.partial(_held, data))
        return picture

    def picture(self, handle: str) -> Picture:
        return self._pictures[handle]

    def num_tokens(self, handle: str) -> int:
        return self._pictures[handle].num_tokens

    def image(self, handle: str) -> Image.Image:
        """The upright RGB picture at the size that the model sees."""
        picture = self._pictures[handle]
        image = open_upright(self._readers[handle]())
        return self.reader.resize(image, picture.fitted)

    def inputs(self, handle: str) -> dict[str, np.ndarray]:
        """Model inputs of one picture, as the model's family names and shapes them (see data/processor.py).

        The arrays are shared by all callers: do not write to them.
        """
        with self._lock:
            if handle in self._cache:
                self._cache.move_to_end(handle)
                return self._cache[handle]
        inputs = self.reader.inputs(self.image(handle))
        self._remember(handle, inputs)
        return inputs

    def _measure(self, data: bytes) -> Picture:
        handle = hashlib.sha256(data + self.reader.rule.encode()).hexdigest()
        known = self._pictures.get(handle)
        if known is not None:
            return known
        size = open_upright(data).size
        return Picture(handle, size, self.reader.measure(*size))

    def _remember(self, handle: str, inputs: dict[str, np.ndarray]) -> None:
        with self._lock:
            if handle in self._cache:
                return
            self._cache[handle] = inputs
            self._cached_bytes += _num_bytes(inputs)
            while self._cached_bytes > self._cache_bytes and len(self._cache) > 1:
                _, dropped = self._cache.popitem(last=False)
                self._cached_bytes -= _num_bytes(dropped)


def read_picture(image: Any, folder: Path | None) -> tuple[bytes, Path | None]:
    """The encoded bytes of a picture given in any form, and its file if it has one of its own."""
    if isinstance(image, dict):
        image = image.get("bytes") or image.get("path")
    if isinstance(image, (bytes, bytearray, memoryview)):
        return bytes(image), None
    if isinstance(image, Image.Image):
        return _encode(image), None
    if not isinstance(image, (str, os.PathLike)) or not str(image):
        raise DataError(f"a picture must be a path, bytes or {{'bytes', 'path'}}, but it is {image!r:.80}.")
    if "://" in str(image):
        raise DataError(f"{image}: pictures are not fetched from the network; download them and give their paths.")
    path = Path(image).expanduser()
    if not path.is_absolute():
        if folder is None:
            raise DataError(f"picture {path}: a relative path needs data.image_dir, as the rows have no folder here.")
        path = folder / path
    try:
        return path.read_bytes(), path.absolute()
    except OSError as error:
        cure = "" if Path(image).is_absolute() else " (relative paths start from data.image_dir or the data file)"
        raise DataError(f"picture {path}: {error.strerror or error}{cure}.") from error


def _encode(image: Image.Image) -> bytes:
    """PNG bytes of a picture in memory, upright, as its EXIF data does not survive."""
    buffer = io.BytesIO()
    upright = ImageOps.exif_transpose(image)
    if upright.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        upright = to_rgb(upright)
    upright.save(buffer, format="PNG")
    return buffer.getvalue()


def _held(data: bytes) -> bytes:
    return data


def _num_bytes(inputs: dict[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in inputs.values())
