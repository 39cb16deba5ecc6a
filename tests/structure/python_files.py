"""The project's Python files and what stands in them, read without importing any of it."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "easyr1"
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def source_files() -> list[str]:
    """Paths below the root of all Python files that are not tests, package and command aliases alike."""
    found = [path for folder in ("easyr1", "verl", "scripts") for path in (ROOT / folder).rglob("*.py")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


@cache
def tree_of(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"), filename=file)


def functions(tree: ast.AST) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its dotted name, methods and inner functions too."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, (*FUNCTION, ast.ClassDef))
            name = f"{prefix}{child.name}" if named else prefix
            if isinstance(child, FUNCTION):
                yield name, child
            yield from visit(child, f"{name}." if named else prefix)

    yield from visit(tree, "")


def imported_modules(node: ast.AST, file: str) -> Iterator[tuple[str, int]]:
    """(dotted module, line) of all imports below a node; `from easyr1 import x` counts as easyr1.x."""
    package = Path(file).parent.parts
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield alias.name, child.lineno
        elif isinstance(child, ast.ImportFrom):
            above = ".".join(package[: len(package) - child.level + 1]) if child.level else ""
            module = ".".join(part for part in (above, child.module) if part)
            if module == "easyr1":
                for alias in child.names:
                    yield f"easyr1.{alias.name}", child.lineno
            else:
                yield module, child.lineno


def project_files() -> list[str]:
    """Files that git tracks or would track; none outside a git checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [name for name in result.stdout.splitlines() if (ROOT / name).is_file() and not (ROOT / name).is_symlink()]
