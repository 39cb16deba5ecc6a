"""README.md and README.zh.md have the same content: what is not prose is equal, and prose is of like length."""

import re

from pages import ROOT, blocks, code_spans, headings, links

ENGLISH, CHINESE = "README.md", "README.zh.md"


def test_headings_blocks_and_links_are_the_same():
    assert [level for level, _ in headings(ENGLISH)] == [level for level, _ in headings(CHINESE)]
    assert links(ENGLISH) == links(CHINESE)
    code = [[(block.language, block.text, block.mark) for block in blocks(page)] for page in (ENGLISH, CHINESE)]
    assert code[0] == code[1]
    spans = [[re.sub(r"\s+", " ", span) for span in code_spans(page)] for page in (ENGLISH, CHINESE)]
    assert spans[0] == spans[1]


def test_paragraphs_tables_and_points_are_as_many():
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in (ENGLISH, CHINESE)]
    paragraphs = [re.split(r"\n\n|\n(?=- )", text) for text in texts]
    assert len(paragraphs[0]) == len(paragraphs[1])
    for english, chinese in zip(*paragraphs, strict=True):
        numbers = [sorted(re.findall(r"\d+(?:\.\d+)*", text)) for text in (english, chinese)]
        assert numbers[0] == numbers[1], english
        assert english.count("|") == chinese.count("|"), english


def test_the_chinese_one_is_in_chinese():
    text = (ROOT / CHINESE).read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```|`[^`]*`|\([^)]*\)|\|[^\n]*", "", text, flags=re.DOTALL)
    chinese = len(re.findall(r"[\u4e00-\u9fff]", prose))
    assert chinese > 0.6 * len(re.findall(r"\w", prose))
