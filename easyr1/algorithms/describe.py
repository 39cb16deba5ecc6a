"""The algorithms as text: docs/algorithms.md, made of docstrings, declared needs, and the tests that cover each entry.

`python -m easyr1.algorithms.describe` writes the file; a test fails while it is stale. In a docstring the first
paragraph is the idea; fields start a line with their name: Formula, Paper, Keys (what it reads), Departure.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from easyr1.algorithms.advantages import ESTIMATORS
from easyr1.algorithms.corrections import CORRECTIONS
from easyr1.algorithms.kl import COEFFICIENTS, PENALTIES, full
from easyr1.algorithms.losses import AVERAGES, LOSSES
from easyr1.algorithms.needs import FULL_KL, KL_WITHOUT_PULL_AS_LOSS, NEEDS, Needs
from easyr1.config.recipes import RECIPES

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "docs" / "algorithms.md"
TESTS = ROOT / "tests" / "algorithms"

FIELDS = ("Formula", "Paper", "Keys", "Departure")
_FIELD = re.compile(rf"({'|'.join(FIELDS)}): (.*)")
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")

HEAD = """\
# Algorithms

Made by `make config`; edit the docstrings in `easyr1/algorithms/`, not this page.

What each choice computes, the setting that chooses it, where it comes from, and where we depart from it. The functions
are pure and a few lines long, with a worked number in every docstring.

Notation: a *group* is a prompt with its n answers. Answer i has T_i tokens with the rewards r_{i,t} and the score s_i,
their sum (what the reward file calls `overall`, less the KL where that is in the reward). pi, pi_old and pi_ref are
the probabilities of a sampled token under the policy in training, the policy at the start of the step, and the
reference; r = pi / pi_old. A is the advantage. sg(x) is x without gradient.
"""

RECIPES_HEAD = """\
## Recipes

One name for a published set of settings: `algorithm.adv_estimator=dapo` or `algorithm.recipe=dapo`. Every key that you
set yourself stays as you set it, and the table at the start of a run shows what a recipe set. Recipes never touch the
learning rate, batch sizes, the number of answers or lengths.
"""

TAIL = """\
## Adding one

Write the function in `advantages.py`, `returns.py`, `losses.py` or `kl.py` with the fields that this page shows, enter
it in the table of its file and its name in `needs.py` (with what it needs: answers per prompt, values, a greedy
baseline, parts of the score, discounts), and run `make config`. The tests that run over every entry then cover it.
"""


@dataclass(frozen=True)
class Family:
    """Entries of one table, all chosen by one key."""

    title: str
    key: str
    table: Mapping[str, Any]
    intro: str
    needs: Callable[[str], str] = lambda name: ""


def estimator_needs(name: str) -> str:
    """What an estimator asks for, in words.

    >>> estimator_needs("gae")
    'a critic (`worker.critic`); `algorithm.gamma`; `algorithm.lam`'
    """
    needs: Needs = NEEDS[name]
    words = [f"`worker.rollout.n` of {needs.min_n} or more"] if needs.min_n > 1 else []
    words += ["a critic (`worker.critic`)"] if needs.values else []
    words += ["one greedy answer more for each prompt"] if needs.greedy_baseline else []
    words += ["numbers beside `overall` from the reward function, and no KL in the reward"] if needs.parts else []
    return "; ".join([*words, *[f"`algorithm.{key}`" for key in needs.discount]])


def penalty_needs(name: str) -> str:
    """Where a KL estimate is of use."""
    return "`algorithm.use_kl_loss=false`: as a loss it has no gradient on average" * (name in KL_WITHOUT_PULL_AS_LOSS)


FAMILIES = (
    Family(
        "Advantages",
        "algorithm.adv_estimator",
        ESTIMATORS,
        "How much better than expected an answer was. A group whose scores are equal up to rounding (1e-6 of the "
        "largest) gets exactly 0, not noise; a group of one is refused where answers are compared.",
        estimator_needs,
    ),
    Family(
        "Policy loss",
        "worker.actor.loss_type",
        LOSSES,
        "The loss of each token. low, high and dual are `clip_ratio_low`, `clip_ratio_high` and `clip_ratio_dual`. "
        "Metrics: `ppo_kl` is the mean of -log r; `pg_clipfrac_higher` the share of tokens held by the bounds of the "
        "ratio, `pg_clipfrac_lower` the share held by the dual clip. With one optimizer step per rollout r is 1 "
        "everywhere, nothing is clipped, and the gradient of each of them is REINFORCE's.",
    ),
    Family(
        "Averaging",
        "worker.actor.loss_avg_mode",
        AVERAGES,
        "All numbers that are divided by are counted over the whole mini-batch, on all ranks, before anything is "
        "computed. So loss and gradient do not depend on micro-batches, packing or the number of ranks.",
    ),
    Family(
        "KL to the reference",
        "algorithm.kl_penalty",
        PENALTIES | {FULL_KL: full},
        "Estimates for one token, with d = log pi - log pi_ref. `algorithm.use_kl_loss=true` adds `kl_coef` times "
        "their average to the loss; `false` takes `kl_coef` times each from the token's reward, with pi_old in place "
        "of pi; `algorithm.disable_kl=true` loads no reference at all.",
        penalty_needs,
    ),
    Family("KL coefficient", "algorithm.kl_type", COEFFICIENTS, "What becomes of `algorithm.kl_coef`."),
    Family(
        "Where sampler and trainer differ",
        "worker.rollout.correction",
        CORRECTIONS,
        "The loss of each token is multiplied by a weight made of r = pi_old / pi_sampler, where pi_sampler is what "
        "the sampler reported. cap is `worker.rollout.correction_cap`. `none` weighs nothing.",
    ),
)


def markdown_text() -> str:
    """The whole page."""
    text = "\n".join([HEAD, *map(family_text, FAMILIES), recipes_text(), TAIL])
    return re.sub(r"\n{3,}", "\n\n", _ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", text))


def family_text(family: Family) -> str:
    """A heading, and a paragraph with its facts for each entry."""
    entries = "\n".join(entry_text(family, name) for name in family.table)
    shared = properties_of(table_name(family.table))
    ending = f"Every entry: {tests_text(shared)}.\n" if shared else ""
    return f"## {family.title}\n\n{textwrap.fill(family.intro, 119)}\n\n{entries}\n{ending}"


def entry_text(family: Family, name: str) -> str:
    """One entry of a table."""
    entry = family.table[name]
    idea, fields = read_docstring(entry)
    facts = {
        "formula": f"`{fields['Formula']}`" if "Formula" in fields else "",
        "source": fields.get("Paper", ""),
        "needs": family.needs(name),
        "reads": ", ".join(f"`worker.actor.{key}`" for key in fields["Keys"].split(", ")) if "Keys" in fields else "",
        "recipes": recipes_of(family.key, name),
        "departure": fields.get("Departure", ""),
        "tests": tests_text(closed_forms_of(entry.__name__, name)),
    }
    lines = [f"- {fact}: {text}" for fact, text in facts.items() if text]
    return "\n".join([f"### `{family.key}={name}`", "", idea, "", *lines, ""])


def recipes_text() -> str:
    """The recipes with what they set."""
    parts = [RECIPES_HEAD]
    for name, recipe in RECIPES.items():
        settings = " ".join(f"{key}={in_yaml(value)}" for key, value in recipe.settings.items())
        parts.append(f"### `algorithm.recipe={name}`\n\n{recipe.source}.\n\n- sets: `{settings}`\n")
    return "\n".join(parts)


def in_yaml(value: Any) -> str:
    """A setting as one writes it on a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def recipes_of(key: str, name: str) -> str:
    """The recipes that choose an entry."""
    return ", ".join(f"`{recipe}`" for recipe, found in RECIPES.items() if found.settings.get(key) == name)


