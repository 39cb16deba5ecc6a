"""docs/walk.md names files and functions; each of them exists."""

import ast
import re

from python_files import FUNCTION, PACKAGE, ROOT

WALK = ROOT / "docs" / "walk.md"
MENTION = re.compile(r"`([\w./-]+\.py)(?::([A-Za-z_][\w.]*))?(?:\(\))?`")
NUM_STOPS = 10


def mentions(text: str) -> list[tuple[str, str]]:
    """(file, function or class or "") of every `file.py` and `file.py:function` in backticks."""
    return [(match[1], match[2] or "") for match in MENTION.finditer(text)]


def defines(tree: ast.AST, name: str) -> bool:
    """Whether the dotted name is a function, class, method or top-level variable there."""
    first, _, rest = name.partition(".")
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (*FUNCTION, ast.ClassDef)) and node.name == first:
            return not rest or defines(node, rest)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if not rest and any(isinstance(target, ast.Name) and target.id == first for target in targets):
            return True
    return False


def missing(text: str) -> list[str]:
    """The mentions that lead nowhere."""
    lost = []
    for file, name in mentions(text):
        path = next((folder / file for folder in (PACKAGE, ROOT) if (folder / file).is_file()), None)
        if path is None or (name and not defines(ast.parse(path.read_text(encoding="utf-8")), name)):
            lost.append(f"{file}:{name}" if name else file)
    return lost


def test_every_stop_of_the_walk_exists():
    text = WALK.read_text(encoding="utf-8")
    assert len({mention for mention in mentions(text) if mention[1]}) >= NUM_STOPS
    assert missing(text) == []


def test_a_wrong_mention_is_seen():
    text = "`batch.py:Sums.merge`, `easyr1/batch.py`, `batch.py:Sums.lost`, `batch.py:lost`, `lost.py`"
    assert missing(text) == ["batch.py:Sums.lost", "batch.py:lost", "lost.py"]
