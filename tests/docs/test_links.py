"""What the pages point at is there: files, headings, keys."""

import re

import pytest
from pages import ROOT, anchors, code_spans, links, pages

from easyr1.config.names import DERIVED, REMOVED, RENAMED
from easyr1.config.schema import known_keys

KEY = re.compile(r"(?P<key>(?:data|worker|algorithm|trainer)\.[a-z_]+(?:\.[a-z_0-9]+)*)(?:=.*)?")
FREE_KEYS = ("val_override_config", "engine_kwargs", "reward_function_kwargs", "override_config")  # hold any key
OTHERS = {"docs/coming-from.md", "docs/differences.md", "docs/config.md"}  # speak of keys of other programs, too


@pytest.mark.parametrize("page", pages())
def test_links_lead_somewhere(page):
    for target in links(page):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        place = (ROOT / page).parent / path if path else ROOT / page
        assert place.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(place.resolve().relative_to(ROOT).as_posix()), f"{page}: {target}"


def test_every_page_is_in_the_index():
    missing = {path.name for path in (ROOT / "docs").glob("*.md")} - set(links("docs/README.md"))
    assert missing == {"README.md"}


@pytest.mark.parametrize("page", [page for page in pages() if page not in OTHERS])
def test_keys_exist(page):
    known = set(known_keys())
    sections = {key.rsplit(".", 1)[0] for key in known}
    for span in code_spans(page):
        match = KEY.fullmatch(span)
        if match and not any(f".{name}." in match["key"] for name in FREE_KEYS):
            assert match["key"] in known | sections, f"{page}: {span}"
    assert not known & {*DERIVED, *REMOVED, *RENAMED}


def test_tables_of_other_programs_lead_to_keys_that_exist():
    known = set(known_keys())
    rows = [line.split("|") for line in (ROOT / "docs/coming-from.md").read_text().splitlines() if line[:1] == "|"]
    ours = [span for row in rows for span in re.findall(r"`([^`]+)`", row[2])]
    keys = {match["key"] for span in ours if (match := KEY.fullmatch(span))}
    assert len(keys) > 50
    assert keys - known == set()
