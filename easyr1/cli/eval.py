"""`easyr1 eval`: n answers to every row of a data set by a model or a checkpoint, scored and summed up."""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from easyr1.cli.check import out_console
from easyr1.cli.check import show as show_table
from easyr1.cli.options import DRY_RUN, split
from easyr1.cli.train import make_console, show_notes
from easyr1.config.evaluation import plan_evaluation
from easyr1.config.load import load
from easyr1.config.plan import Plan
from easyr1.config.resolve import val_sampling
from easyr1.config.schema import Config
from easyr1.errors import ConfigError
from easyr1.manifest import read_json
from easyr1.tracking.progress import Progress
from easyr1.trainer.known import code_facts, machine_facts

HELP = """\
usage: easyr1 eval [--output FOLDER] [--score NAME] [--right-from NUMBER] [--dry-run] [config=run.yaml] [key=value ...]

Answers every row of data.val_files n times, scores the answers with worker.reward.reward_function, and tells mean@n,
pass@k and maj@k with 95 % intervals over rows, overall and for each source. Settings are those of `easyr1 train`:

  easyr1 eval config=run.yaml                                                the model that a run starts from
  easyr1 eval trainer.load_checkpoint_path=checkpoints/easy_r1/demo/best     a checkpoint, with its run's settings
  easyr1 eval config=run.yaml worker.actor.model.model_path=./merged         any model folder
  easyr1 eval config=run.yaml data.val_files=test.jsonl worker.rollout.n=16 worker.rollout.temperature=1

Answers are drawn as in validation (worker.rollout.val_override_config). On this command line worker.rollout.n,
temperature, top_p and top_k stand for its entries.

  --output FOLDER      where answers.jsonl and summary.json go; default: RUN FOLDER/eval/NAME OF THE MODEL OR STEP.
                       The same command goes on where it was stopped.
  --score NAME         the score that tells right from wrong; default: accuracy, else overall
  --right-from NUMBER  the least of that score that is right; default: 1
  --dry-run            show what would be evaluated; load and write nothing

docs/evaluation.md says how an answer is read for the vote, and what the files hold.
"""
SAMPLING = ("n", "temperature", "top_p", "top_k")
LOAD_KEY = "trainer.load_checkpoint_path"


