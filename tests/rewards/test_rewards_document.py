"""What docs/rewards.md tells people to copy works as it stands."""

import re
import runpy
from pathlib import Path

import pytest

from easyr1.config.paths import find_file
from easyr1.rewards.load import load_reward
from easyr1.rewards.worker import RewardWorker

ROOT = Path(__file__).resolve().parents[2]
STARTER, TRIAL, SEQUENTIAL, _ = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8"), re.DOTALL
)
RIGHT = {"response": "It is 5.\nAnswer: 5", "response_length": 9, "ground_truth": "5"}


def test_the_starter_scores_with_the_arguments_of_the_page(tmp_path):
    (tmp_path / "my_reward.py").write_text(STARTER)
    spec = load_reward(f"{tmp_path}/my_reward.py:compute_score", {"format_weight": 0.2}, find_file)
    assert (spec.name, spec.kind) == ("my_reward", "batch")
    with RewardWorker(spec, timeout_s=30) as worker:
        scores = worker.score([RIGHT, RIGHT | {"response": "Answer: 6"}], ["row 0", "row 1"])
    assert [score["overall"] for score in scores] == [pytest.approx(1.0), pytest.approx(0.2)]


def test_the_trial_runs_beside_the_starter(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_reward.py").write_text(STARTER)
    (tmp_path / "trial.py").write_text(TRIAL)
    monkeypatch.syspath_prepend(tmp_path)
    runpy.run_path(str(tmp_path / "trial.py"))
    assert capsys.readouterr().out == "[{'overall': 1.0, 'accuracy': 1.0, 'format': 1.0}]\n"


def test_the_sequential_one(tmp_path):
    (tmp_path / "one.py").write_text(SEQUENTIAL)
    with RewardWorker(load_reward(f"{tmp_path}/one.py:compute_score", {"bonus": 2}, find_file), 30) as worker:
        assert worker.score([RIGHT | {"response": " 5 "}], ["row 0"]) == [{"overall": 2.0}]
