"""The schema as text: examples/config.yaml and docs/config.md, made of types, defaults and field documentation.

`python -m easyr1.config.describe` writes both files; a test fails while they are stale.
"""

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from easyr1.config.names import DERIVED, REMOVED, RENAMED
from easyr1.config.paths import PACKAGE
from easyr1.config.schema import DEPARTURES, Config, known_keys, walk
from easyr1.config.values import in_words

_PLAIN = re.compile(r"[A-Za-z./_][A-Za-z0-9./_@:+-]*")
_COMMENT_WIDTH = 110
_EVIDENT = ("true or false", "text", "a mapping")  # types that the value itself shows

_YAML_HEAD = """\
# Every key with its default, made by `make config`.
# Copy it, or override single keys on the command line: easyr1 train config=examples/config.yaml data.seed=7
"""

_MARKDOWN_HEAD = """\
# Configuration keys

Made by `make config`; edit the fields in `easyr1/config/`, not this page.

Keys are written in a YAML file (`config=run.yaml`) or on the command line (`data.seed=7`), where they win over the
file. A key that is in neither has the default below. Lists are written `['console','file']`, nothing is `null`.
Below keys of type mapping any key may stand; entries are added to those of the default, and `{}` takes these away.
"""


@cache
def field_docs(section: type) -> Mapping[str, str]:
    """Field name -> the text under it, joined to one line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(section)))
    body = tree.body[0].body  # type: ignore[attr-defined]
    docs = {}
    for entry, text in pairwise(body):
        if isinstance(entry, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            docs[entry.target.id] = " ".join(str(text.value.value).split())  # type: ignore[union-attr]
    return docs


def documentation(key: str) -> str:
    """The documentation of a leaf key."""
    section, _, name = key.rpartition(".")
    return field_docs(type(_default_section(section)))[name]


def yaml_text() -> str:
    """The whole default configuration as commented YAML."""
    return _YAML_HEAD + "\n".join(_yaml_lines(Config(), "", 0)) + "\n"


def markdown_text() -> str:
    """The key reference: one table for each section, then names that moved and defaults that differ."""
    parts = [_MARKDOWN_HEAD]
    for heading, keys in _by_section().items():
        about = inspect.getdoc(_default_section(heading))
        table = _table(("key", "default", "allowed", "meaning"), map(_row, keys))
        parts.append(f"## {heading}\n\n{about}\n\n{table}")
    rows = ((f"`{key}`", f"`{_scalar(known_keys()[key][1])}`", why) for key, why in DEPARTURES.items())
    parts.append("## Defaults that differ from EasyR1's\n\n" + _table(("key", "default here", "why"), rows))
    rows = ((f"`{key}`", f"`{counts}`") for key, counts in DERIVED.items())
    parts.append("## Keys that are worked out\n\nThey are refused.\n\n" + _table(("key", "set this"), rows))
    moved = [(f"`{old}`", f"`{new}`") for old, new in RENAMED.items()]
    moved += [(f"`{old}`", cure) for old, cure in REMOVED.items()]
    head = "## Keys of other releases and forks\n\nThey are refused.\n\n"
    parts.append(head + _table(("key", "today"), iter(moved)))
    return "\n".join(parts)


def targets() -> Mapping[Path, str]:
    """Generated file -> its text."""
    return {
        PACKAGE / "examples" / "config.yaml": yaml_text(),
        PACKAGE.parent / "docs" / "config.md": markdown_text(),
    }


def main() -> None:
    """Write the generated files."""
    for path, text in targets().items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {path}\n")


def _default_section(dotted: str) -> Any:
    section: Any = Config()
    for name in dotted.split("."):
        section = getattr(section, name)
    return section


def _yaml_lines(section: Any, prefix: str, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for entry in fields(section):
        key, value = prefix + entry.name, getattr(section, entry.name)
        if is_dataclass(value):
            yield from ("", f"{indent}{entry.name}:  # {inspect.getdoc(value)}")
            yield from _yaml_lines(value, f"{key}.", depth + 1)
        else:
            yield from _comment(key, indent)
            yield f"{indent}{entry.name}: {_scalar(value)}"


def _comment(key: str, indent: str) -> list[str]:
    allowed = in_words(known_keys()[key][0])
    text = documentation(key) + ("" if allowed.removesuffix(", or null") in _EVIDENT else f" [{allowed}]")
    return textwrap.wrap(
        text, _COMMENT_WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ", break_on_hyphens=False
    )


def _scalar(value: Any) -> str:
    """A value as YAML; numbers as every YAML reader takes them (1.0e-06, not 1e-06)."""
    if isinstance(value, float):
        return re.sub(r"^(-?\d+)e", r"\1.0e", repr(value))
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_scalar(inner)}" for name, inner in value.items()) + "}"
    return json.dumps(value)


def _by_section() -> Mapping[str, list[str]]:
    sections: dict[str, list[str]] = {}
    for key, _, _ in walk(Config()):
        sections.setdefault(key.rpartition(".")[0], []).append(key)
    return sections


def _row(key: str) -> tuple[str, ...]:
    kind, default = known_keys()[key]
    return f"`{key.rpartition('.')[2]}`", f"`{_scalar(default)}`", in_words(kind), documentation(key)


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    main()
