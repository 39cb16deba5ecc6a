"""Keeps the progress bars of datasets and transformers off the screen, where the quickstart shows its own."""

from collections.abc import Iterator
from contextlib import contextmanager

import datasets
import transformers


@contextmanager
def no_bars() -> Iterator[None]:
    """No bar of either library inside; afterwards as it was."""
    of_datasets = not datasets.are_progress_bars_disabled()
    of_transformers = transformers.utils.logging.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if of_datasets:
            datasets.enable_progress_bars()
        if of_transformers:
            transformers.utils.logging.enable_progress_bar()
