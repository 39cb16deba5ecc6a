"""docs/models.md is what `python -m tests.model_table` writes when every test passes: it has every family and test."""

import ast

from tests import model_table
from tests.families import FAMILIES, PACKED


def test_the_table_in_the_docs_has_every_family_with_its_layout():
    rows = [line.split(" | ") for line in model_table.TABLE.read_text(encoding="utf-8").splitlines() if "| `" in line]
    assert [(row[0].strip("| "), row[2]) for row in rows] == [(one.title, one.layout) for one in FAMILIES.values()]


def test_every_test_of_a_family_has_its_column():
    tree = ast.parse(model_table.TESTS.read_text(encoding="utf-8"))
    tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    assert tests == {*model_table.COLUMNS, model_table.LAYOUT}


def test_the_docs_are_what_passing_tests_write_and_a_failure_shows():
    seeing = {name for name, family in FAMILIES.items() if family.sees}
    source = model_table.TESTS.read_text(encoding="utf-8")
    passed = {
        (test, name): True
        for test in (*model_table.COLUMNS, model_table.LAYOUT)
        for name in FAMILIES
        if f"@each_family\ndef {test}(" in source or name in seeing
    }
    assert model_table.render(passed) == model_table.TABLE.read_text(encoding="utf-8")
    passed["test_greedy_answers_equal_generate", "gemma3"] = False
    (row,) = [line for line in model_table.render(passed).splitlines() if line.startswith("| Gemma 3 |")]
    assert row.count("**no**") == 1


def test_both_layouts_are_among_the_families():
    assert {one.layout for one in FAMILIES.values()} > {PACKED}
