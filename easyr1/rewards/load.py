"""From the setting `path.py:function` to a reward function that is known to exist and to take its arguments.

The file is imported in a process of its own, never here, so the check needs no torch and cannot disturb the trainer.
Knows nothing of samples.
"""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from easyr1.errors import ConfigError, RewardError
from easyr1.rewards.process import Description
from easyr1.rewards.worker import RewardProcess, RewardSpec, receive_description

FUNCTION_KEY = "worker.reward.reward_function"
KWARGS_KEY = "worker.reward.reward_function_kwargs"
DEFAULT_FUNCTION = "main"
REWARD_TYPES = ("batch", "sequential")


def load_reward(spec: str | None, kwargs: Mapping[str, Any], find_file: Callable[[str, str], Path]) -> RewardSpec:
    """The checked reward function of `worker.reward`.

    Args:
        spec: `path.py:function`, or `path.py` for its function `main`.
        kwargs: arguments passed to the function beside its input.
        find_file: gives the file of a path, or raises ConfigError under the key it is given.

    Raises:
        ConfigError: the setting is wrong: no such file or function, or the function does not take these arguments.
        RewardError: the file cannot be imported, or has an unknown REWARD_TYPE.
    """
    path, function = split_spec(spec)
    file = find_file(path, FUNCTION_KEY)
    if not file.is_file():
        raise ConfigError(FUNCTION_KEY, f"{path!r} is a folder; give a Python file, path.py:function")
    process = RewardProcess(file, function)
    try:
        description = receive_description(process, str(file))
    finally:
        process.close()
    check_function(description, path, function)
    check_kwargs(description, f"{path}:{function}", kwargs)
    if description.reward_type not in REWARD_TYPES:
        raise RewardError(
            f'{file}: REWARD_TYPE = {description.reward_type!r}; write "batch" if the function takes the list of all '
            'samples, "sequential" if it takes one'
        )
    return RewardSpec(file, function, description.reward_name, description.reward_type, dict(kwargs))


def split_spec(spec: str | None) -> tuple[str, str]:
    """Path and function name.

    >>> split_spec("rewards/mine.py:compute_score"), split_spec("mine.py")
    (('rewards/mine.py', 'compute_score'), ('mine.py', 'main'))
    """
    if not spec or not spec.strip():
        raise ConfigError(
            FUNCTION_KEY,
            "no reward function is given; training needs one, for example "
            "examples/reward_function/math.py:compute_score (docs/rewards.md shows how to write your own)",
        )
    path, colon, function = spec.strip().rpartition(":")
    if not colon:
        return function, DEFAULT_FUNCTION
    if not path or not function.isidentifier():
        raise ConfigError(FUNCTION_KEY, f"{spec!r} is not of the form path.py:function")
    return path, function


def check_function(description: Description, path: str, function: str) -> None:
    """ConfigError unless the file has the function and it takes exactly one input."""
    if not description.is_function:
        listed = ", ".join(description.functions) or "none"
        near = difflib.get_close_matches(function, description.functions, n=1)
        hint = f"; did you mean {path}:{near[0]}?" if near else ""
        raise ConfigError(FUNCTION_KEY, f"{path} has no function {function!r} (functions there: {listed}){hint}")
    if description.num_positional != 1:
        raise ConfigError(
            FUNCTION_KEY,
            f"{path}:{function} takes {description.num_positional} inputs; its first parameter gets the sample (or "
            f"the list of all samples), everything else comes by name from {KWARGS_KEY}",
        )


def check_kwargs(description: Description, label: str, kwargs: Mapping[str, Any]) -> None:
    """ConfigError for an argument that the function does not take, or one that it needs and is not given."""
    unknown = [] if description.takes_any_keyword else [key for key in kwargs if key not in description.keywords]
    if unknown:
        near = difflib.get_close_matches(unknown[0], description.keywords, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        known = ", ".join(description.keywords) or "none"
        raise ConfigError(
            f"{KWARGS_KEY}.{unknown[0]}", f"{label} takes no argument of this name (it takes: {known}){hint}"
        )
    missing = [key for key in description.required if key not in kwargs]
    if missing:
        wanted = " ".join(f"{KWARGS_KEY}.{key}=..." for key in missing)
        raise ConfigError(KWARGS_KEY, f"{label} needs {', '.join(missing)}; set {wanted}")
