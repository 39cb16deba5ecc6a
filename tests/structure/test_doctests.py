"""The examples in docstrings say the truth."""

import doctest
import importlib
from pathlib import Path

import pytest
from python_files import ROOT, source_files


def with_examples() -> list[str]:
    """Modules of the package whose text holds a prompt."""
    files = [file for file in source_files() if ">>> " in (ROOT / file).read_text(encoding="utf-8")]
    return [".".join(Path(file).with_suffix("").parts) for file in files if file.startswith("easyr1/")]


@pytest.mark.parametrize("module", with_examples())
def test_docstring_examples(module):
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert tried
    assert not failed
