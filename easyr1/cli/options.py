"""The few options that stand beside key=value settings on a command line."""

from collections.abc import Sequence

from easyr1.config.names import did_you_mean
from easyr1.errors import ConfigError

DRY_RUN = "--dry-run"
HELP = ("-h", "--help")


def split(arguments: Sequence[str], known: Sequence[str] = ()) -> tuple[set[str], list[str]]:
    """The options among the arguments, and all else in order. ConfigError for an option that is not `known`.

    >>> split(["data.seed=7", "--dry-run"], ["--dry-run"])
    ({'--dry-run'}, ['data.seed=7'])
    """
    options = {argument for argument in arguments if argument.startswith("-")}
    for option in options - set(known):
        if "." in option:
            raise ConfigError(option, f"settings have no sign before them: {option.lstrip('-')}")
        there = f"there is {', '.join((*known, HELP[1]))}"
        raise ConfigError(option, f"no such option; {there}{did_you_mean(option, (*known, *HELP))}")
    return options, [argument for argument in arguments if argument not in options]
