"""The process in which the user's reward file lives: imports it, calls it, checks what it returns.

It starts before any model and stays small: nothing here imports torch. It talks over one connection and ends when that
closes, or at once when its parent dies, even in the middle of a call that never returns. What the user's code prints
goes where the parent's output goes.
"""

import contextlib
import fcntl
import importlib.util
import inspect
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from easyr1.rewards.contract import Breach, check_batch, check_scores

NUM_FRAMES_SHOWN = 6


@dataclass(frozen=True)
class Description:
    """What the file says about itself."""

    reward_name: str
    reward_type: Any  # as written, not yet checked
    functions: tuple[str, ...]  # that the file defines
    is_function: bool  # the wanted one exists and can be called
    num_positional: int = 1  # arguments without a default that are not among `required`; one, the input, is right
    keywords: tuple[str, ...] = ()  # keyword arguments that it knows
    required: tuple[str, ...] = ()  # those without a default
    takes_any_keyword: bool = False


@dataclass(frozen=True)
class Failure:
    """The user's code raised, or returned something outside the contract."""

    message: str
    index: int | None = None  # sample it concerns; None if that is unknown


def serve(connection_fd: int, lifeline_fd: int) -> None:
    """Answer requests until the connection closes.

    First request: (path, function name), answered by Description or Failure. Every other request: (inputs, kwargs, one
    by one?), answered by one list of scores, or one dict of scores per input; a Failure ends the answer early.
    """
    for fd in (connection_fd, lifeline_fd):
        os.set_inheritable(fd, False)
    die_with_parent(lifeline_fd)
    with Connection(connection_fd) as connection, contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        path, function_name = connection.recv()
        module = import_file(path)
        if isinstance(module, Failure):
            connection.send(module)
            return
        connection.send(describe(module, function_name))
        while True:
            inputs, kwargs, one_by_one = connection.recv()
            function = getattr(module, function_name)
            replies = score_each(function, inputs, kwargs) if one_by_one else [score_all(function, inputs, kwargs)]
            for reply in replies:
                connection.send(reply)


def die_with_parent(lifeline_fd: int) -> None:
    """Have the kernel kill this process and its children once the parent's end of the lifeline closes.

    The parent never writes to it. A thread that waits would not do: a regular expression that runs forever holds the
    interpreter's lock. Outside Linux, where this does not exist, an idle process still ends with the connection.
    """
    if not hasattr(fcntl, "F_SETSIG"):
        return
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline_fd], [], [], 0)[0]:  # it closed before we listened
        os._exit(1)


def import_file(path: str) -> ModuleType | Failure:
    """The module of a file, under a name of its own, so that a file called math.py hides nothing.

    Its folder goes to the end of the search path: the file may import its neighbours, but they hide nothing either.
    """
    name = f"easyr1_reward_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        return Failure("is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.append(str(Path(path).parent))
    failure = attempt(partial(spec.loader.exec_module, module), "cannot be imported:")
    return failure or module


def describe(module: ModuleType, function_name: str) -> Description:
    """What the parent must know before it lets the run start."""
    function = getattr(module, function_name, None)
    functions = tuple(
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    )
    about = {
        "reward_name": str(getattr(module, "REWARD_NAME", Path(str(module.__file__)).stem)),
        "reward_type": getattr(module, "REWARD_TYPE", "batch"),
        "functions": functions,
        "is_function": callable(function),
    }
    try:
        parameters = list(inspect.signature(function).parameters.values()) if callable(function) else []
    except ValueError:  # written in C, without a signature
        return Description(**about, takes_any_keyword=True)
    return Description(**about, **describe_parameters(parameters))


def describe_parameters(parameters: Sequence[inspect.Parameter]) -> dict[str, Any]:
    """How many inputs a function wants and which keyword arguments: all parameters after the first, save * and /."""
    has_input = bool(parameters) and parameters[0].kind not in (
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    )
    others = parameters[1:] if has_input else parameters
    by_name = [
        p for p in others if p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    ]
    positional = [p for p in others if p.kind is inspect.Parameter.POSITIONAL_ONLY and p.default is p.empty]
    return {
        "num_positional": int(has_input) + len(positional),
        "keywords": tuple(p.name for p in by_name),
        "required": tuple(p.name for p in by_name if p.default is p.empty),
        "takes_any_keyword": any(p.kind is inspect.Parameter.VAR_KEYWORD for p in others),
    }


def score_all(
    function: Callable[..., Any], inputs: Sequence[dict], kwargs: Mapping[str, Any]
) -> list[dict[str, float]] | Failure:
    """One call with all inputs."""
    num_inputs = len(inputs)  # counted first: the function may empty the list
    return attempt(lambda: check_batch(function(inputs, **kwargs), num_inputs))


def score_each(
    function: Callable[..., Any], inputs: Sequence[dict], kwargs: Mapping[str, Any]
) -> Iterator[dict[str, float] | Failure]:
    """One call and one reply per input, so that the parent knows which one is running; ends after a Failure."""
    for index, item in enumerate(inputs):
        reply = attempt(partial(score_one, function, item, kwargs, index))
        if isinstance(reply, Failure):
            yield Failure(reply.message, index)
            return
        yield reply


def score_one(function: Callable[..., Any], item: dict, kwargs: Mapping[str, Any], index: int) -> dict[str, float]:
    return check_scores(function(item, **kwargs), index)


def attempt(work: Callable[[], Any], verb: str = "raised") -> Any:
    """What the user's code gave, or a Failure that a person can act on."""
    try:
        return work()
    except Breach as breach:
        return Failure(str(breach), breach.index)
    except Exception as error:
        return Failure(f"{verb} {tail(error)}")


def tail(error: Exception) -> str:
    """The error in a line, and below it the last calls that led to it, without ours."""
    summary = traceback.TracebackException.from_exception(error)
    frames = [
        frame
        for frame in summary.stack
        if frame.filename != __file__ and not frame.filename.startswith("<frozen importlib")
    ]
    calls = traceback.StackSummary.from_list(frames[-NUM_FRAMES_SHOWN:]).format()
    return "".join([*summary.format_exception_only(), *calls]).rstrip()
