"""What was read from picture files before: content hash and size, kept on disk from run to run.

An entry belongs to a path, a file size and a time of change in nanoseconds, or to a place in a table that has a
fingerprint; a file that changed has another key. Every use may fail without harm: the pictures are then read again.
"""

import json
import logging
import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "EASYR1_CACHE"
FILE = "pictures.sqlite"
MOST = 2_000_000  # entries; the oldest go first
SETTLED_NS = 2_000_000_000  # a file changed later than this could change again within the same tick of its clock


class Head(NamedTuple):
    """What is known of a picture's file once its header was read."""

    digest: str  # SHA-256 of the content
    width: int  # upright
    height: int
    name: str = ""  # that a table gives the picture


def cache_folder() -> Path:
    """EASYR1_CACHE, or easyr1 in the user's cache folder."""
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "easyr1"


def file_key(path: Path) -> str | None:
    """The key of a file as it is now; None where it is too fresh to be trusted, or not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    if time.time_ns() - found.st_mtime_ns < SETTLED_NS:
        return None
    return f"{path}|{found.st_size}|{found.st_mtime_ns}|{found.st_ctime_ns}"


class Heads:
    """Lists of heads by key. Safe for threads, and for several processes at once."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` None: the user's cache folder."""
        self._lock = threading.Lock()
        self._new: dict[str, list[Head]] = {}
        self._database: sqlite3.Connection | None = None
        try:
            where = cache_folder() if folder is None else folder
            where.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(where / FILE, check_same_thread=False, timeout=5)
            self._database.execute("CREATE TABLE IF NOT EXISTS heads (key TEXT PRIMARY KEY, heads TEXT)")
        except (OSError, RuntimeError, sqlite3.Error) as error:
            self._give_up(error)

    def get(self, key: str) -> list[Head] | None:
        with self._lock:
            if self._database is None:
                return None
            try:
                row = self._database.execute("SELECT heads FROM heads WHERE key = ?", (key,)).fetchone()
                return None if row is None else [Head(*one) for one in json.loads(row[0])]
            except (sqlite3.Error, ValueError, LookupError, TypeError) as error:
                self._give_up(error)
                return None

    def put(self, key: str, heads: list[Head]) -> None:
        """Remember; written by the next `flush`."""
        with self._lock:
            self._new[key] = heads

    def flush(self) -> None:
        """Write what is new."""
        with self._lock:
            rows = [(key, json.dumps(heads)) for key, heads in self._new.items()]
            self._new.clear()
            if self._database is None or not rows:
                return
            try:
                with self._database:
                    self._database.executemany("INSERT OR REPLACE INTO heads VALUES (?, ?)", rows)
                    self._database.execute(
                        "DELETE FROM heads WHERE rowid <= (SELECT max(rowid) FROM heads) - ?", (MOST,)
                    )
            except sqlite3.Error as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        logger.warning("sizes of pictures are not kept from run to run: %s (%s)", error, FOLDER_VARIABLE)
        self._database = None
