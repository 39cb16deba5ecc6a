"""Videos: a file or a row of frame pictures -> sampled frames, their times, and the model inputs of Qwen-VL models.

What frames are taken, how large they are and how many tokens they cost follows from the header alone. Knows the rules
of the families; does not know rows. Files are decoded by PyAV, if it is installed.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from easyr1.data.decode import at, local_file, open_upright, read_picture, upright_size
from easyr1.data.processor import PatchRule, fit, patch_rule
from easyr1.errors import ConfigError, DataError

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
TIMED_BY_TEXT = ("qwen3_vl", "qwen3_vl_moe")  # the others know time by their positions
MIN_FRAMES = 4  # taken of a video that has so many, however short it is
FRAME_FILES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
CHUNK = 1 << 20  # bytes that are hashed at a time


@dataclass(frozen=True)
class Footage:
    """What is known of a video without its pixels."""

    frames: int
    size: tuple[int, int]  # (width, height), upright
    fps: float | None  # None: the frames are sampled already
    digest: str  # SHA-256 of the content


@dataclass(frozen=True, eq=False)
class Clip:
    """What a video becomes in a prompt."""

    indices: tuple[int, ...]  # frames of the footage that are taken
    fitted: tuple[int, int]  # (width, height) of each, as the model sees it
    grid: tuple[int, int, int]  # patches: times, rows, columns
    seconds_per_grid: float  # between two times of the grid
    ids: np.ndarray  # int64, in the place of the one placeholder token
    before: str = ""
    after: str = ""


class Video(Protocol):
    """Where the frames of one video come from."""

    footage: Footage
    is_light: bool  # whether it holds no pixels

    def read(self, indices: Sequence[int]) -> list[Image.Image]:
        """These frames, upright and RGB; indices rise. Raises DataError for what cannot be decoded."""
        ...


class VideoReader:
    """Prepares videos for a Qwen2-VL, Qwen2.5-VL or Qwen3-VL model. Safe for threads."""

    def __init__(
        self,
        image_processor: Any,
        model_type: str,
        tokens: tuple[int, int, int],
        encode: Callable[[str], list[int]],
        *,
        fps: float = 2.0,
        max_frames: int = 768,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
    ) -> None:
        """`tokens`: ids of video, vision start and vision end; `encode` gives the ids of plain text.

        Pixel limits hold for each frame; those that are None are the image processor's own. Raises ConfigError for
        other families.
        """
        if model_type not in FAMILIES:
            raise ConfigError("data.video_key", f"videos work with {', '.join(FAMILIES)}, not with {model_type}.")
        self.token, self._start, self._end = tokens
        self.model_type = model_type
        self.patches = patch_rule(image_processor, min_pixels, max_pixels)
        self.temporal = int(image_processor.temporal_patch_size)
        self.fps = fps
        self.max_frames = max_frames
        self.rule = f"{model_type} {self.patches} {self.temporal} {fps} {max_frames}"
        self._encode = encode
        self._image_processor = image_processor

    def measure(self, footage: Footage) -> Clip:
        """Which frames are taken, their size and their ids. Raises DataError for frames of an extreme shape."""
        indices = sample(footage, self.fps, self.max_frames, self.temporal, self.model_type in TIMED_BY_TEXT)
        fitted = fit_frames(len(indices), *footage.size, self.patches, self.model_type, self.temporal)
        patch, side = self.patches.patch_size, self.patches.token_side
        times = -(-len(indices) // self.temporal)
        fps = self.fps if footage.fps is None else footage.fps
        sampled_fps = len(indices) / footage.frames * fps
        tokens = (fitted[0] // side) * (fitted[1] // side)
        return Clip(
            indices=indices,
            fitted=fitted,
            grid=(times, fitted[1] // patch, fitted[0] // patch),
            seconds_per_grid=self.temporal / sampled_fps,
            ids=self._ids(timestamps(indices, fps, self.temporal), tokens),
        )

    def resize(self, image: Image.Image, fitted: tuple[int, int]) -> Image.Image:
        if image.size == fitted:
            return image
        return image.resize(fitted, Image.Resampling(int(self._image_processor.resample)))

    def inputs(self, video: Video, clip: Clip) -> dict[str, np.ndarray]:
        """pixel_values_videos (patches, channels) float32, video_grid_thw (1, 3) int64; of Qwen2.5-VL also seconds."""
        frames = [self._frame(image, clip.fitted) for image in video.read(clip.indices)]
        frames += frames[-1:] * (-len(frames) % self.temporal)
        pairs = [frames[place : place + self.temporal] for place in range(0, len(frames), self.temporal)]
        patches = [np.stack(pair, axis=2).reshape(len(pair[0]), -1) for pair in pairs]
        made = {
            "pixel_values_videos": np.concatenate(patches),
            "video_grid_thw": np.array([clip.grid], dtype=np.int64),
        }
        if self.model_type == "qwen2_5_vl":
            made["second_per_grid_ts"] = np.array([clip.seconds_per_grid], dtype=np.float32)
        return made

    def _frame(self, image: Image.Image, fitted: tuple[int, int]) -> np.ndarray:
        """(patches, colours, side, side): one frame as the image processor cuts a picture, without its repetition."""
        processed = self._image_processor(images=[self.resize(image, fitted)], do_resize=False, return_tensors="np")
        side = self.patches.patch_size
        patches = np.asarray(processed["pixel_values"], dtype=np.float32)
        return patches.reshape(len(patches), -1, self.temporal, side, side)[:, :, 0]

    def _ids(self, times: Sequence[float], tokens: int) -> np.ndarray:
        """The video's tokens; Qwen3-VL has the time in words before those of each moment."""
        moment = [self.token] * tokens
        if self.model_type not in TIMED_BY_TEXT:
            return np.array(moment * len(times), dtype=np.int64)
        parts = [[*self._encode(f"<{time:.1f} seconds>"), self._start, *moment, self._end] for time in times]
        return np.array([token for part in parts for token in part], dtype=np.int64)


