"""The pages that people read (README*, docs/*.md, CONTRIBUTING.md), taken apart: headings, links, blocks of code.

A block may carry a comment of one line right above it:
    <!-- not run: REASON -->   its syntax is looked at, nothing more
    <!-- file: NAME -->        it is saved under that name, for the blocks of the page that follow
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
COMMENT = re.compile(r"<!--\s*(?P<kind>not run|file)\s*(?::\s*(?P<text>.*?))?\s*-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A piece of code on a page; `line` is that of its first line, `mark` what the comment above it says."""

    page: str
    line: int
    language: str
    text: str
    mark: str = ""
    words: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Paths below the root."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


@cache
def tokens(page: str) -> tuple[Token, ...]:
    return tuple(MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text(encoding="utf-8")))


def blocks(page: str) -> list[Block]:
    """Fenced and indented blocks in order; an indented one has no language."""
    found, mark = [], None
    for token in tokens(page):
        if token.type in ("fence", "code_block"):
            kind, words = (mark["kind"], mark["text"] or "") if mark else ("", "")
            language = token.info.split()[0] if token.info.strip() else ""
            line = (token.map or [0])[0] + 1
            found.append(Block(page, line, language, token.content, kind, words))
        mark = COMMENT.fullmatch(token.content.strip()) if token.type == "html_block" else None
    return found


def headings(page: str) -> list[tuple[str, str]]:
    """("h2", its text) of each."""
    all_tokens = tokens(page)
    return [(t.tag, all_tokens[i + 1].content) for i, t in enumerate(all_tokens) if t.type == "heading_open"]


def links(page: str) -> list[str]:
    """Targets of all links and pictures, in order."""
    return [str(child.attrs[name]) for child in _inline(page) for name in ("href", "src") if name in child.attrs]


def code_spans(page: str) -> list[str]:
    return [child.content for child in _inline(page) if child.type == "code_inline"]


def anchors(page: str) -> set[str]:
    """What `page#...` may name: headings as GitHub writes them."""
    kept = (re.sub(r"[^\w\- ]", "", text.lower()) for _, text in headings(page))
    return {text.replace(" ", "-") for text in kept}


def _inline(page: str) -> Iterator[Token]:
    for token in tokens(page):
        yield from token.children or ()
