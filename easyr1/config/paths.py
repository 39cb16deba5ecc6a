"""Where a path in a configuration points to. Knows the package's own examples, reads no file."""

from difflib import get_close_matches
from pathlib import Path

from easyr1.errors import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]


def find_file(path: str, key: str) -> Path:
    """The file or folder that `path`, the value of `key`, means, as an absolute path.

    Raises ConfigError where nothing is there.
    """
    places = _places(path)
    for place in places:
        if place.exists():
            return place
    looked = " and ".join(map(str, places))
    raise ConfigError(key, f"{path!r} does not exist (looked for {looked}){_near_by(places)}")


def locate(path: str) -> Path:
    """Where `path` points to, whether something is there or not."""
    places = _places(path)
    return next((place for place in places if place.exists()), places[0])


def _places(path: str) -> list[Path]:
    """Relative paths start at the working directory; `examples/...` that is not there is looked for in the package,
    so that the shipped files are found from everywhere."""
    wanted = Path(path).expanduser()
    shipped = not wanted.is_absolute() and wanted.parts[:1] == ("examples",)
    return [wanted.absolute(), PACKAGE / wanted] if shipped else [wanted.absolute()]


def _near_by(places: list[Path]) -> str:
    for place in places:
        siblings = [entry.name for entry in place.parent.iterdir()] if place.parent.is_dir() else []
        near = get_close_matches(place.name, siblings, n=1)
        if near:
            return f"; did you mean {near[0]!r}?"
    return ""
