"""House rules that a linter does not know."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from python_files import PACKAGE, ROOT, project_files, source_files, tree_of

BROAD = {"Exception", "BaseException"}
# around the user's reward call, around a logger, and around a call on a rank, whose error the driver raises
ONE_BROAD_EXCEPT_EACH = {"rewards", "tracking", "cluster"}
VAGUE_NAMES = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
FREE_TEST_FOLDERS = {"compat", "docs", "e2e", "equivalence", "golden", "structure"}
TESTED_ELSEWHERE = {"cli", "examples"}  # by compat and e2e

MACHINE_PATH = re.compile(r"(^|[^A-Za-z0-9_.])/(work|farm)/")
INDEX_HOST = re.compile(r"https?://[\w.-]*(pypi|pythonhosted|npmjs|debian)\b", re.IGNORECASE)


def broad_handlers(tree: ast.AST) -> list[int]:
    """Lines of handlers that swallow everything; one that ends by raising it again only cleans up."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or any(isinstance(name, ast.Name) and name.id in BROAD for name in ast.walk(node.type)))
        and not (isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None)
    ]


def print_calls(tree: ast.AST) -> list[int]:
    """Lines that call print."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]


@pytest.mark.parametrize("file", source_files())
def test_the_package_does_not_print(file):
    if not file.startswith("easyr1/examples/"):
        assert print_calls(tree_of(file)) == []


def test_everything_is_caught_in_two_places_at_most():
    found = {file: lines for file in source_files() if (lines := broad_handlers(tree_of(file)))}
    per_folder = Counter(Path(file).parts[1] for file, lines in found.items() for _ in lines)
    assert set(per_folder) <= ONE_BROAD_EXCEPT_EACH, found
    assert max(per_folder.values(), default=0) <= 1, found


def test_file_names_say_what_is_inside():
    names = {Path(file).stem for file in source_files()} | {path.stem for path in (ROOT / "tests").rglob("*.py")}
    assert names & VAGUE_NAMES == set()
    folders = {part for file in source_files() for part in Path(file).parts[:-1]}
    assert folders & VAGUE_NAMES == set()


def test_tests_mirror_the_package():
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    tested = {path.parent.name for path in (ROOT / "tests").rglob("test_*.py") if path.parent.name != "tests"}
    assert tested <= packages | FREE_TEST_FOLDERS, "a folder of tests without a folder that it tests"
    with_code = {name for name in packages if any(path.stem != "__init__" for path in (PACKAGE / name).glob("*.py"))}
    assert with_code - TESTED_ELSEWHERE <= tested, "a folder of the package without tests"


def test_test_files_have_names_of_their_own():
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
    assert "__init__.py" not in names


@pytest.mark.skipif(not project_files(), reason="no git checkout")
def test_no_file_knows_the_machine_it_was_written_on():
    found = []
    for file in project_files():
        text = (ROOT / file).read_bytes().decode("utf-8", errors="ignore")
        for number, line in enumerate(text.splitlines(), start=1):
            if MACHINE_PATH.search(line) or INDEX_HOST.search(line):
                found.append(f"{file}:{number}: {line.strip()[:100]}")
    assert found == []


def test_the_rules_see_what_they_forbid():
    assert broad_handlers(ast.parse("try:\n  f()\nexcept (KeyError, Exception):\n  pass")) == [3]
    assert broad_handlers(ast.parse("try:\n  f()\nexcept:\n  pass")) == [3]
    assert broad_handlers(ast.parse("try:\n  f()\nexcept KeyError:\n  pass")) == []
    assert broad_handlers(ast.parse("try:\n  f()\nexcept BaseException:\n  close()\n  raise")) == []
    assert print_calls(ast.parse("def f():\n  print(1)")) == [2]
    folder = "wo" + "rk"  # in two parts, or this line would break the rule itself
    assert MACHINE_PATH.search(f"open('/{folder}/a')")
    assert not MACHINE_PATH.search(f"the net{folder}/layer, home/{folder}/b")
    assert INDEX_HOST.search("https://" + "test.pypi" + ".org/simple")
