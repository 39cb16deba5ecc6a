"""The command `easyr1`: finds the subcommand, and makes errors that are the user's readable.

Imports nothing heavy, so that help and mistakes answer at once.
"""

import os
import select
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TextIO

from easyr1 import __version__
from easyr1.cli.options import HELP
from easyr1.cluster.failure import RankError
from easyr1.config.names import did_you_mean
from easyr1.config.supported import check_versions
from easyr1.errors import CheckpointError, ConfigError, DataError, RewardError, SyncError
from easyr1.trainer.stop import Stopped

COMMANDS = {
    "quickstart": ("easyr1.cli.quickstart", "train a tiny vision-language model on real pictures, on this machine"),
    "init": ("easyr1.cli.init", "write a small project for your own data: settings, reward, template, rows"),
    "check": ("easyr1.cli.check", "try a training command line without weights: rows, lengths, prompts, reward"),
    "train": ("easyr1.cli.train", "train as a configuration says: easyr1 train config=run.yaml key=value ..."),
    "eval": ("easyr1.cli.eval", "score a model or a checkpoint on a data set: mean@n, pass@k, maj@k"),
    "merge": ("easyr1.cli.merge", "a checkpoint as a Hugging Face folder: easyr1 merge CHECKPOINT"),
    "report": ("easyr1.cli.report", "write report.html anew: easyr1 report FOLDER; several folders are also compared"),
    "env": ("easyr1.cli.env", "versions, devices and variables, for a bug report"),
}
COMPUTING = ("quickstart", "check", "train", "eval")  # which torch and transformers of the wrong version would fail
EXIT_STATUSES = {
    0: "done; for `check`: it would run",
    1: "it failed: data, reward, checkpoint, weight sync or a rank; for `check`: data or reward would",
    2: "the call, the configuration or the environment is wrong",
    130: "stopped by Ctrl-C",
    143: "stopped by SIGTERM",
}
USAGE = """\
easyr1 {version}: reinforcement learning for language and vision-language models

usage: easyr1 COMMAND [ARGUMENT ...]

{commands}

Settings are given as key=value, for example data.rollout_batch_size=64; docs/config.md lists them all.
`easyr1 COMMAND --help` explains a command with examples, --dry-run shows what one would do. Exit statuses:

{statuses}
"""


def usage() -> str:
    commands = (f"  {name:<12}{text}" for name, (_, text) in COMMANDS.items())
    statuses = (f"  {status:<5}{text}" for status, text in EXIT_STATUSES.items())
    return USAGE.format(version=__version__, commands="\n".join(commands), statuses="\n".join(statuses))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand. Returns one of EXIT_STATUSES."""
    try:
        status = answer(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        if _is_read(sys.stdout):
            raise  # another pipe
        return 1
    return status


def _is_read(output: TextIO) -> bool:
    """Whether somebody still reads what is written; `head` stops. What is left to write is then thrown away."""
    poll = select.poll()
    poll.register(output, 0)  # that nobody reads is told unasked
    if poll.poll(0):
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        return False
    return True


def answer(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        sys.stdout.write(f"{__version__}\n")
        return 0
    if arguments[0] not in COMMANDS:
        hint = did_you_mean(arguments[0], COMMANDS)
        sys.stderr.write(f"easyr1: no command {arguments[0]!r}{hint}\n\n{usage()}")
        return 2
    return run(COMMANDS[arguments[0]][0], arguments[1:])


def run(module: str, arguments: Sequence[str]) -> int:
    """Run a subcommand's module; an error made for the user is told without a traceback."""
    calm_threads()
    try:
        command = import_module(module)
        if any(argument in HELP for argument in arguments) and hasattr(command, "HELP"):
            sys.stdout.write(command.HELP)
            return 0
        if module in (COMMANDS[name][0] for name in COMPUTING):
            check_versions(with_vllm="worker.rollout.name=vllm" in arguments)
        return command.main(arguments)
    except ConfigError as error:
        sys.stderr.write(f"configuration error: {error}\n")
        return 2
    except DataError as error:
        sys.stderr.write(f"data error: {error}\n")
    except RewardError as error:
        sys.stderr.write(f"reward error: {error}\n")
    except CheckpointError as error:
        sys.stderr.write(f"checkpoint error: {error}\n")
    except SyncError as error:
        sys.stderr.write(f"weight sync error: {error}\n")
    except RankError as error:  # with the traceback of the rank; that of this process only says where it waited
        sys.stderr.write(f"{error}\nthe run ends here; the same command goes on from its last checkpoint\n")
    except Stopped as stopped:  # it was told where it happened
        return stopped.exit_status
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return 130
    return 1


def calm_threads() -> None:
    """Idle OpenMP threads that spin slow a CPU run many times over; must be set before torch is loaded."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    # A rank that dies is told by its RankError; Ray would add a paragraph for each rank that ends with it.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^A worker died or was killed while executing a task")


if __name__ == "__main__":
    sys.exit(main())
