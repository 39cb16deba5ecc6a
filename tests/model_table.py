"""Runs the tests of all families and writes docs/models.md from what they said: `python -m tests.model_table`."""

import re
import sys
from pathlib import Path

import pytest
import transformers

from tests.families import FAMILIES, Family

TESTS = Path(__file__).parent / "models" / "test_families.py"
TABLE = Path(__file__).parents[1] / "docs" / "models.md"
COLUMNS = {  # test -> column; those without a column of their own are about pictures
    "test_one_micro_batch_is_what_transformers_computes_alone": "log-probs and gradients",
    "test_sampled_log_probs_are_those_of_training": "sampling = training",
    "test_greedy_answers_equal_generate": "greedy = generate",
    "test_by_default_adapters_sit_in_the_text_model_alone_and_learn": "LoRA",
    "test_a_frozen_tower_is_all_that_is_frozen": "frozen tower",
    "test_prompts_and_pixels_are_those_of_the_familys_own_processor": "processor",
    "test_picture_tokens_in_text_are_refused": "tokens in text",
    "test_a_picture_token_is_never_sampled_however_likely": "never sampled",
    "test_pictures_that_do_not_fit_their_tokens_are_one_clear_error": "misfit told",
}
LAYOUT = "test_the_layout_is_the_expected_one_and_a_slower_one_is_said"
INTRODUCTION = """\
# Models

Written by `python -m tests.model_table`, which runs `tests/models/test_families.py` on a tiny model of each family
(random weights with peaked attention, 2 layers, the family's own tokenizer marks, processor and vision tower) with
transformers {version} on a CPU. The real checkpoints of these families are larger models of the same classes.

| family | transformers class | layout | {columns} |
|---|---|---|{rule}|
{rows}

What the columns say:
- **layout**: *shared prefix* computes a prompt and its pictures once for all its answers; *padded* computes them for
  each answer. It is chosen by a small forward when the model is loaded, never by name, and a padded one is said at the
  start with its reason. A model that is in no row goes through the same proof.
- **log-probs and gradients**: one micro-batch of ragged answers, with no picture, one, and two of different sizes,
  equals the class's own forward of each sequence alone, in float64: log-probs to 2e-6, gradients to 5e-5 (relative).
- **sampling = training**: log-probs at which answers were drawn equal those that training computes (float32, 2e-4).
- **greedy = generate**: the same ids as transformers' `generate`, also with pictures.
- **LoRA**: by default adapters sit in the text model's linear layers, none in tower or projector, and all learn. The
  fused experts of a mixture are no linear layers and get none.
- **frozen tower**: `freeze_vision_tower` leaves exactly the tower's weights untrained; a projector beside it trains.
- **processor**: ids and pixels are those of the family's own processor, without torchvision.
- **tokens in text**: a question that spells out a token which marks pictures is refused.
- **never sampled**: such a token has probability 0, for the sampler and in training.
- **misfit told**: pictures that do not have as many features as tokens are one clear error.

Padded, and why: {padded}.

Limits. Pictures go through the processor of their family one by one; LLaVA-OneVision's own processor shows pictures
coarser where a prompt has several, which is not done here. `data.min_pixels` and `data.max_pixels` set the grid of
Qwen's image processor; for other families a picture is brought inside them before its processor resizes it again,
which for LLaVA, whose number of tiles follows the size, changes the number of tokens as well (null leaves pictures as
they are). Models that take pictures by cross-attention (Llama 3.2 Vision) are refused when their processor is loaded.
"""


class Outcomes:
    """Collects (test, family) -> passed from a run of pytest."""

    def __init__(self) -> None:
        self.passed: dict[tuple[str, str], bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        match = re.search(r"::(\w+)\[(\w+)\]$", report.nodeid)
        if match and (report.when == "call" or report.failed):
            self.passed[match[1], match[2]] = report.passed


def render(passed: dict[tuple[str, str], bool]) -> str:
    """The text of docs/models.md."""
    rows = [_row(family, passed) for family in FAMILIES.values()]
    padded = [f"{family.title} ({family.reason})" for family in FAMILIES.values() if family.reason]
    return INTRODUCTION.format(
        version=transformers.__version__,
        columns=" | ".join(COLUMNS.values()),
        rule="---|" * (len(COLUMNS) - 1) + "---",
        rows="\n".join(rows),
        padded="; ".join(padded),
    )


def _row(family: Family, passed: dict[tuple[str, str], bool]) -> str:
    said = {True: "yes", False: "**no**", None: "-"}
    cells = [said[passed.get((test, family.name))] for test in COLUMNS]
    layout = family.layout if passed.get((LAYOUT, family.name)) else "**not as expected**"
    return f"| {family.title} | `{type(family.build()).__name__}` | {layout} | {' | '.join(cells)} |"


def main() -> int:
    """Run and write. 1 if a test failed; the table then says where."""
    outcomes = Outcomes()
    code = pytest.main(["-m", "slow or not slow", "-p", "no:cacheprovider", str(TESTS)], plugins=[outcomes])
    TABLE.write_text(render(outcomes.passed), encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
