"""The phases of learning, found by rule in the validations: the format first, then the content, then a plateau."""

from collections.abc import Mapping
from dataclasses import dataclass

from easyr1.tracking.history import Series
from easyr1.tracking.wording import score

FORMAT_LEARNT = 0.9  # validation format
PLATEAU_VALIDATIONS, PLATEAU_GAIN = 5, 0.02
CONTENT = ("val/accuracy_reward", "val/reward_score", "val/overall_reward")  # the first that there is


@dataclass(frozen=True)
class Learning:
    """Steps at which phases end, and the same in words."""

    format_end: int | None  # None: not yet, or no format is scored
    content_end: int | None  # None: not yet
    words: str

    @property
    def marks(self) -> list[tuple[int, str]]:
        """What is marked on curves: (step, label)."""
        ends = ((self.format_end, "format learnt"), (self.content_end, "plateau"))
        return [(step, label) for step, label in ends if step is not None]


def learning(curves: Mapping[str, Series]) -> Learning:
    """The phases of a run.

    The format phase ends at the first validation with a format of 0.9 or more; without a format score there is none.
    The content phase then ends at the first validation that, with the four before it, gains less than 0.02.
    """
    form = curves.get("val/format_reward", [])
    content = next((curves[name] for name in CONTENT if name in curves), [])
    if len(content) < 2:
        return Learning(None, None, "Phases of learning show from the second validation on.")
    format_end = next((step for step, value in form if value >= FORMAT_LEARNT), None)
    if form and format_end is None:
        best = max(value for _, value in form)
        return Learning(
            None,
            None,
            f"Still in the format phase: the validation format reached {score(best)}, not yet {FORMAT_LEARNT}.",
        )
    start = "" if format_end is None else _format_words(format_end, form)
    after = [(step, value) for step, value in content if format_end is None or step >= format_end]
    end = plateau(after)
    if end is None:
        few = len(after) < PLATEAU_VALIDATIONS
        why = (
            f"a plateau shows after {PLATEAU_VALIDATIONS} validations, there are {len(after)}"
            if few
            else "it still gains"
        )
        return Learning(format_end, None, f"{start}Content is being learnt: {why}.")
    return Learning(
        format_end,
        end,
        f"{start}Content was learnt until step {end}; a plateau since: the {PLATEAU_VALIDATIONS} validations up to "
        f"there gained less than {PLATEAU_GAIN}.",
    )


def plateau(points: Series) -> int | None:
    """The step of the first validation that, with the four before it, gains less than 0.02.

    >>> plateau([(0, 0.1), (5, 0.5), (10, 0.6), (15, 0.60), (20, 0.61), (25, 0.61), (30, 0.61)])
    30
    """
    size = PLATEAU_VALIDATIONS
    windows = (points[end - size : end] for end in range(size, len(points) + 1))
    return next((window[-1][0] for window in windows if window[-1][1] - window[0][1] < PLATEAU_GAIN), None)


def _format_words(end: int, form: Series) -> str:
    value = score(dict(form)[end])
    return (
        f"The format was there at step {end} already ({value}). "
        if end == form[0][0]
        else (f"The format was learnt by step {end} ({value}). ")
    )