def read_docstring(entry: Any) -> tuple[str, dict[str, str]]:
    """The first paragraph of an entry's documentation, and its fields; each joined to one line.

    >>> from easyr1.algorithms.kl import k2
    >>> idea, fields = read_docstring(k2)
    >>> fields["Formula"]
    'd^2 / 2'
    """
    paragraphs = (inspect.getdoc(entry) or "").split("\n\n")
    fields: dict[str, str] = {}
    for paragraph in paragraphs[1:]:
        name = ""
        for line in paragraph.splitlines():
            found = _FIELD.fullmatch(line)
            if found:
                name, fields[found[1]] = found[1], found[2]
            elif name:
                fields[name] += f" {line.strip()}"
    return " ".join(paragraphs[0].split()), fields


def table_name(table: Mapping[str, Any]) -> str:
    """The name under which the tests know a table."""
    return next(name for name, value in globals().items() if value is table)


def closed_forms_of(function: str, name: str) -> Iterator[tuple[str, str]]:
    """(file, test) of each test that speaks of one entry, by its function or by its name in the table."""
    for file, test in all_tests():
        nodes = list(ast.walk(test))
        called = any(isinstance(node, ast.Name) and node.id == function for node in nodes)
        if called or any(isinstance(node, ast.Constant) and node.value == name for node in nodes):
            yield file, test.name


def properties_of(table: str) -> list[tuple[str, str]]:
    """(file, test) of each test that runs over all entries of a table."""
    return [
        (file, test.name)
        for file, test in all_tests()
        for decorator in test.decorator_list
        if any(isinstance(node, ast.Name) and node.id == table for node in ast.walk(decorator))
    ]


def all_tests() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every test function below tests/algorithms, with its file."""
    for path in sorted(TESTS.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield path.name, node


def tests_text(tests: Any) -> str:
    """Test names in words, by file.

    >>> tests_text([("test_kl.py", "test_closed_forms"), ("test_kl.py", "test_no_gap")])
    '`test_kl.py` (closed forms; no gap)'
    """
    by_file: dict[str, list[str]] = {}
    for file, name in tests:
        by_file.setdefault(file, []).append(name.removeprefix("test_").replace("_", " "))
    return ", ".join(f"`{file}` ({'; '.join(dict.fromkeys(names))})" for file, names in by_file.items())


def main() -> None:
    """Write the page."""
    TARGET.write_text(markdown_text(), encoding="utf-8")
    sys.stdout.write(f"wrote {TARGET}\n")


if __name__ == "__main__":
    main()
