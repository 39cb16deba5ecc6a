"""Validation scores: over all rows, and where there are several sources also source by source."""

import numpy as np
import pytest
import runs
import tiny

from easyr1.batch import Completion, Group, Prompt, Sample
from easyr1.trainer.validate import validation_metrics


def group(source, *scores):
    prompt = Prompt(row=0, ids=np.zeros(3, dtype=np.int64), source=source)
    completion = Completion(np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.float32), "stop", "0-0-0", 0)
    return Group(prompt, [Sample(completion, scores=one) for one in scores])


def rewards(*groups):
    found = validation_metrics(groups, max_prompt=8, max_response=8)
    return {name: value for name, value in found.items() if name.startswith("val/")}


def test_each_of_several_sources_has_its_own_scores():
    found = rewards(
        group("hiyouga/math12k@test", {"overall": 1.0, "accuracy": 1.0}),
        group("data/geo.parquet@test", {"overall": 0.0}, {"overall": 0.5}),
        group("hiyouga/math12k@test", {"overall": 0.0, "accuracy": 0.0}),
    )
    assert found == {
        "val/reward_score": 0.375,
        "val/overall_reward": 0.375,
        "val/accuracy_reward": 0.5,
        "val/math12k/overall_reward": 0.5,
        "val/math12k/accuracy_reward": 0.5,
        "val/geo/overall_reward": 0.25,  # and no accuracy: none of its answers has one
    }


def test_one_source_has_no_scores_of_its_own():
    assert set(rewards(group("a.jsonl", {"overall": 1.0}))) == {"val/reward_score", "val/overall_reward"}


def test_a_run_over_weighted_sources_with_columns_of_their_own(tmp_path):
    first = tiny.write_rows(tmp_path / "first.jsonl", tiny.text_rows(6))
    second = tiny.write_rows(tmp_path / "second.jsonl", [{"problem": "Add.", "answer": "2", "year": 1999}] * 4)
    arguments = runs.arguments(
        tmp_path,
        data__train_files=f"[{first},{second}]",
        data__train_weights="[0.5,2]",
        data__val_files=f"[{first},{second}]",
        data__rollout_batch_size=11,
        worker__actor__global_batch_size=11,
        trainer__max_steps=1,
    )
    (tmp_path / "reward.py").write_text(
        "def compute_score(inputs):\n"
        "    return [{'overall': len(one['response']) + one.get('year', 0) + one.get('level', 0)} for one in inputs]\n"
    )
    drawn = []
    _, found = runs.run(arguments, lambda trainer: drawn.extend(trainer.loader.next(11)))
    sources = [prompt.source for prompt in drawn]
    assert (sources.count(str(first)), sources.count(str(second))) == (3, 8)
    assert {name for prompt in drawn for name in prompt.columns} == {"level", "year"}
    assert all(prompt.columns.keys() != {"level", "year"} for prompt in drawn)
    assert found["val/second/overall_reward"] >= 1999 > found["val/first/overall_reward"]
    total = (6 * found["val/first/overall_reward"] + 4 * found["val/second/overall_reward"]) / 10
    assert found["val/reward_score"] == pytest.approx(total)
