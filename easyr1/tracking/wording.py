"""Numbers, durations and long texts as a person reads them, on the console and in the report."""

import re


def number(value: float) -> str:
    """Three digits that matter: 0.123, 12.3, 1,234, 1.2e-05."""
    if abs(value) >= 999.5:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:.3g}"


def score(value: float) -> str:
    """Two decimals for what people compare, a share of right answers above all: 0.70, 12.34; else as `number`."""
    return f"{value:.2f}" if value == 0 or 0.01 <= abs(value) < 100 else number(value)


def duration(seconds: float) -> str:
    """For example "42 s", "3 min 5 s", "2 h 10 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def shorten(text: str, most: int) -> str:
    """Runs of one special token counted instead of shown, and the middle left out of what is still too long.

    >>> shorten("<|image_pad|><|image_pad|><|image_pad|> Which?", 100)
    '<|image_pad|>×3 Which?'
    """
    text = re.sub(r"(<\|[^<>|]{1,40}\|>)\1+", lambda run: f"{run[1]}×{len(run[0]) // len(run[1])}", text)
    if len(text) <= most:
        return text
    head = text[: most // 2].rsplit(" ", 1)[0]
    tail = text[-(most - most // 2) :].split(" ", 1)[-1]
    left_out = len(text) - len(head) - len(tail)
    return f"{head}\n[... {left_out:,} characters left out ...]\n{tail}"
