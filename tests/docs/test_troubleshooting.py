"""docs/troubleshooting.md has an entry for every error made for the user, and none for errors that are gone."""

import ast
import re

from pages import code_spans
from python_files import source_files, tree_of

PAGE = "docs/troubleshooting.md"
FOR_USERS = {"ConfigError", "DataError", "RewardError", "CheckpointError", "SyncError", "RankError"}
SAMPLES = {"Breach", "Failure"}  # become RewardErrors; behind the message they have the number of a sample
GAP = "…"
SHORT = 7  # letters that tell one message from another; a message without so many is put together from others


def template(node: ast.AST) -> str:
    """The text of a message, with a gap for what is only known in a run."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(value) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    return GAP


def plain(text: str) -> str:
    """White space and quotes of code are no difference."""
    return re.sub(r"\s+", " ", text.replace("`", ""))


def longest(text: str) -> str:
    """The longest part between two gaps, without the punctuation around it."""
    return max((plain(part).strip(" .,:;()") for part in text.split(GAP)), key=len)


def name_of(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def messages() -> dict[str, str]:
    """Each message -> where it is raised."""
    found = {}
    for file in source_files():
        for node in ast.walk(tree_of(file)):
            if not (isinstance(node, ast.Call) and name_of(node) in FOR_USERS | SAMPLES and node.args):
                continue
            text = template(node.args[0 if name_of(node) in SAMPLES else -1])
            if len(longest(text)) >= SHORT:
                found[plain(text)] = f"{file}:{node.lineno}"
    return found


def entries() -> set[str]:
    """What the page quotes of messages."""
    spans = [span for span in code_spans(PAGE) if GAP in span or " " in span]
    return {part for span in spans if len(part := longest(span)) >= SHORT}


def without_entry(found: dict[str, str]) -> list[str]:
    known = entries()
    return [f"{place}: {message}" for message, place in found.items() if not any(part in message for part in known)]


def test_every_error_has_an_entry():
    found = messages()
    assert len(found) > 200
    assert without_entry(found) == [], f"add entries to {PAGE}"


def test_an_error_without_an_entry_is_seen():
    assert without_entry({"no such words on that page": "file.py:1"}) == ["file.py:1: no such words on that page"]


def test_no_entry_is_of_an_error_that_is_gone():
    parts = (template(node) for file in source_files() for node in ast.walk(tree_of(file)))
    source = "\n".join(plain(part) for part in parts if part != GAP)
    assert [span for span in code_spans(PAGE) if GAP in span and longest(span) not in source] == []
