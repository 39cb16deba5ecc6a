"""Limits that keep every piece readable on one screen. Raised only by a commit that does just that and says why."""

import ast

import pytest
from python_files import FUNCTION, PACKAGE, ROOT, functions, source_files, tree_of

FILE_LINES = 400
FUNCTION_LINES = 60
INIT_LINES = 40
FIT_LINES = 50
NESTING = 3
FOLDER_DEPTH = 2  # below the package

BLOCKS = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.Match)


def num_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From `def` to the last line, docstring included."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def limit_of(name: str, file: str) -> int:
    """The most lines for the function of that dotted name."""
    if name == "Trainer.fit" and file == "easyr1/trainer/loop.py":
        return FIT_LINES
    return INIT_LINES if name.split(".")[-1] == "__init__" else FUNCTION_LINES


def nesting(node: ast.AST) -> int:
    """How deep blocks stand in blocks; an elif is no deeper than its if, an inner function starts anew."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTION):
            continue
        inside = nesting(child)
        if isinstance(child, BLOCKS) and not _is_elif(child, node):
            inside += 1
        deepest = max(deepest, inside)
    return deepest


def _is_elif(child: ast.AST, parent: ast.AST) -> bool:
    return isinstance(child, ast.If) and isinstance(parent, ast.If) and parent.orelse == [child]


@pytest.mark.parametrize("file", source_files())
def test_file_fits(file):
    lines = (ROOT / file).read_text(encoding="utf-8").count("\n")
    assert lines <= FILE_LINES, f"{file} has {lines} lines"


@pytest.mark.parametrize("file", source_files())
def test_functions_fit(file):
    long = {name: num_lines(node) for name, node in functions(tree_of(file)) if num_lines(node) > limit_of(name, file)}
    assert long == {}
    deep = {name: nesting(node) for name, node in functions(tree_of(file)) if nesting(node) > NESTING}
    assert deep == {}


def test_folders_are_flat():
    folders = {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")}
    assert [folder for folder in folders if len(folder.parts) > FOLDER_DEPTH] == []


def test_the_loop_exists_where_its_limit_looks_for_it():
    names = {name for name, _ in functions(tree_of("easyr1/trainer/loop.py"))}
    assert "Trainer.fit" in names


def test_nesting_counts_blocks():
    code = "def f():\n for a in b:\n  if a:\n   pass\n  elif b:\n   with c:\n    def g():\n     if d:\n      pass\n"
    (_, outer), (_, inner) = functions(ast.parse(code))
    assert (nesting(outer), nesting(inner)) == (3, 1)


def test_lines_are_counted_from_def_to_end_and_limits_go_by_name():
    (_, node), *_ = functions(ast.parse("@cache\ndef f(\n    a,\n):\n    return a\n"))
    assert num_lines(node) == 4
    assert limit_of("Trainer.fit", "easyr1/trainer/loop.py") == FIT_LINES
    assert limit_of("Worker.__init__", "easyr1/cluster/worker.py") == INIT_LINES
