"""`easyr1 check`: the training command line, tried without weights: rows, lengths, prompts, reward, batch sizes."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from easyr1.cli.options import split
from easyr1.config.load import load
from easyr1.config.plan import Facts, Plan
from easyr1.config.resolve import plan_rows, resolve
from easyr1.config.schema import Config, set_leaves
from easyr1.errors import CheckpointError, ConfigError, RewardError
from easyr1.tracking.progress import Progress
from easyr1.tracking.screen import open_screen, say_row
from easyr1.trainer.known import code_facts, machine_facts

if TYPE_CHECKING:
    from easyr1.data.dataset import PromptSet
    from easyr1.rewards.probe import Probe
    from easyr1.rewards.worker import RewardSpec
    from easyr1.trainer.rows import Data

DEEP = "--deep"
MODEL_KEY = "worker.actor.model.model_path"
HELP = """\
usage: easyr1 check [--deep] [config=run.yaml] [key=value ...]

Tries the command line of `easyr1 train` without weights, and writes nothing: reads all rows, measures prompts, shows
three of them, asks the reward about right, wrong and empty answers, and lists what would fail.

  easyr1 check config=run.yaml
  easyr1 check config=run.yaml data.max_prompt_length=1024 --deep
  easyr1 check config=run.yaml data.train_files=rows.jsonl worker.reward.reward_function=reward.py:compute_score

  --deep  decode all pictures and videos, too

Without worker.actor.model.model_path a small stand-in counts the tokens. Exit status: 0 it would run, 1 data or reward
would fail, 2 the configuration would.
"""
PLAIN_WIDTH = 160  # characters, where output is no terminal
MAX_CHARACTERS = 1500  # of a prompt
MAX_PROBLEMS = 20  # shown
NUM_PROMPTS = 3


@dataclass
class Findings:
    """What a run would end with, and what looks wrong."""

    configuration: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    stands_in: bool = False  # whether a small model stands in for one that is not named

    @property
    def exit_status(self) -> int:
        return 2 if self.configuration else 1 if self.failures else 0


def main(arguments: Sequence[str]) -> int:
    """Check and tell. Returns the exit status; what stops the check itself is raised as in training."""
    options, settings = split(arguments, [DEEP])
    config, given = load(settings)
    as_json = config.trainer.console == "json"
    screen = open_screen(config.trainer.console)
    progress = Progress(screen, as_json=as_json)
    console = out_console(quiet=as_json)
    found = Findings()
    with with_model(config, found) as config:
        facts = known_facts(config, given, found)
        check(config, given, facts, DEEP in options, found, progress, console)
    if as_json:
        say_row(screen, kind="check", would_run=found.exit_status == 0, **asdict(found))
    return tell(found, console)


def out_console(quiet: bool = False) -> Console:
    """Where results go; wide enough for tables where output is no terminal."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    return Console(width=width, highlight=False, quiet=quiet)


@contextmanager
def with_model(config: Config, found: Findings) -> Iterator[Config]:
    """The configuration; where it names no model, one without weights stands in, so that all else can be checked."""
    if config.worker.actor.model.model_path is not None:
        yield config
        return
    from easyr1.examples.quickstart.model import model_config, save_files
    from easyr1.examples.quickstart.tokenizer import build_tokenizer

    found.stands_in = True
    with TemporaryDirectory(prefix="easyr1-check-") as folder:
        tokenizer = build_tokenizer()
        save_files(Path(folder), tokenizer, model_config(tokenizer))
        yield set_leaves(config, {MODEL_KEY: folder})


def known_facts(config: Config, given: frozenset[str], found: Findings) -> Facts:
    """What is known of this machine; where it cannot run this configuration, that is noted and the check goes on."""
    resolve(config, given, code_facts(dry_run=True))  # what no machine could run is raised
    facts = machine_facts(code_facts())
    try:
        resolve(config, given, facts)
    except ConfigError as error:
        found.configuration.append(str(error))
        return machine_facts(code_facts(dry_run=True))
    return facts


