"""Trackers that are packages of their own: what each needs before a run can start, and the words for what is missing.

Imports none of them. A login is looked for in the places where each package looks; where one may be, the package
itself decides, before a model is loaded.
"""

import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar, cast

from easyr1.errors import ConfigError

KEY = "trainer.logger"
CURE = "trainer.logger=['console','file'] works without it"
Environ = Mapping[str, str]
T = TypeVar("T")


def _always(_: Environ) -> bool:
    return True


@dataclass(frozen=True)
class Service:
    """One tracker, under the name that its package and its extra have."""

    name: str
    title: str
    login: str  # how to log in and how to do without, as part of a sentence
    may_start: Callable[[Environ], bool] = _always  # whether there are signs of a login, or none is needed

    def problem(self, environ: Environ) -> str | None:
        """Why a run could not be logged there."""
        if not is_installed(self.name):
            return not_installed(self.name, "no such package")
        return None if self.may_start(environ) else f"{self.title} has no key on this machine: {self.login}; {CURE}"


def wandb_may_start(environ: Environ) -> bool:
    """A key, a mode without one, or a file in which either may stand."""
    if environ.get("WANDB_API_KEY") or environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    if environ.get("WANDB_MODE", "").lower() in ("offline", "dryrun", "disabled"):
        return True
    home = _home(environ)
    host = environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("//")[-1].split("/")[0]
    logins = [Path(environ["NETRC"])] if environ.get("NETRC") else [home / ".netrc", home / "_netrc"]
    config = Path(environ.get("WANDB_CONFIG_DIR") or home / ".config" / "wandb")
    settings = (config / "settings", Path("wandb", "settings"))
    return any(host in _text(file) for file in logins) or any(_names(file, "api_key", "mode") for file in settings)


def swanlab_may_start(environ: Environ) -> bool:
    """The same for SwanLab."""
    if environ.get("SWANLAB_API_KEY") or environ.get("SWANLAB_SECRETS_DIR"):
        return True
    if environ.get("SWANLAB_MODE", "").lower() in ("offline", "local", "disabled"):
        return True
    own = Path(environ.get("SWANLAB_ROOT") or environ.get("SWANLAB_SAVE_DIR") or _home(environ) / ".swanlab")
    folders = (Path(".swanlab"), own)
    settings = [folder / f"config.{ending}" for folder in folders for ending in ("yaml", "yml")]
    settings += [Path(".env"), Path("swanlab.yaml"), Path("swanlab.yml"), *Path("/etc/swanlab").glob("*.y*ml")]
    return any(_text(folder / ".netrc") for folder in folders) or any(
        _names(file.resolve(), "api_key", "mode") for file in settings
    )


def trackio_may_start(environ: Environ) -> bool:
    """On this machine it needs no login; a Space of the Hugging Face hub does."""
    if not environ.get("TRACKIO_SPACE_ID"):
        return True
    home = Path(environ.get("HF_HOME") or _home(environ) / ".cache" / "huggingface")
    file = Path(environ.get("HF_TOKEN_PATH") or home / "token")
    return bool(environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN") or _text(file))


SERVICES: Mapping[str, Service] = {
    service.name: service
    for service in (
        Service(
            "wandb",
            "W&B",
            "log in once with `wandb login`, or set WANDB_API_KEY, or set WANDB_MODE=offline to keep the run on this "
            "machine",
            wandb_may_start,
        ),
        Service(
            "swanlab",
            "SwanLab",
            "log in once with `swanlab login`, or set SWANLAB_API_KEY, or set SWANLAB_MODE=offline to keep the run on "
            "this machine",
            swanlab_may_start,
        ),
        Service(
            "mlflow",
            "MLflow",
            "MLFLOW_TRACKING_URI says which server or file it writes to, MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD log in there; without them it keeps the run in the working directory",
        ),
        Service("tensorboard", "TensorBoard", "it needs no login; TENSORBOARD_DIR says where it writes"),
        Service(
            "trackio",
            "Trackio",
            "log in once with `hf auth login`, or set HF_TOKEN, or unset TRACKIO_SPACE_ID to keep the run on this "
            "machine, in TRACKIO_DIR",
            trackio_may_start,
        ),
    )
}


def unready(environ: Environ = os.environ) -> dict[str, str]:
    """Why a run could not be logged to each tracker that it could not be logged to."""
    found = {name: service.problem(environ) for name, service in SERVICES.items()}
    return {name: problem for name, problem in found.items() if problem is not None}


def is_installed(package: str) -> bool:
    """Whether it can be imported, without importing it. A folder of old runs with its name is no package."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def not_installed(name: str, reason: object) -> str:
    return f'{name} is not installed ({reason}): `pip install "easyr1[{name}]"` or `pip install {name}`; {CURE}'


@contextmanager
def importing(name: str) -> Iterator[None]:
    """Around the import of the package `name`: ConfigError with the cure where it fails."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(KEY, not_installed(name, error)) from error


def start(name: str, call: Callable[[], T]) -> T:
    """What `call`, which starts a tracker, returns; ConfigError with the cures where it fails.

    Nobody is asked at the terminal for a key that is missing.
    """
    service = SERVICES[name]
    stdin, sys.stdin = sys.stdin, io.StringIO()
    try:
        found, error = attempt(call)
    finally:
        sys.stdin = stdin
    if error is not None:
        raise ConfigError(KEY, f"{service.title} did not start ({error}); {service.login}; {CURE}") from error
    return cast(T, found)


def attempt(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """As `outcome`; what the call prints goes to standard error: in JSON mode the other one is not for it."""
    with redirect_stdout(sys.stderr):
        return outcome(call)


def outcome(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """What the call into a logger returns, or what it raises: each package has errors of its own."""
    try:
        return call(), None
    except Exception as error:
        return None, error


def _home(environ: Environ) -> Path:
    return Path(environ.get("HOME") or Path.home())


def _text(file: Path) -> str:
    """What the file holds; nothing where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _names(file: Path, *words: str) -> bool:
    text = _text(file).lower()
    return any(word in text for word in words)
