"""Encoded pictures -> their upright size from the header alone, or upright 8-bit RGB pixels.

Knows picture files and their oddities. Does not know models, rows or where a file is kept.
"""

import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

from easyr1.errors import DataError

Seen = TypeVar("Seen")

# What Pillow raises for files that are truncated or broken, by format.
BROKEN_FILE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error)
HEADER_TELLS_SIZE = {"PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP"}  # upright, with the orientation of the header
PNG_TEXT = {b"eXIf", b"tEXt", b"zTXt", b"iTXt"}  # chunks that can say how a picture is to be turned
SIDEWAYS = {5, 6, 7, 8}  # EXIF orientations that swap width and height
JPEG_END = b"\xff\xd9"
TAIL = 1 << 16  # bytes at the end of a JPEG file where its end is looked for


@contextmanager
def at(place: str) -> Iterator[None]:
    """Put a place in front of what a DataError says."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{place}: {error}") from error


def upright_size(data: bytes) -> tuple[int, int]:
    """(width, height) of a picture once it is turned as its EXIF orientation says.

    Only the header is read, but for formats whose header does not tell and for files that look cut off: those are
    decoded. Raises DataError like open_upright.
    """
    return _read(data, _size)


def open_upright(data: bytes) -> Image.Image:
    """Decode a picture wholly, turn it as its EXIF orientation says, and make it 8-bit RGB.

    Transparency is laid on white, as a page or a browser shows it; 16-bit grey is scaled down; of an animation the
    first frame is taken. Raises DataError for broken files, for pictures of more pixels than Pillow calls safe and
    for modes without a known range.
    """
    return _read(data, lambda image, _: to_rgb(ImageOps.exif_transpose(image)))


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


def path_of(image: Any) -> Any:
    """The path by which a picture is given; None for one that is given in itself."""
    if isinstance(image, dict):
        image = None if image.get("bytes") else image.get("path")
    return image if isinstance(image, (str, os.PathLike)) and str(image) else None


def read_picture(image: Any, folder: Path | None) -> tuple[bytes, Path | None]:
    """The encoded bytes of a picture given in any form, and its file if it has one of its own.

    Raises DataError that names what cannot be read. Nothing is fetched from the network.
    """
    if isinstance(image, dict):
        image = image.get("bytes") or image.get("path")
    if isinstance(image, (bytes, bytearray, memoryview)):
        return bytes(image), None
    if isinstance(image, Image.Image):
        return encode(image), None
    path = local_file(image, folder, "picture")
    return read_file(path, "picture", is_relative=not Path(image).expanduser().is_absolute()), path


def local_file(given: Any, folder: Path | None, what: str) -> Path:
    """The absolute path of a picture or video; relative ones start from `folder`. DataError where it is no path."""
    if not isinstance(given, (str, os.PathLike)) or not str(given):
        raise DataError(f"a {what} must be a path, bytes or {{'bytes', 'path'}}, but it is {given!r:.80}.")
    if "://" in str(given):
        raise DataError(f"{given}: {what}s are not fetched from the network; download them and give their paths.")
    try:
        path = Path(given).expanduser()
    except RuntimeError as error:
        raise DataError(f"{what} {given}: {error}.") from error
    if path.is_absolute():
        return path
    if folder is None:
        raise DataError(f"{what} {path}: a relative path needs data.image_dir, as the rows have no folder here.")
    return (folder / path).absolute()


def read_file(path: Path, what: str, is_relative: bool = False) -> bytes:
    """The bytes of a file; DataError that names it, and where relative paths start if it was given as one."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: no name of a file, such as one with a zero byte
        cure = " (relative paths start from data.image_dir or the data file)" if is_relative else ""
        raise DataError(f"{what} {path}: {getattr(error, 'strerror', None) or error}{cure}.") from error


def encode(image: Image.Image) -> bytes:
    """PNG bytes of a picture in memory, upright, as its EXIF data does not survive."""
    buffer = io.BytesIO()
    upright = ImageOps.exif_transpose(image)
    if upright.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        upright = to_rgb(upright)
    upright.save(buffer, format="PNG")
    return buffer.getvalue()


def _read(data: bytes, look: Callable[[ImageFile.ImageFile, bytes], Seen]) -> Seen:
    """What `look` sees in a picture; all that can be wrong with the file becomes a DataError."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > (Image.MAX_IMAGE_PIXELS or float("inf")):
                raise DataError(
                    f"{image.width}x{image.height} pixels is more than {Image.MAX_IMAGE_PIXELS}; shrink it."
                )
            return look(image, data)
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


def _size(image: ImageFile.ImageFile, data: bytes) -> tuple[int, int]:
    if image.mode == "F" or image.format not in HEADER_TELLS_SIZE or _must_be_decoded(str(image.format), data):
        return to_rgb(ImageOps.exif_transpose(image)).size
    # The plain reading of EXIF: that of PNG files decodes the picture first, for what stands behind its pixels.
    orientation = Image.Image.getexif(image).get(ExifTags.Base.Orientation)
    return (image.height, image.width) if orientation in SIDEWAYS else image.size


def _must_be_decoded(form: str, data: bytes) -> bool:
    """Whether a file looks cut off, or says behind its pixels how it is to be turned."""
    if form in ("JPEG", "MPO"):
        return JPEG_END not in data[-TAIL:]
    if form != "PNG":
        return False
    chunks = list(_png_chunks(data))
    pixels = [place for place, (name, _) in enumerate(chunks) if name == b"IDAT"]
    if not pixels or chunks[-1][0] != b"IEND" or chunks[-1][1] > len(data):
        return True
    return any(name in PNG_TEXT for name, _ in chunks[pixels[0] :])


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Name of each chunk, and where it ends; the last one may end behind the data."""
    place = 8
    while place + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, place)
        place += 12 + length
        yield name, place
        if name == b"IEND":
            return
