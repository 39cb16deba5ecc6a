"""YAML file and dotted command line -> Config. The only file that imports omegaconf; checks single values only."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from easyr1.config.names import unknown_key
from easyr1.config.paths import find_file
from easyr1.config.recipes import expand
from easyr1.config.schema import Config, known_keys, set_leaves, walk
from easyr1.config.values import convert, is_mapping, takes_text
from easyr1.errors import ConfigError, first_line


def load(argv: Sequence[str], base: Mapping[str, Any] | None = None) -> tuple[Config, frozenset[str]]:
    """Config from arguments such as `config=run.yaml` and `data.seed=7`, laid over `base` (as of `to_mapping`).

    Of equal keys the last counts, and all of them beat the file. Also returns the dotted keys that the user set: all
    of the command line, and those of the file whose value is not the default. Raises ConfigError for arguments, files,
    keys and values that cannot be used.
    """
    pairs = [_split(argument) for argument in argv]
    files = [text for key, text in pairs if key == "config"]
    if len(files) > 1:
        raise ConfigError("config", f"given {len(files)} times ({', '.join(files)}); give one file")
    leaves = _defaults()
    _assign_tree(leaves, base or {})
    for file in files:
        _assign_tree(leaves, _read_yaml(file))
    given = set(_differing(leaves))
    for key, text in pairs:
        if key != "config":
            given.update(_assign(leaves, key, _parse(key, text)))
    expand(leaves, frozenset(given))
    return set_leaves(Config(), leaves), frozenset(given)


def from_mapping(tree: Mapping[str, Any]) -> tuple[Config, frozenset[str]]:
    """Config from nested mappings, with the dotted keys that differ from their default. Raises ConfigError."""
    leaves = _defaults()
    _assign_tree(leaves, tree)
    given = frozenset(_differing(leaves))
    expand(leaves, given)
    return set_leaves(Config(), leaves), given


def to_mapping(config: Config) -> dict[str, Any]:
    """The configuration as nested dictionaries of plain values; the reverse of `from_mapping`."""
    tree: dict[str, Any] = {}
    for key, _, value in walk(config):
        *sections, last = key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[last] = list(value) if isinstance(value, tuple) else value
    return tree


def dump(config: Config, given: frozenset[str]) -> str:
    """The configuration as JSON for the run folder: `config`, and under `set_by_user` the keys the user set."""
    return json.dumps({"config": to_mapping(config), "set_by_user": sorted(given)}, indent=2, default=str) + "\n"


def _split(argument: str) -> tuple[str, str]:
    key, equals, text = argument.partition("=")
    if argument.startswith(("-", "+", "~")):
        raise ConfigError(argument, f"arguments are key=value without a sign before them: {argument.lstrip('-+~')}")
    if not equals or not key:
        raise ConfigError(argument, "arguments are key=value, for example data.seed=7 (no spaces around the =)")
    if not text:
        raise ConfigError(key, f"nothing after the =; write {key}=null for no value")
    return key, text


def _parse(key: str, text: str) -> Any:
    """The value of a command line argument; where the key takes text, numbers and dates stay as they were typed."""
    kind, _ = known_keys().get(key, (None, None))
    try:
        value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]), resolve=True)["value"]  # type: ignore[index, call-overload]
    except (YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(key, f"cannot read {text!r} ({first_line(error)}); try quotes: {key}=\"'...'\"") from None
    plain = value is None or isinstance(value, str | list | dict)
    return text if kind is not None and takes_text(kind) and not plain else value


def _read_yaml(path: str) -> Mapping[str, Any]:
    file = find_file(path, "config")
    try:
        tree = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
    except (OSError, YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise ConfigError("config", f"cannot read {path!r} as YAML: {error}") from None
    if not isinstance(tree, Mapping):
        raise ConfigError("config", f"{path!r} holds a list; expected the sections data, worker, algorithm, trainer")
    return tree  # type: ignore[return-value]


def _defaults() -> dict[str, Any]:
    return {key: default for key, (_, default) in known_keys().items()}


def _assign_tree(leaves: dict[str, Any], tree: Mapping[str, Any]) -> None:
    for key, value in tree.items():
        _assign(leaves, str(key), value)


def _assign(leaves: dict[str, Any], key: str, value: Any) -> list[str]:
    """Put `value` under `key`, a leaf, a section or a place below a free mapping; returns the dotted keys set."""
    leaf, below = _locate(key)
    if leaf is None:
        return _assign_section(leaves, key, value)
    kind, _ = known_keys()[leaf]
    if not is_mapping(kind):
        leaves[leaf] = convert(leaf, value, kind)
        return [key]
    for name in reversed(below):
        value = {name: value}
    entries = convert(leaf, value, kind)
    leaves[leaf] = _merge(leaves[leaf], entries) if entries else {}
    return [f"{leaf}.{name}" for name in entries] or [leaf]


def _assign_section(leaves: dict[str, Any], key: str, value: Any) -> list[str]:
    if not any(known.startswith(f"{key}.") for known in known_keys()):
        raise unknown_key(key)
    if value is None:  # a section whose keys are all commented out
        return []
    if not isinstance(value, Mapping):
        raise ConfigError(key, f"got {value!r}, but {key} is a section; set a key below it, such as {_example(key)}")
    return [given for name, inner in value.items() for given in _assign(leaves, f"{key}.{name}", inner)]


def _locate(key: str) -> tuple[str | None, list[str]]:
    """The leaf that `key` is or lies below, and the names below it; (None, []) if there is none."""
    parts = key.split(".")
    for length in range(1, len(parts) + 1):
        leaf = ".".join(parts[:length])
        if leaf in known_keys() and (length == len(parts) or is_mapping(known_keys()[leaf][0])):
            return leaf, parts[length:]
    return None, []


def _merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for name, value in new.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merge(merged[name], value) if both else value
    return merged


def _differing(leaves: Mapping[str, Any]) -> Iterator[str]:
    """Dotted keys whose value is not the default."""
    for leaf, (kind, default) in known_keys().items():
        value = leaves[leaf]
        if value == default:
            continue
        if is_mapping(kind) and value:
            yield from (f"{leaf}.{name}" for name in value if name not in default or value[name] != default[name])
        else:
            yield leaf


def _example(section: str) -> str:
    return next(known for known in known_keys() if known.startswith(f"{section}."))