def sample(footage: Footage, fps: float, max_frames: int, temporal: int, spread: bool) -> tuple[int, ...]:
    """Indices of `fps` frames a second, at most `max_frames`, as the family's own video processor takes them.

    `spread` takes first and last frame, too (Qwen3-VL); the others take the first of every equal part. Frames that
    are sampled already are all taken, as long as they are not too many.

    >>> sample(Footage(20, (8, 8), 10.0, ""), 2.0, 768, 2, spread=False)
    (0, 5, 10, 15)
    >>> sample(Footage(20, (8, 8), 10.0, ""), 2.0, 768, 2, spread=True)
    (0, 6, 13, 19)
    """
    total = footage.frames
    wanted = total if footage.fps is None else total / footage.fps * fps
    count = min(max(int(wanted) if spread else wanted, MIN_FRAMES), max_frames, total)
    if footage.fps is None:
        count = min(total, max_frames)
    elif not spread:
        count = int(count // temporal) * temporal
    count = max(int(count), 1)
    if spread:
        return tuple(np.linspace(0, total - 1, count).round().astype(int).tolist())
    return tuple(int(place * total / count) for place in range(count))


def timestamps(indices: Sequence[int], fps: float, temporal: int) -> list[float]:
    """Seconds in the middle of each group of `temporal` frames; the last group is filled with its last frame.

    >>> timestamps([0, 5, 10], fps=10.0, temporal=2)
    [0.25, 1.0]
    """
    filled = [*indices, *[indices[-1]] * (-len(indices) % temporal)]
    return [
        (filled[place] / fps + filled[place + temporal - 1] / fps) / 2 for place in range(0, len(filled), temporal)
    ]


def fit_frames(
    frames: int, width: int, height: int, rule: PatchRule, model_type: str, temporal: int
) -> tuple[int, int]:
    """(width, height) of every frame: transformers' rule, which for Qwen3-VL counts the pixels of all frames together.

    The limits of `rule` are those of one frame. Raises DataError for frames of an extreme shape.
    """
    if model_type not in TIMED_BY_TEXT:
        return fit(width, height, rule)
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize

    frames = max(frames, temporal)
    try:
        fitted_height, fitted_width = smart_resize(
            num_frames=frames,
            height=height,
            width=width,
            temporal_factor=temporal,
            factor=rule.token_side,
            min_pixels=rule.min_pixels * frames,
            max_pixels=rule.max_pixels * frames,
        )
    except ValueError as error:
        raise DataError(f"{width}x{height} pixels: {error}; crop or pad the video.") from error
    return fitted_width, fitted_height


def open_video(item: Any, folder: Path | None) -> Video:
    """The video of one item of a row: a file, a folder of frames, a list of frames, or {"frames": ..., "fps": ...}.

    Frames are pictures in any form, with `fps` of them a second; without it they are sampled already. Relative paths
    start from `folder`. Raises DataError that names the file.
    """
    if isinstance(item, dict) and item.get("frames") is not None:
        return _frames(item["frames"], folder, item.get("fps"))
    if isinstance(item, dict):
        item = item.get("path") or item.get("bytes")
    if isinstance(item, (bytes, bytearray, memoryview)):
        raise DataError("a video must be a file, a folder or a list of frames, not bytes; write it into a file.")
    return _frames(item, folder, None)


def _frames(given: Any, folder: Path | None, fps: Any) -> Video:
    if fps is not None and (not isinstance(fps, (int, float)) or not fps > 0):
        raise DataError(f"fps of a video must be a number above 0, but it is {fps!r:.80}.")
    if isinstance(given, (list, tuple)):
        return FrameVideo([_item(frame, folder) for frame in given], fps)
    path = local_file(given, folder, "video")
    if not path.is_dir():
        return FileVideo(path)
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in FRAME_FILES)
    if not files:
        raise DataError(f"video {path}: no frames ({', '.join(FRAME_FILES)}) in this folder.")
    return FrameVideo(list(files), fps)


