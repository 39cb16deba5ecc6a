"""What a run says on the screen: to people in full or in brief, or to programs as JSON. Knows no metric.

People read standard error. Without a terminal, with NO_COLOR and on a dumb one, text is plain and no bars are drawn.
"""

import logging
import os
import re
import sys
import threading
from contextlib import suppress
from typing import IO, Any, Literal, cast

from rich.console import Console
from rich.text import Text

from easyr1.tracking.jsonl import encode_row

Mode = Literal["full", "quiet", "json"]
_speaking = threading.RLock()  # threads log, too: behind two that speak at once a quiet console would stay loud


def open_screen(mode: Mode = "full") -> Console:
    """The console of a run, and log records of all packages on it.

    In quiet and in JSON mode it shows nothing by itself (`Console.quiet`): no tables, notes and bars. What is to be
    seen nevertheless is written by `say`, and in JSON mode by `say_row` to the standard output, which is then kept
    from everyone else in this process and those that it starts.
    """
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") in ("dumb", "unknown")
    own_output = _guarded_output() if mode == "json" else None
    console = Console(
        file=cast(IO[str], Outlet(own_output)),
        force_terminal=False if plain or own_output else None,
        quiet=mode != "full",
    )
    errors = console
    if own_output is not None:
        errors = Console(file=cast(IO[str], Outlet(None)), force_terminal=False)
    logging.basicConfig(level=logging.WARNING, handlers=[LogLines(errors)], force=True)
    return console


class Outlet:
    """A stream that its reader may leave (a closed terminal, `| head`): what it can no longer take is dropped.

    A run of days ends for no such reason, which it would otherwise: rich leaves the process at a broken pipe.
    """

    def __init__(self, stream: IO[str] | None) -> None:
        """None: whatever the standard error is when something is said."""
        self._own = stream

    @property
    def _stream(self) -> IO[str]:
        # behind a bar rich puts a proxy in its place, which would write here again
        return self._own or getattr(sys.stderr, "rich_proxied_file", sys.stderr)

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def say(console: Console, start: str, rest: object, style: str = "bold") -> None:
    """One line, however long, also on a quiet console; `start` is set off where there is a terminal."""
    # Text, not markup: an answer may well contain [brackets].
    line = Text(start, style=style) + Text(str(rest), style="not bold")
    with _speaking:
        quiet, console.quiet = console.quiet, False
        try:
            console.print(line, soft_wrap=True, highlight=False)
        finally:
            console.quiet = quiet


def say_row(console: Console, **fields: object) -> None:
    """One JSON object as a line."""
    console.file.write(encode_row(fields) + "\n")
    console.file.flush()


class Once:
    """Which kinds of messages were told already. Messages that differ in numbers alone are of one kind."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def count(self, message: str) -> int:
        """How often this kind has come, this time included."""
        kind = re.sub(r"\d+", "#", message)
        self._told[kind] = self._told.get(kind, 0) + 1
        return self._told[kind]


class LogLines(logging.Handler):
    """Log records as lines, each kind of warning once: days of one warning would hide all others."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._once = Once()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except (TypeError, ValueError, KeyError):  # arguments that do not fit: the mistake of a library, not the run's
            message = f"{record.msg} {record.args}"
        if record.levelno <= logging.WARNING and self._once.count(message) > 1:
            return
        if record.exc_info:
            message += "\n" + logging.Formatter().formatException(record.exc_info)
        say(self._console, f"{record.levelname.lower()}  ", message, "bold yellow")


def _guarded_output():
    """Standard output for us alone: what others write there, in this process or its children, goes to the errors."""
    sys.stdout.flush()
    own = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    os.dup2(2, 1)
    return own
