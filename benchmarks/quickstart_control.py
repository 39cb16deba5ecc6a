"""Does the quickstart learn to look? One seed: the real run, and a control whose rewards say nothing.

    python benchmarks/quickstart_control.py [key=value ...]

Arguments are settings of training, as of `easyr1 quickstart`; data.seed chooses the seed. Before and after the run,
all validation rows are answered greedily: with their own pictures, and with those of another row of the same task,
which shows what can be guessed without looking. In the control the scores of each group are permuted among its
answers, so that their means and spreads stay and their meaning goes. Prints a Markdown table and writes the numbers as
JSON into the run folder. Takes about twice as long as the quickstart.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console

from easyr1.batch import Group, Prompt
from easyr1.cli.main import calm_threads

Numbers = dict[str, float]
CONTROL_SEED = 12345


def main(arguments: Sequence[str]) -> None:
    calm_threads()
    from easyr1.cli.quickstart import SETTINGS, make_inputs, run_folder
    from easyr1.config.load import load

    console = Console(stderr=True)
    config, _ = load([SETTINGS, *arguments])
    folder = run_folder(config)
    base, rows = make_inputs(config, folder, console)
    settings = [
        SETTINGS,
        f"data.train_files={rows.train}",
        f"data.val_files={rows.val}",
        f"worker.actor.model.model_path={base}",
        f"worker.rollout.seed={config.data.seed}",
        *arguments,
    ]
    real = run([*settings, f"trainer.save_checkpoint_path={folder / 'real'}"], console, permute=False)
    control = run([*settings, f"trainer.save_checkpoint_path={folder / 'control'}"], console, permute=True)
    columns = {"before": real[0], "after": real[1], "control, after": control[1]}
    (folder / "control.json").write_text(json.dumps(columns, indent=1))
    sys.stdout.write(f"seed {config.data.seed}, numbers in {folder / 'control.json'}\n\n{table(columns)}\n")


def run(settings: Sequence[str], console: Console, permute: bool) -> tuple[Numbers, Numbers]:
    """Train; the numbers before and after."""
    from easyr1.config.load import load
    from easyr1.tracking.progress import Progress
    from easyr1.trainer.assemble import open_trainer, prepare
    from easyr1.trainer.known import code_facts, machine_facts

    config, given = load(list(settings))
    progress = Progress(console)
    inputs = prepare(config, given, machine_facts(code_facts()), progress)
    with open_trainer(inputs, progress, console) as trainer:
        if permute:
            trainer.collector.score = permuted(trainer.collector.score)
        before = measure(trainer)
        trainer.fit()
        return before, measure(trainer)


def measure(trainer) -> Numbers:
    """Accuracy and format of greedy and of sampled answers to the validation rows."""
    greedy = replace(trainer.val_sampling, temperature=0.0, n=1)
    prompts = trainer.val_prompts[:]
    numbers = {}
    for name, sampling, asked in (
        ("sampled", trainer.val_sampling, prompts),
        ("greedy", greedy, prompts),
        ("greedy, pictures exchanged", greedy, exchanged(prompts)),
    ):
        groups = answer(trainer, asked, sampling)
        numbers[f"{name}: accuracy"] = mean(groups, "accuracy")
        numbers[f"{name}: format"] = mean(groups, "format")
        for task in tasks(prompts):
            part = [group for group in groups if group.prompt.columns["task"] == task]
            numbers[f"{name}: accuracy of {task!r}"] = mean(part, "accuracy")
    return numbers


def answer(trainer, prompts: Sequence[Prompt], sampling) -> list[Group]:
    """Scored groups, by the trainer's own validation."""
    from easyr1.tracking.clock import Clock
    from easyr1.trainer.validate import validate

    return validate(prompts, trainer.collector, sampling, -1, Clock())


def exchanged(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Each prompt with the pictures of the next one of its task; questions, ids and answers stay."""
    found = []
    for task in tasks(prompts):
        own = [prompt for prompt in prompts if prompt.columns["task"] == task]
        found += [replace(prompt, media=other.media) for prompt, other in zip(own, own[1:] + own[:1], strict=True)]
    return found


def permuted(score: Callable) -> Callable:
    """The scorer, but each group's scores belong to a random one of its answers."""
    from easyr1.seeding import generator

    random = generator(CONTROL_SEED)

    def score_and_permute(groups: list[Group], tick) -> None:
        score(groups, tick)
        for group in groups:
            scores = [sample.scores for sample in group.samples]
            for sample, place in zip(group.samples, random.permutation(len(scores)), strict=True):
                sample.scores = scores[place]

    return score_and_permute


def tasks(prompts: Sequence[Prompt]) -> list[str]:
    return list(dict.fromkeys(prompt.columns["task"] for prompt in prompts))


def mean(groups: Sequence[Group], name: str) -> float:
    values = [sample.scores[name] for group in groups for sample in group.samples]
    return sum(values) / len(values)


def table(columns: dict[str, Numbers]) -> str:
    """Markdown: one row a number, one column an occasion."""
    names = next(iter(columns.values()))
    cells = [["", *columns], ["---"] * (len(columns) + 1)]
    cells += [[name, *(f"{numbers[name]:.3f}" for numbers in columns.values())] for name in names]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


if __name__ == "__main__":
    main(sys.argv[1:])
