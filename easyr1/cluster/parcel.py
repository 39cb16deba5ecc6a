"""Arguments and results on their way between processes: bytes that plain pickle made.

Plain pickle is the fast way for lists of records, and arrays stay writable: what Ray unpacks from its store by itself
is read-only. Knows nothing of what is inside.
"""

import pickle
import time
import traceback
from dataclasses import dataclass
from typing import Any

from easyr1.errors import CheckpointError, ConfigError, DataError, RewardError

FOR_THE_USER = (ConfigError, DataError, RewardError, CheckpointError)


def pack(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def unpack(parcel: bytes) -> Any:
    return pickle.loads(parcel)


@dataclass(frozen=True)
class Beat:
    """What a rank says of itself. `count` grows with everything that happens."""

    count: int = 0
    call: int = 0  # number of the call that runs or ran last
    method: str = ""  # "": none runs
    done: int = 0
    all: int = 0
    tokens: int = 0  # drawn so far, by a call that samples


@dataclass(frozen=True)
class Outcome:
    """How a call ended on a rank: with a value, or with an error."""

    value: Any = None
    beat: Beat = Beat()  # the last one of the call
    trace: str = ""  # of the error; "" where there is none
    kind: type[ValueError] | None = None  # of an error that is made for the user
    message: str = ""
    key: str = ""  # of a ConfigError
    moment: float = 0.0  # of the error, in seconds of the rank's clock

    @property
    def for_user(self) -> ValueError | None:
        """The error made for the user, as it was raised on the rank."""
        if self.kind is None:
            return None
        if issubclass(self.kind, ConfigError):
            return self.kind(self.key, self.message.removeprefix(f"{self.key}: "))
        return self.kind(self.message)


def failed(error: BaseException, beat: Beat) -> Outcome:
    """The outcome of a call that raised `error`."""
    trace = "".join(traceback.format_exception(error))
    kind = next((kind for kind in FOR_THE_USER if isinstance(error, kind)), None)
    key = getattr(error, "key", "") if kind else ""
    return Outcome(beat=beat, trace=trace, kind=kind, message=str(error), key=key, moment=time.time())
