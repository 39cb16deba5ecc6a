"""Errors made for the person who runs the training: what was given, what is allowed, what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class ConfigError(ValueError):
    """A setting that is wrong by itself or together with others.

    `key` is the dotted key to change, for example "data.rollout_batch_size".
    """

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key


class DataError(ValueError):
    """A row, file or picture that cannot be used; the message names it."""


class RewardError(ValueError):
    """A reward file that broke its contract; the message names function, sample and row."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be written or read; the message names the file."""


class SyncError(ValueError):
    """A sampler that no longer computes what the trainer does; the message has both numbers."""


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """What goes wrong while a part of a checkpoint is written to `place`, as a CheckpointError."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{place} cannot be written: {error}") from error


def first_line(error: BaseException) -> str:
    """What a library's error says in its first line, or its kind where it says nothing.

    >>> first_line(ValueError("no such key\\nTraceback ...")), first_line(KeyboardInterrupt())
    ('no such key', 'KeyboardInterrupt')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