def _item(frame: Any, folder: Path | None) -> Any:
    """A frame's file, which is read when it is needed, or what it is in itself."""
    if isinstance(frame, dict) and not frame.get("bytes"):
        frame = frame.get("path")
    return local_file(frame, folder, "frame") if isinstance(frame, (str, Path)) else frame


class FrameVideo:
    """A video that is given as pictures."""

    def __init__(self, frames: Sequence[Any], fps: float | None) -> None:
        if not frames:
            raise DataError("a video has no frames.")
        self._frames = frames
        self.is_light = all(isinstance(frame, Path) for frame in frames)
        self._digests, sizes = [], []
        for number in range(len(frames)):
            data = self._data(number)
            self._digests.append(hashlib.sha256(data).hexdigest())
            with at(self._name(number)):
                sizes.append(upright_size(data))
        if odd := next((number for number, size in enumerate(sizes) if size != sizes[0]), None):
            raise DataError(f"frame {odd} is {sizes[odd]} pixels large, but frame 0 {sizes[0]}.")
        digest = hashlib.sha256(f"{fps} {self._digests}".encode()).hexdigest()
        self.footage = Footage(len(frames), sizes[0], fps, digest)

    def read(self, indices: Sequence[int]) -> list[Image.Image]:
        return [self._frame(number) for number in indices]

    def _frame(self, number: int) -> Image.Image:
        data = self._data(number)
        with at(self._name(number)):
            if hashlib.sha256(data).hexdigest() != self._digests[number]:
                raise DataError("the file has changed since it was measured.")
            return open_upright(data)

    def _name(self, number: int) -> str:
        frame = self._frames[number]
        return f"frame {number}, {frame}" if isinstance(frame, Path) else f"frame {number}"

    def _data(self, number: int) -> bytes:
        return read_picture(self._frames[number], None)[0]


class FileVideo:
    """A video file. Its frames are counted by its packets, as headers may be wrong."""

    is_light = True

    def __init__(self, path: Path) -> None:
        self._path = path
        with _opened(path) as container:
            stream = container.streams.video[0]
            fps = stream.average_rate or stream.guessed_rate
            first = next(iter(container.decode(stream)), None)
            if first is None or not fps:
                raise DataError(f"video {path}: it has no frames.")
            size = _upright(first).size
        with _opened(path) as container:
            packets = container.demux(container.streams.video[0])
            count = sum(1 for packet in packets if packet.size and not packet.is_discard)
        self.footage = Footage(count, size, float(fps), _file_digest(path))

    def read(self, indices: Sequence[int]) -> list[Image.Image]:
        """Frames behind the last one that can be decoded are that one, but more than a tenth may not be missing."""
        if _file_digest(self._path) != self.footage.digest:
            raise DataError(f"video {self._path}: the file has changed since it was measured.")
        wanted, found, last, decoded = set(indices), {}, None, 0
        with _opened(self._path) as container:
            for number, frame in enumerate(container.decode(container.streams.video[0])):
                last, decoded = frame, number + 1
                if number in wanted:
                    found[number] = _upright(frame)
        if last is None or decoded < 0.9 * self.footage.frames:
            raise DataError(f"video {self._path}: {decoded} of {self.footage.frames} frames can be decoded.")
        return [found[number] if number in found else _upright(last) for number in indices]


class _opened:
    """A container of PyAV; what it raises becomes a DataError that names the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Any:
        try:
            import av  # pyright: ignore[reportMissingImports]
            from av.error import FFmpegError  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise DataError(
                f"video {self._path}: video files need PyAV; pip install 'easyr1[video]', or give a list of frames."
            ) from error
        self._errors = (FFmpegError, OSError, ValueError)
        if not self._path.is_file():
            raise DataError(f"video {self._path}: there is no such file.")
        try:
            self._container = av.open(str(self._path))
        except self._errors as error:
            raise DataError(f"video {self._path}: cannot be opened ({error}).") from error
        if not self._container.streams.video:
            self._container.close()
            raise DataError(f"video {self._path}: it has no pictures, only sound or text.")
        return self._container

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._container.close()
        if isinstance(error, self._errors) and not isinstance(error, DataError):
            raise DataError(f"video {self._path}: cannot be decoded ({error}).") from error


def _upright(frame: Any) -> Image.Image:
    image = frame.to_image().convert("RGB")
    quarters = round(getattr(frame, "rotation", 0) / 90) % 4
    return image.rotate(90 * quarters, expand=True) if quarters else image


def _file_digest(path: Path) -> str:
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                found.update(chunk)
    except OSError as error:
        raise DataError(f"video {path}: {error.strerror or error}.") from error
    return found.hexdigest()