def main(arguments: Sequence[str]) -> int:
    """Evaluate and show. Returns the exit status."""
    given, settings = parse(arguments)
    if not settings:
        raise ConfigError("eval", f"nothing is named; give config=run.yaml, or {LOAD_KEY}=RUN/best (--help)")
    console = make_console()
    config = read_settings(settings)
    if given.dry_run:
        return dry_run(config, given, console)
    plan_evaluation(config, code_facts())  # what can be wrong without torch is told before it is loaded
    facts = machine_facts(code_facts())
    plan = plan_evaluation(config, facts)
    from easyr1.trainer.evaluate import answer_rows, prepare_evaluation, read_answers
    from easyr1.trainer.summary import judgement, summarise

    progress = Progress(console)
    evaluation = prepare_evaluation(config, facts, folder_of(given, config, plan), progress)
    show(plan, config, evaluation.folder, len(evaluation.inputs.val), console)
    show_notes((*evaluation.inputs.notes, *plan.notes), console)
    if evaluation.done:
        total = len(evaluation.inputs.val)
        console.print(Text(f"{len(evaluation.done)} of {total} rows are answered already"), soft_wrap=True)
    if evaluation.todo:
        answer_rows(evaluation, progress, lambda line: console.print(Text(line), soft_wrap=True))
    rows = read_answers(evaluation.folder)
    by = judgement(rows, given.score, given.right_from)
    with progress.phase("summing up"):
        found = summarise(rows, by)
    whole = {"settings": evaluation.settings, "score": by.score, "right_from": by.at_least, **found}
    file = evaluation.folder / "summary.json"
    file.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    show_numbers(found, f"{by.score} >= {by.at_least:g} is right", out_console())
    console.print(Text(f"answers and summary: {evaluation.folder}"), soft_wrap=True)
    return 0


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the settings of training among the arguments."""
    parser = argparse.ArgumentParser("easyr1 eval", allow_abbrev=False)
    parser.add_argument("--output", metavar="FOLDER")
    parser.add_argument("--score", metavar="NAME")
    parser.add_argument("--right-from", metavar="NUMBER", type=float, default=1.0)
    parser.add_argument("--dry-run", action="store_true")
    given, rest = parser.parse_known_args(arguments)
    return given, split(rest, ["--output", "--score", "--right-from", DRY_RUN])[1]


def read_settings(arguments: Sequence[str]) -> Config:
    """The configuration; without a file, a checkpoint that is named brings the settings of its run."""
    keys = {key: value for key, _, value in (argument.partition("=") for argument in arguments)}
    path = keys.get(LOAD_KEY, "null")
    named = "config" not in keys and path != "null"
    config, _ = load([as_of_validation(argument) for argument in arguments], settings_of(path) if named else None)
    return config


def as_of_validation(argument: str) -> str:
    """Sampling keys as those of validation, which is how answers are drawn here.

    >>> as_of_validation("worker.rollout.n=8"), as_of_validation("worker.rollout.name=torch")
    ('worker.rollout.val_override_config.n=8', 'worker.rollout.name=torch')
    """
    key, equals, value = argument.partition("=")
    section, _, name = key.rpartition(".")
    if section == "worker.rollout" and name in SAMPLING:
        return f"{section}.val_override_config.{name}{equals}{value}"
    return argument


def settings_of(path: str) -> Mapping[str, Any]:
    """The settings of the run that a checkpoint belongs to."""
    from easyr1.trainer.checkpoint import STATE_FILE, Checkpoints

    if path in ("best", "last"):
        raise ConfigError(LOAD_KEY, f"{path} of which run? Give the folder, RUN/{path}, or config= of the run")
    step = Checkpoints(Path()).find(path, find_last=False)
    assert step is not None
    return read_json(step / STATE_FILE)["config"]


def folder_of(given: argparse.Namespace, config: Config, plan: Plan) -> Path:
    """Where the answers go: named by the step of a checkpoint, or else by the model."""
    if given.output is not None:
        return Path(given.output).expanduser().absolute()
    if config.trainer.load_checkpoint_path is not None:
        from easyr1.trainer.checkpoint import Checkpoints

        step = Checkpoints(plan.run_folder).find(config.trainer.load_checkpoint_path, find_last=False)
        assert step is not None
        return step.absolute().parent / "eval" / step.name
    model = re.sub(r"[^\w.-]+", "-", Path(str(config.worker.actor.model.model_path)).name)
    return plan.run_folder / "eval" / (model or "model")


def dry_run(config: Config, given: argparse.Namespace, console: Console) -> int:
    """Show what is known without data and weights."""
    plan = plan_evaluation(config, machine_facts(code_facts(dry_run=True)))
    show(plan, config, folder_of(given, config, plan), None, console)
    show_notes(plan.notes, console)
    console.print("dry run: nothing was loaded and nothing was written")
    return 0


def show(plan: Plan, config: Config, folder: Path, num_rows: int | None, console: Console) -> None:
    """What will be evaluated, and how."""
    drawn = val_sampling(config)
    how = ", ".join(f"{name} {value:g}" for name, value in drawn.items() if name not in ("n", "max_tokens"))
    files = config.data.val_files
    specs = files if isinstance(files, str) else ", ".join(files)
    rows = "" if num_rows is None else f"{num_rows} of "
    table = Table(title="what is evaluated", show_header=False, title_justify="left")
    for name, value in (
        ("model", str(config.worker.actor.model.model_path)),
        ("checkpoint", config.trainer.load_checkpoint_path or "none: the model as it is"),
        ("device", f"{plan.device or 'not known yet'}, {plan.world_size} rank{'s' * (plan.world_size > 1)}"),
        ("sampler", f"{plan.rollout_engine}, {plan.compute_dtype or 'precision not known yet'}"),
        (
            "rows",
            f"{rows}{specs}",
        ),
        ("answers a row", f"{drawn['n']} ({how}, at most {drawn['max_tokens']} tokens)"),
        ("reward", str(config.worker.reward.reward_function)),
        ("folder", str(folder)),
    ):
        table.add_row(Text(name), Text(value))
    console.print(table)


def show_numbers(found: Mapping[str, Any], judged: str, out: Console) -> None:
    """A table with a column for each source and one for all of them."""
    parts = {**found.get("sources", {}), "overall": found["overall"]}
    whole = found["overall"]
    estimated = [name for name, value in whole.items() if isinstance(value, dict) and "low" in value]
    rows = [[name, *(str(part[name]) for part in parts.values())] for name in ("rows", "answers")]
    rows += [[name, *(_with_bounds(part.get(name)) for part in parts.values())] for name in estimated]
    rows += [
        [f"mean of {name}", *(_number(part["scores"].get(name)) for part in parts.values())]
        for name in whole["scores"]
    ]
    for name, label in (("truncated", "truncated"), ("unparsed", "no answer to read")):
        rows.append([label, *(f"{100 * part[name]:.1f} %" for part in parts.values())])
    rows.append(["tokens an answer", *(f"{part['tokens']:.1f}" for part in parts.values())])
    show_table(out, f"{judged}; 95 % intervals over rows", ["", *parts], rows)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _with_bounds(one: Mapping[str, float] | None) -> str:
    return "" if one is None else f"{one['value']:.4f} [{one['low']:.4f}, {one['high']:.4f}]"
