"""Evaluation: n answers to every validation row by a model or a checkpoint, scored, kept line by line, summed up.

Samples and scores by the trainer's own engines, with the random numbers of its validations: with the settings of a
run, its checkpoint gets the numbers that the run itself logged. Trains nothing.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from easyr1.batch import Group, Prompt
from easyr1.cluster.engines import Balance
from easyr1.config.evaluation import plan_evaluation, without_training
from easyr1.config.paths import find_file
from easyr1.config.plan import Facts, Plan
from easyr1.config.resolve import val_sampling
from easyr1.config.schema import Config
from easyr1.data.dataset import PromptSet
from easyr1.data.media import MediaStore
from easyr1.engines.protocols import Sampling
from easyr1.errors import ConfigError, DataError
from easyr1.manifest import MANIFEST_FILE, sha256
from easyr1.rewards.load import load_reward
from easyr1.rewards.parsed import parsed_answer
from easyr1.rewards.worker import RewardSpec, RewardWorker
from easyr1.tracking.clock import Clock
from easyr1.tracking.jsonl import JsonLines, encode_row, read_rows, replace_text
from easyr1.tracking.progress import Progress
from easyr1.trainer.assemble import Inputs, Start, engine, sampler, scorer
from easyr1.trainer.checkpoint import Checkpoints
from easyr1.trainer.collect import Collector
from easyr1.trainer.parts import train_sampling
from easyr1.trainer.random_state import seed_generators
from easyr1.trainer.rank import open_ranks
from easyr1.trainer.rows import load_chat, media_store, read_prompts
from easyr1.trainer.stop import StopSignals
from easyr1.trainer.validate import VALIDATION_EPOCH

ANSWERS_FILE = "answers.jsonl"
SETTINGS_FILE = "settings.json"
SUMMARY_FILE = "summary.json"
ROWS_AT_ONCE = 256  # what an interruption may cost
LEAVING = "leaving; what is scored is kept"
WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


@dataclass(frozen=True)
class Evaluation:
    """All that was checked before a model is built."""

    inputs: Inputs
    sampling: Sampling
    folder: Path
    settings: Mapping[str, Any]  # what the answers depend on
    done: frozenset[int]  # places of the rows that are answered already

    @property
    def todo(self) -> list[int]:
        return [place for place in range(len(self.inputs.val)) if place not in self.done]


def eval_sampling(config: Config) -> Sampling:
    """How answers are drawn: as in a validation of the run."""
    return replace(train_sampling(config), **val_sampling(config))


def prepare_evaluation(config: Config, facts: Facts, folder: Path, progress: Progress) -> Evaluation:
    """Check checkpoint, reward, rows, and what `folder` holds of an earlier start. Loads no weights.

    ConfigError where the folder holds the answers of another evaluation.
    """
    sampling, plan = eval_sampling(config), plan_evaluation(config, facts)
    config = without_training(config, facts)
    checkpoints = Checkpoints(plan.run_folder)
    found = checkpoints.find(config.trainer.load_checkpoint_path, find_last=False)
    start = None if found is None else Start(found, checkpoints.read_state(found))
    reward = load_reward(config.worker.reward.reward_function, config.worker.reward.reward_function_kwargs, find_file)
    chat = load_chat(config)
    media = media_store(chat, config)
    rows = read_prompts(config, "val", chat, media, progress)
    if not len(rows):
        raise ConfigError("data.val_files", "no row is left; check data.val_files and data.max_prompt_length")
    notes = (f"rows: {rows.report}",)
    inputs = Inputs(config, frozenset(), plan, chat, media, rows, rows, reward, checkpoints, start, notes)
    settings = what_counts(config, plan, sampling, rows, reward, start)
    return Evaluation(inputs, sampling, folder, settings, earlier(folder, settings, sampling.n))


def what_counts(
    config: Config, plan: Plan, sampling: Sampling, rows: PromptSet, reward: RewardSpec, start: Start | None
) -> dict[str, Any]:
    """Everything that the answers and their scores depend on, as JSON has it."""
    model, data = config.worker.actor.model, config.data
    counted: dict[str, Any] = {
        "worker.actor.model.model_path": model.model_path,
        "weights": _weights_digest(str(model.model_path)) if start is None else sha256(start.folder / MANIFEST_FILE),
        "trainer.load_checkpoint_path": None if start is None else str(start.folder.absolute()),
        "step": None if start is None else start.state["step"],
        "data.val_files": data.val_files,
        "rows": len(rows),
        "content of the rows": _rows_digest(rows),
        "worker.reward.reward_function": config.worker.reward.reward_function,
        "content of the reward file": sha256(reward.path),
        "worker.reward.reward_function_kwargs": config.worker.reward.reward_function_kwargs,
        "data.min_pixels": data.min_pixels,
        "data.max_pixels": data.max_pixels,
        "sampler": plan.rollout_engine,
        "precision": plan.compute_dtype,
        **{f"sampling.{name}": value for name, value in asdict(sampling).items()},
    }
    return json.loads(json.dumps(counted, default=str))


def _weights_digest(model_path: str) -> str | None:
    """Changes with the files of a local model; None for one of a hub."""
    folder = Path(model_path).expanduser()
    files = sorted(file for pattern in WEIGHTS for file in folder.glob(pattern)) if folder.is_dir() else []
    listed = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(listed).encode()).hexdigest() if listed else None


def _rows_digest(rows: PromptSet) -> str:
    digest = hashlib.sha256()
    for prompt in rows:
        digest.update(
            repr((prompt.source, prompt.row, prompt.ids.tolist(), prompt.media, prompt.ground_truth)).encode()
        )
    return digest.hexdigest()


def earlier(folder: Path, settings: Mapping[str, Any], num_answers: int) -> frozenset[int]:
    """The rows that an earlier start of this very evaluation has answered; ConfigError if it was another one.

    Rows with only some of their answers, which a killed process leaves, are taken out of the file.
    """
    file = folder / SETTINGS_FILE
    if not file.is_file():
        if (folder / ANSWERS_FILE).exists():
            raise ConfigError("--output", f"{folder} holds {ANSWERS_FILE} but no {SETTINGS_FILE}; give another folder")
        return frozenset()
    before = json.loads(file.read_text(encoding="utf-8"))
    changed = [key for key in settings if before.get(key) != settings[key]]
    if changed:
        told = "; ".join(f"{key} was {_short(before.get(key))}, is {_short(settings[key])}" for key in changed)
        raise ConfigError(
            "--output", f"{folder} holds answers of another evaluation ({told}). Give another folder, or delete it"
        )
    return whole_rows(folder / ANSWERS_FILE, num_answers)


def whole_rows(file: Path, num_answers: int) -> frozenset[int]:
    """Places of the rows with all their answers; all other lines are taken out of the file."""
    lines = read_rows(file)
    counts: dict[int, set[int]] = {}
    for line in lines:
        counts.setdefault(line["index"], set()).add(line["answer"])
    whole = frozenset(place for place, answers in counts.items() if len(answers) == num_answers)
    kept = [encode_row(line) for line in lines if line["index"] in whole]
    if len(kept) < len(lines):
        replace_text(file, "".join(f"{line}\n" for line in kept))
    return whole


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def answer_rows(evaluation: Evaluation, progress: Progress, tell: Callable[[str], None]) -> None:
    """Sample and score what is not there yet, and write each answer once it is scored.

    Raises Stopped on SIGTERM and Ctrl-C; what is in the file then stays, and another start goes on behind it.
    """
    evaluation.folder.mkdir(parents=True, exist_ok=True)
    (evaluation.folder / SETTINGS_FILE).write_text(json.dumps(evaluation.settings, indent=2) + "\n", encoding="utf-8")
    file = JsonLines(evaluation.folder / ANSWERS_FILE)
    try:
        with StopSignals(LEAVING) as stop, stop.at_once(), _collector(evaluation.inputs, progress, tell) as collector:
            _answer(evaluation, collector, file, tell)
    finally:
        file.close()


def _answer(evaluation: Evaluation, collector: Collector, file: JsonLines, tell: Callable[[str], None]) -> None:
    """What is left to do, some rows at a time."""
    todo = iter(_usable(evaluation.inputs, evaluation.todo, tell))
    done, total = len(evaluation.done), len(evaluation.inputs.val)
    while batch := list(islice(todo, _rows_at_once(evaluation.inputs.config))):
        what = f"rows {done + 1}-{done + len(batch)} of {total}: "
        for group in collector.collect(batch, evaluation.sampling, Clock(), what):
            for line in lines_of(group):
                file.append(line)
        done += len(batch)


def _rows_at_once(config: Config) -> int:
    size = config.data.val_batch_size
    return min(size, ROWS_AT_ONCE) if size > 0 else ROWS_AT_ONCE


def _usable(inputs: Inputs, places: Sequence[int], tell: Callable[[str], None]) -> Iterator[Prompt]:
    """The prompts as a validation places them, without broken ones where data.on_bad_media says so, which is told."""
    for index in places:
        prompt = replace(inputs.val[index], epoch=VALIDATION_EPOCH, index=index)
        skips = inputs.media is not None and inputs.config.data.on_bad_media == "skip"
        problem = _problem(inputs.media, prompt) if skips and inputs.media is not None else None
        if problem is None:
            yield prompt
        else:
            tell(f"left out (data.on_bad_media=skip): {problem}")


def _problem(media: MediaStore, prompt: Prompt) -> str | None:
    return next((found for handle in prompt.media if (found := media.problem(handle))), None)


@contextmanager
def _collector(inputs: Inputs, progress: Progress, tell: Callable[[str], None]) -> Iterator[Collector]:
    """What samples with the weights asked for, and scores; ranks and the reward's process end with the block."""
    config = inputs.config
    if inputs.start is not None:
        with progress.phase("checking the checkpoint"):
            inputs.checkpoints.check(inputs.start.folder)
    seed_generators(config.data.seed)
    with ExitStack() as stack:
        groups = stack.enter_context(open_ranks(config, inputs.plan, inputs.media, progress, tell))
        worker = stack.enter_context(RewardWorker(inputs.reward, config.worker.reward.timeout_s, groups.check))
        balance = Balance()
        rollout = sampler(inputs, groups, balance)
        if inputs.start is not None:
            actor = engine(inputs, groups.train, "actor", balance)
            with progress.phase("loading the checkpoint"):
                actor.load(inputs.start.folder / "actor")
                rollout.load((), actor.version)
        yield Collector(rollout, scorer(inputs, worker), progress, config.worker.rollout.disable_tqdm)


def lines_of(group: Group) -> Iterator[dict[str, Any]]:
    """One record for each answer to a row."""
    prompt = group.prompt
    for number, sample in enumerate(group.samples):
        yield {
            "index": prompt.index,
            "source": prompt.source,
            "row": prompt.row,
            "answer": number,
            "scores": sample.scores,
            "parsed": parsed_answer(sample.text),
            "ground_truth": prompt.ground_truth,
            "tokens": len(sample),
            "finish_reason": sample.completion.finish_reason,
            "response": sample.text,
            "prompt": prompt.text,
        }


def read_answers(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Place of a row -> the lines of its answers, in order. DataError where there are none."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for line in read_rows(folder / ANSWERS_FILE):
        rows.setdefault(line["index"], []).append(line)
    if not rows:
        raise DataError(f"{folder / ANSWERS_FILE} holds no answers.")
    return {place: sorted(rows[place], key=lambda line: line["answer"]) for place in sorted(rows)}