def check(
    config: Config, given: frozenset[str], facts: Facts, deep: bool, found: Findings, progress: Progress, out: Console
) -> None:
    """All sections in turn."""
    from easyr1.config.paths import find_file
    from easyr1.rewards.load import load_reward
    from easyr1.trainer.assemble import find_start
    from easyr1.trainer.checkpoint import Checkpoints
    from easyr1.trainer.rows import read_data, row_notes, with_rows

    plan = resolve(config, given, facts)
    found.configuration += unusable_folders(config, plan, but_model=found.stands_in)
    changed: list[str] = []
    try:
        _, changed = find_start(config, Checkpoints(plan.run_folder))
    except (ConfigError, CheckpointError) as error:
        found.configuration.append(str(error))
    reward = load_reward(config.worker.reward.reward_function, config.worker.reward.reward_function_kwargs, find_file)
    data = read_data(config, plan, progress)
    show_rows(data, out)
    show_lengths(data, config, out)
    show_prompts(data, out)
    show_reward(data, config, reward, found, progress, out)
    if deep:
        look_deep(data, config, found, progress, out)
    try:
        plan = resolve(config, given, with_rows(facts, config, data))
    except ConfigError as error:
        found.configuration.append(str(error))
    show_plan(plan, config, f"{reward.name} ({reward.kind})", out)
    for note in (*row_notes(config, data), *changed, *plan.notes):
        out.print(Text(f"note: {note}"), soft_wrap=True)


