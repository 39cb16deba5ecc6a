"""`easyr1 env`: what a bug report needs to say of the machine and what is installed, secrets hidden."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from easyr1 import __version__
from easyr1.cli.options import split
from easyr1.config.supported import ALWAYS, VLLM, is_supported, range_of, supported, version_of

HELP = """\
usage: easyr1 env [--json]

Tells versions, devices, memory, disks and variables, for a bug report. Values of variables whose names speak of keys,
tokens or passwords are hidden, and so are logins in addresses and what looks like a token in any other value.

  easyr1 env
  easyr1 env --json > env.json

  --json  one JSON object in place of lines
"""
JSON = "--json"
PACKAGES = ("torch", "transformers", *VLLM, "ray", "peft", "datasets", "accelerate", "flash-attn", "wandb", "numpy")
VARIABLES = re.compile(
    r"(CUDA|NVIDIA|NCCL|GLOO|HF|HUGGINGFACE|TRANSFORMERS|VLLM|RAY|TORCH|PYTORCH|OMP|MKL|KMP|TOKENIZERS|EASYR1|WANDB|"
    r"SWANLAB|MLFLOW|TRACKIO|USE_MODELSCOPE|MODELSCOPE|MASTER|LD_LIBRARY|PYTHONPATH|SLURM)(_|$)|.*_PROXY$",
    re.IGNORECASE,
)
_SECRET = r"TOKEN(?!IZERS)|KEY|SECRET|PASS|CREDENTIAL|COOKIE|AUTH|HEADER|SIG|_PAT$"
SECRET = re.compile(_SECRET, re.IGNORECASE)
LOGIN = re.compile(r"(?<=://)\S*@|(?<![^\s,=])[^\s/@:,]+:[^\s/@]+@")  # of a URL, or of an address without a scheme
IN_QUERY = re.compile(rf"([?&;#][\w.-]*(?:{_SECRET})[\w.-]*=)[^&;\s]+", re.IGNORECASE)
LIKE_A_TOKEN = re.compile(  # of services that mark theirs, or long with letters and digits mixed
    r"\b(?:hf_|sk-|gh[a-z]_|github_pat_|glpat-|local-|wandb_|ms-)[\w-]{16,}|\b(?=[a-z_]*\d)(?=\d*[a-z])[a-z0-9]{32,}\b"
    r"|\beyJ[\w-]+\.[\w.-]+|(?<=bearer )\S+|(?<=basic )\S+",
    re.IGNORECASE,
)
GIB = 1 << 30
COMMAND_S = 20.0  # for git and nvidia-smi, which hangs where a driver does


def main(arguments: Sequence[str]) -> int:
    """Write what is found to the output. Always 0: whatever is missing is part of the answer."""
    options, rest = split(arguments, [JSON])
    if rest:
        sys.stderr.write(f"easyr1 env takes no {rest[0]!r}\n")
        return 2
    found = collect(os.environ)
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if options else "".join(_lines(found)))
    return 0


def collect(environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """All of it, by section."""
    return {
        "easyr1": {"version": __version__, "git": _git(), "folder": _home(str(Path(__file__).resolve().parents[1]))},
        "versions": _versions(),
        "machine": _machine(),
        "GPUs": _gpus(),
        "disks": _disks(environment),
        "variables": _variables(environment),
    }


def _versions() -> dict[str, str]:
    found = {"python": f"{platform.python_version()} ({_home(sys.executable)})"}
    found |= {name: version_of(name) or "not installed" for name in PACKAGES}
    for name in (*ALWAYS, *VLLM):
        version = version_of(name)
        if name in supported() and (version or name in ALWAYS) and not is_supported(name, version):
            found[name] += f" <- outside what easyr1 needs, {range_of(name)}"
    return found


def _machine() -> dict[str, Any]:
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on a Mac
        cores = os.cpu_count() or 0
    pages = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
    memory = os.sysconf(pages[0]) * os.sysconf(pages[1]) / GIB
    return {
        "system": f"{platform.platform()}{_distribution()}",
        "CPUs": f"{os.cpu_count()}, {cores} of them usable; {platform.machine()}",
        "memory": f"{memory:.1f} GiB",
        "memory limit": _memory_limit(),
    }


def _distribution() -> str:
    try:
        return f" ({platform.freedesktop_os_release()['PRETTY_NAME']})"
    except (OSError, KeyError):
        return ""


def _memory_limit() -> str:
    """Of the container, as far as the kernel tells."""
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"
    return "none" if text == "max" else f"{int(text) / GIB:.1f} GiB"


def _gpus() -> dict[str, Any]:
    asked = "--query-gpu=name,memory.total,driver_version,compute_cap"
    listed = _output("nvidia-smi", asked, "--format=csv,noheader") or "nvidia-smi tells of none"
    found: dict[str, Any] = {str(number): line for number, line in enumerate(listed.splitlines())}
    try:
        import torch

        usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
        found |= {"CUDA of torch": torch.version.cuda or "none, a build for CPUs", "usable by torch": usable}
    except (ImportError, OSError, RuntimeError) as error:  # a torch that does not load is what the report is about
        found["torch"] = f"does not load: {error}"
    return found


def _disks(environment: Mapping[str, str]) -> dict[str, str]:
    cache = Path(environment.get("HF_HOME") or "~/.cache/huggingface")
    places = {
        "working directory": Path.cwd(),
        "Hugging Face cache": Path(environment.get("HF_HUB_CACHE") or cache),
        "easyr1 cache": Path(environment.get("EASYR1_CACHE") or "~/.cache/easyr1"),
        "temporary files": Path(environment.get("TMPDIR") or "/tmp"),
        "shared memory": Path("/dev/shm"),
    }
    return {name: _disk(place.expanduser()) for name, place in places.items()}


def _disk(place: Path) -> str:
    there = next((folder for folder in (place, *place.absolute().parents) if folder.exists()), None)
    if there is None:
        return f"{_home(str(place))}: not there"
    usage = shutil.disk_usage(there)
    return f"{_home(str(place))}: {usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free"


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: hidden(name, environment[name]) for name in sorted(environment) if VARIABLES.match(name)}


def hidden(name: str, value: str) -> str:
    """The value of a variable as others may see it.

    >>> hidden("HF_TOKEN", "hf_abc"), hidden("https_proxy", "http://me:secret@proxy:80"), hidden("HF_HOME", "/data")
    ('set, hidden', 'http://...@proxy:80', '/data')
    """
    if SECRET.search(name):
        return "set, hidden"
    value = IN_QUERY.sub(r"\1...", LOGIN.sub("...@", value))
    return _home(LIKE_A_TOKEN.sub("...", value))


def _home(text: str) -> str:
    """Without the name of the user."""
    home = os.path.expanduser("~")
    return text.replace(home, "~") if len(home) > 1 else text


def _git() -> str:
    root = str(Path(__file__).resolve().parents[2])
    if not (Path(root) / ".git").exists():
        return "no checkout"
    commit = _output("git", "-C", root, "rev-parse", "HEAD") or "unknown"
    return commit + (" with changes" if _output("git", "-C", root, "status", "--porcelain") else "")


def _output(*command: str) -> str | None:
    """What a command prints; None if it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _lines(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    for section, values in found.items():
        lines.append(f"{section}\n")
        lines += [f"  {name}: {value}\n" for name, value in values.items()] or ["  none\n"]
    return lines
