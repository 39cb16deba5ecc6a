"""What the quickstart promises to have learnt at the end, and the instruments that measure it."""

import numpy as np
import pytest
from rich.console import Console

from benchmarks.quickstart_control import exchanged, permuted, run, table
from easyr1.batch import Completion, Group, Prompt, Sample
from easyr1.cli.quickstart import SETTINGS, make_inputs
from easyr1.config.load import load


def prompt(number: int, task: str) -> Prompt:
    return Prompt(
        number, np.array([number]), media=(f"picture {number}",), ground_truth=number, columns={"task": task}
    )


def group(*scores: float) -> Group:
    completion = Completion(np.array([1]), np.zeros(1, np.float32), "stop", "", 0)
    samples = [Sample(completion, text=str(score), scores={"accuracy": score}) for score in scores]
    return Group(prompt(0, "which"), samples)


def test_exchanged_pictures_come_from_another_row_of_the_same_task():
    prompts = [prompt(number, "which" if number % 2 else "larger") for number in range(6)]
    found = exchanged(prompts)
    assert sorted(one.ground_truth for one in found) == list(range(6))
    for one in found:
        other = int(one.media[0].split()[-1])
        assert other != one.ground_truth
        assert other % 2 == one.ground_truth % 2
        assert one.ids.tolist() == [one.ground_truth]


def test_permuted_scores_stay_in_their_group_and_leave_their_answer():
    groups = [group(*range(8)) for _ in range(20)]
    scored = []
    permuted(lambda groups, tick: scored.append(len(groups)))(groups, None)
    assert scored == [20]
    for one in groups:
        assert sorted(sample.scores["accuracy"] for sample in one.samples) == list(range(8))
    kept = [sample.text == str(sample.scores["accuracy"]) for one in groups for sample in one.samples]
    assert np.mean(kept) < 0.3
    alone = group(0.5)
    permuted(lambda groups, tick: None)([alone], None)
    assert alone.samples[0].scores == {"accuracy": 0.5}


def test_the_table_has_a_row_for_each_number():
    text = table({"before": {"accuracy": 0.25}, "after": {"accuracy": 0.9}})
    assert text.splitlines() == ["|  | before | after |", "| --- | --- | --- |", "| accuracy | 0.250 | 0.900 |"]


@pytest.mark.slow
def test_the_quickstart_learns_to_look(tmp_path):
    console = Console(quiet=True)
    base, rows = make_inputs(load([SETTINGS])[0], tmp_path, console)
    before, after = run(
        [
            SETTINGS,
            f"data.train_files={rows.train}",
            f"data.val_files={rows.val}",
            f"worker.actor.model.model_path={base}",
            f"trainer.save_checkpoint_path={tmp_path / 'run'}",
            "trainer.logger=['file']",
        ],
        console,
        permute=False,
    )
    assert 0.2 <= before["sampled: accuracy"] <= 0.5
    assert 0.5 <= before["sampled: format"] <= 0.9
    assert after["sampled: accuracy"] >= max(0.8, before["sampled: accuracy"] + 0.35)
    assert after["sampled: format"] >= 0.95
    assert after["greedy: accuracy"] >= before["greedy: accuracy"] + 0.2
    assert after["greedy: accuracy of 'which'"] >= 0.7
    assert after["greedy: accuracy of 'larger'"] >= 0.7
    assert after["greedy, pictures exchanged: accuracy"] <= 0.25