def unusable_folders(config: Config, plan: Plan, but_model: bool) -> Iterator[str]:
    """What a start would stumble over only after the data was read."""
    from easyr1.data.model_files import has_weights

    model = Path(str(config.worker.actor.model.model_path)).expanduser()
    if model.is_dir() and not has_weights(model) and not but_model:
        yield f"{MODEL_KEY}: {model} holds no weights"
    there = next(folder for folder in (plan.run_folder, *plan.run_folder.parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        yield f"trainer.save_checkpoint_path: {plan.run_folder} cannot be made, {there} is no folder to write to"


def show_rows(data: "Data", out: Console) -> None:
    rows = []
    for name, prompts in named_sets(data):
        for number, (spec, kept) in enumerate(prompts.sources):
            dropped = sum(entry.table == number for entry in prompts.dropped)
            why = f"over data.max_prompt_length={prompts.report.limit}" if dropped else ""
            rows.append((name, spec, kept + dropped, kept, dropped, why))
    show(out, "rows", ("set", "source", "rows", "kept", "dropped", "why"), rows)


def show_lengths(data: "Data", config: Config, out: Console) -> None:
    """Lengths in tokens of all rows, and what other limits would do to them."""
    from easyr1.trainer.check import PERCENTILES, kept_at, percentiles, pixel_changes, row_lengths

    lengths, limits, pixels = [], [], []
    current = config.data.max_prompt_length
    pixel_limits = (config.data.min_pixels, config.data.max_pixels)
    for name, prompts in named_sets(data):
        rows = row_lengths(prompts, data.media)
        lengths.append((name, "text", *percentiles(row.text for row in rows)))
        if with_media := [row.media for row in rows if row.media]:
            lengths.append((name, f"pictures of {len(with_media)} rows", *percentiles(with_media)))
        lengths.append((name, "whole prompt", *percentiles(row.total for row in rows)))
        for limit, kept in kept_at(rows, current):
            limits.append((name, f"{limit} (now)" if limit == current else limit, kept, len(rows) - kept))
        if data.media is not None:
            changes = pixel_changes(prompts, data.chat, data.media, pixel_limits, current)
            for number, one in enumerate(changes):
                now = " (now)" if number == 0 else ""
                kept = f"{one.kept} of {one.rows}"
                shown = (one.min_pixels, f"{one.max_pixels}{now}", f"{one.per_picture:.1f}", one.longest, kept)
                pixels.append((name, *shown))
    columns = ("set", "tokens of", *("longest" if point == 100 else f"{point} %" for point in PERCENTILES))
    show(out, "lengths of all rows in tokens; so many percent of them are no longer", columns, lengths)
    show(out, "what max_prompt_length would change", ("set", "max_prompt_length", "kept", "dropped"), limits)
    if pixels:
        columns = ("set", "min_pixels", "max_pixels", "tokens a picture", "longest prompt", "rows kept")
        show(out, "what min_pixels and max_pixels would change, in rows with pictures", columns, pixels)


def show_prompts(data: "Data", out: Console) -> None:
    from easyr1.trainer.check import spread

    for prompt in spread(data.train, NUM_PROMPTS):
        media = f", pictures or videos: {len(prompt.media)}" if prompt.media else ""
        place = f"prompt: row {prompt.row} of {prompt.source}, {len(prompt.ids)} tokens{media}"
        out.print(Text(place, style="bold"), soft_wrap=True)
        out.print(Text(cut(prompt.text, MAX_CHARACTERS)), soft_wrap=True)
        out.print(Text(f"[ground truth: {prompt.ground_truth!r:.200}]\n"), soft_wrap=True)


def show_reward(
    data: "Data", config: Config, reward: "RewardSpec", found: Findings, progress: Progress, out: Console
) -> None:
    """The scores of right, wrong and empty answers; whatever fails or looks wrong is noted."""
    from easyr1.rewards.probe import judge, probe
    from easyr1.rewards.worker import RewardWorker
    from easyr1.trainer.check import probed_rows

    try:
        with progress.phase("trying the reward"), RewardWorker(reward, config.worker.reward.timeout_s) as worker:

            def tried(prompts: "PromptSet") -> "list[Probe]":
                return probe(probed_rows(prompts), worker, lambda text: len(data.chat.tokenizer.encode(text)))

            probes = tried(data.train)
            in_validation = tried(data.val) if config.data.val_files != config.data.train_files else []
    except RewardError as error:
        found.failures.append(str(error))
        return
    for number, one in enumerate(probes):
        rows = [("(empty)", "", score(one.empty))]
        for form, scores in one.right.items():
            rows.append((form.name, "right", score(scores) + (" <- most" if form == one.best else "")))
        rows.append((one.best.of(cut(one.wrong_answer, 60)), "wrong", score(one.wrong)))
        if number == 0 or one.gain <= 0:  # one table is enough where nothing is wrong
            show(out, f"reward on {one.place}: {cut(one.truth, 60)!r}", ("response", "is", "scores"), rows)
    others = [f"{one.place}: best {one.right[one.best]['overall']:g} as {one.best.name}" for one in probes[1:]]
    for line in others:
        out.print(Text(line), soft_wrap=True)
    failures, doubts = judge(probes)
    found.failures += failures
    found.doubts += [*doubts, *(f"in validation, {one}" for one in judge(in_validation)[0])]
    names = probes[0].right[probes[0].best]
    if config.algorithm.online_filtering and config.algorithm.filter_key not in names:
        found.configuration.append(
            f"algorithm.filter_key: {config.algorithm.filter_key!r} is none of the scores, {', '.join(names)}"
        )


def score(scores: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:g}" for name, value in scores.items())


def look_deep(data: "Data", config: Config, found: Findings, progress: Progress, out: Console) -> None:
    """Decode every picture and video."""
    if data.media is None:
        out.print("pictures: none, as the model takes none")
        return
    with progress.phase("decoding pictures") as tick:
        problems = data.media.deep_check(config.data.filter_overlong_prompts_workers, tick)
    out.print(Text(f"pictures and videos decoded: {len(data.media)}, broken: {len(problems)}"))
    for problem in problems[:MAX_PROBLEMS]:
        out.print(Text(f"  {problem}"), soft_wrap=True)
    if problems:
        skips = config.data.on_bad_media == "skip"
        told = f"{len(problems)} pictures or videos cannot be decoded, {problems[0]}"
        (found.doubts if skips else found.failures).append(told + (" (data.on_bad_media=skip)" if skips else ""))


def show_plan(plan: Plan, config: Config, reward: str, out: Console) -> None:
    rows = [(name, reward if name == "reward" else value) for name, value in plan_rows(plan, config)]
    show(out, "what would run", ("", ""), rows)


def tell(found: Findings, out: Console) -> int:
    """The last lines: whether it would run. Returns the exit status."""
    for doubt in found.doubts:
        out.print(Text(f"look at this: {doubt}", style="yellow"), soft_wrap=True)
    for reason in (*found.configuration, *found.failures):
        out.print(Text(f"would fail because {reason}", style="bold red"), soft_wrap=True)
    if found.stands_in:
        told = f"{MODEL_KEY} names no model: tokens are those of a small stand-in, of the family of Qwen2.5-VL"
        out.print(Text(f"look at this: {told}", style="yellow"), soft_wrap=True)
    if found.exit_status == 0:
        once = f", once {MODEL_KEY} is given" if found.stands_in else ""
        out.print(Text(f"checked: it would run{once}", style="bold green"), soft_wrap=True)
    return found.exit_status


def named_sets(data: "Data") -> "list[tuple[str, PromptSet]]":
    return [("training", data.train), ("validation", data.val)]


def cut(text: str, limit: int) -> str:
    """The text, or its two ends with what is left out counted."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]} [... {len(text) - limit} characters ...] {text[-(limit // 2) :]}"


def show(out: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; without lines where output is no terminal."""
    style = box.SIMPLE_HEAD if out.is_terminal else None
    table = Table(box=style, show_header=any(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text("null" if value is None else str(value)) for value in row))
    out.print(Text(title, style="bold"), soft_wrap=True)
    out.print(table)
    out.print()
