"""One value against the type of its key: conversion, allowed names, ranges. Knows no key by name."""

import math
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from easyr1.config.names import did_you_mean
from easyr1.config.ranges import Range
from easyr1.config.schema import Config, walk
from easyr1.errors import ConfigError

_SCALARS: Mapping[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


class _Misfit(Exception):
    """The value is not of the asked kind."""


def convert(key: str, value: Any, kind: Any) -> Any:
    """`value` as a `kind` (a type of the schema): lists become tuples, 1 a float, 1e6 a whole number, 7 the text "7".

    Raises ConfigError with the key, what was given and what is expected.
    """
    try:
        return _fit(value, kind)
    except _Misfit:
        hint = did_you_mean(str(value), _names(kind))
        raise ConfigError(key, f"got {value!r}, expected {in_words(kind)}{hint}") from None


def check_values(config: Config) -> None:
    """Check every value of a Config that was made in Python; `load` has done so already. Raises ConfigError."""
    for key, kind, value in walk(config):
        convert(key, value, kind)


def in_words(kind: Any) -> str:
    """What a type of the schema allows, for messages and documentation: "a whole number of at least 1, or null"."""
    arms = _arms(kind)
    if len(arms) > 1:
        return ", or ".join("null" if arm is types.NoneType else in_words(arm) for arm in arms)
    origin: Any = get_origin(kind)
    args: tuple[Any, ...] = get_args(kind)
    if origin is Annotated:
        return f"{in_words(args[0])} {args[1]}"
    if origin is Literal:
        names = ", ".join(map(str, args))
        return f"one of {names}" if len(args) > 1 else names
    if origin is tuple:
        count = "" if ... in args else f"{len(args)}, each "
        return f"a list of {count}{in_words(args[0])}"
    return _SCALARS.get(kind, "a mapping")


def is_mapping(kind: Any) -> bool:
    """Whether keys of the user's own choice stand below a key of this type."""
    return get_origin(kind) is Mapping


def takes_text(kind: Any) -> bool:
    """Whether text is among what a key of this type takes."""
    return str in _arms(kind)


def _arms(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _names(kind: Any) -> tuple[str, ...]:
    return tuple(str(name) for arm in _arms(kind) if get_origin(arm) is Literal for name in get_args(arm))


def _fit(value: Any, kind: Any) -> Any:
    origin = get_origin(kind)
    if kind in _FIT:
        return _FIT[kind](value)
    if origin in (Union, types.UnionType):
        return _fit_any(value, get_args(kind))
    if origin is Annotated:
        return _fit_range(value, *get_args(kind))
    if origin is tuple:
        return _fit_list(value, get_args(kind))
    if origin is Literal:
        return _require(value, value in get_args(kind) and not isinstance(value, bool))
    return dict(_require(value, isinstance(value, Mapping)))


def _require(value: Any, fits: bool) -> Any:
    if not fits:
        raise _Misfit
    return value


def _fit_any(value: Any, arms: tuple[Any, ...]) -> Any:
    for arm in arms:
        with suppress(_Misfit):
            return _fit(value, arm)
    raise _Misfit


def _fit_range(value: Any, kind: Any, bounds: Range) -> Any:
    number = _fit(value, kind)
    return _require(number, bounds.holds(number))


def _fit_list(value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    _require(value, isinstance(value, list | tuple))
    if kinds[-1] is ...:
        kinds = kinds[:1] * len(value)
    _require(value, len(kinds) == len(value))
    return tuple(_fit(item, kind) for item, kind in zip(value, kinds, strict=True))


def _fit_bool(value: Any) -> bool:
    return _require(value, isinstance(value, bool))


def _fit_int(value: Any) -> int:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return int(_require(value, whole and not isinstance(value, bool)))


def _fit_float(value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(_require(value, number and math.isfinite(value)))


def _fit_str(value: Any) -> str:
    return str(_require(value, isinstance(value, str | int | float) and not isinstance(value, bool)))


def _fit_none(value: Any) -> None:
    return _require(value, value is None)


_FIT: Mapping[Any, Callable[[Any], Any]] = {
    bool: _fit_bool,
    int: _fit_int,
    float: _fit_float,
    str: _fit_str,
    types.NoneType: _fit_none,
}
