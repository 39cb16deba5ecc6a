"""`easyr1 train`: check, show what will run, train."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from easyr1.cli.options import DRY_RUN, split
from easyr1.config.load import load
from easyr1.config.plan import Plan
from easyr1.config.resolve import plan_rows, resolve
from easyr1.config.schema import Config
from easyr1.tracking.progress import Progress
from easyr1.tracking.screen import open_screen
from easyr1.trainer.known import code_facts, machine_facts

HELP = """\
usage: easyr1 train [--dry-run] [config=run.yaml] [key=value ...]

Trains as a YAML file and the keys behind it say; a key on the command line wins over the file. The same as
`python3 -m verl.trainer.main`. Every key with its default stands in docs/config.md and examples/config.yaml.

  easyr1 train config=run.yaml --dry-run                          show what would run: batches, steps, devices, notes
  easyr1 train config=run.yaml                                    train; again: go on from the last checkpoint
  easyr1 train config=run.yaml trainer.max_steps=20 worker.rollout.n=8
  easyr1 train config=run.yaml trainer.load_checkpoint_path=checkpoints/easy_r1/demo/best

  --dry-run  check the settings and show the plan; load and write nothing

`easyr1 check` with the same arguments also reads all rows and tries the reward. Ctrl-C and SIGTERM save the last whole
step before they end the run; the same command goes on from there.
"""


def main(arguments: Sequence[str]) -> int:
    """Train as the key=value arguments say; with --dry-run stop before anything is loaded."""
    options, settings = split(arguments, [DRY_RUN])
    config, given = load(settings)
    if options:
        return dry_run(config, given, open_screen())
    train(config, given, open_screen(config.trainer.console))
    return 0


def dry_run(config: Config, given: frozenset[str], console: Console) -> int:
    """Print the plan as far as it is known without network, data and weights."""
    facts = code_facts(dry_run=True)
    resolve(config, given, facts)
    show_plan(resolve(config, given, machine_facts(facts)), config, console)
    console.print("dry run: nothing was loaded and nothing was written")
    return 0


def train(config: Config, given: frozenset[str], console: Console) -> dict[str, float]:
    """Train to the end. Returns the metrics of the last validation."""
    resolve(config, given, code_facts())  # what can be wrong without torch is told before it is loaded
    progress = Progress(console, as_json=config.trainer.console == "json")
    with progress.phase("loading torch and transformers"):
        facts = machine_facts(code_facts())
        resolve(config, given, facts)
        from easyr1.trainer.assemble import open_trainer, prepare

    inputs = prepare(config, given, facts, progress)
    show_plan(inputs.plan, config, console)
    show_notes(inputs.notes, console)
    if inputs.is_finished:
        console.print(f"all {inputs.plan.total_steps} steps are done; nothing is left to do", highlight=False)
        return {}
    with open_trainer(inputs, progress, console, lambda line: console.print(Text(line), soft_wrap=True)) as trainer:
        metrics = trainer.fit()
    console.print(f"report: {inputs.plan.run_folder / 'report.html'}", soft_wrap=True)
    return metrics


def show_plan(plan: Plan, config: Config, console: Console) -> None:
    """The table at the start of a run, and what the user should know before it goes on."""
    table = Table(title="what will run", show_header=False, title_justify="left")
    table.add_column()
    table.add_column(overflow="fold")  # a path that is cut is of no use
    for name, value in plan_rows(plan, config):
        table.add_row(Text(name), Text(value))
    console.print(table)
    show_notes(plan.notes, console)


def show_notes(notes: Iterable[str], console: Console) -> None:
    for note in notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)
