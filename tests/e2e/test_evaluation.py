"""`easyr1 eval` as a command of its own: stopped by a signal it keeps what is scored; vLLM samples as well."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import runs
import samplers
from commands import ROOT

from easyr1.cli.main import main
from easyr1.trainer.evaluate import read_answers

pytestmark = pytest.mark.slow
SLOW = """
import time
_scored = compute_score

def compute_score(inputs):
    time.sleep(0.5)
    return _scored(inputs)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_keeps_what_is_scored_and_the_same_command_goes_on(tmp_path, number):
    arguments = runs.arguments(tmp_path, rows=16, data__val_batch_size=2)
    (tmp_path / "reward.py").write_text(runs.REWARD + SLOW)
    command = [sys.executable, "-m", "easyr1.cli.main", "eval", *arguments, "worker.rollout.n=2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    file = tmp_path / "run" / "eval" / "qwen2" / "answers.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (file.is_file() and file.read_text().count("\n") >= 8):
        time.sleep(0.05)
    process.send_signal(number)
    shown = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number and "Traceback" not in shown and "what is scored is kept" in shown
    kept = file.read_text().splitlines()
    assert 8 <= len(kept) < 32
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and "rows are answered already" in done.stderr
    rows = read_answers(file.parent)
    assert len(rows) == 16 and all(len(answers) == 2 for answers in rows.values())
    assert file.read_text().splitlines()[: len(kept) // 2 * 2 - 2] == kept[: len(kept) // 2 * 2 - 2]


@pytest.mark.skipif(not samplers.HAS_VLLM, reason="vLLM is not installed")
def test_vllm_answers_greedily_as_the_torch_sampler_does(tmp_path):
    arguments = runs.arguments(tmp_path, "qwen2_5_vl", worker__rollout__enforce_eager="true")
    found = {}
    for name in ("torch", "vllm"):
        chosen = [f"worker.rollout.name={name}", "worker.rollout.temperature=0", f"--output={tmp_path / name}"]
        assert main(["eval", *arguments, *chosen]) == 0
        assert json.loads((tmp_path / name / "settings.json").read_text())["sampler"] == name
        found[name] = {at: lines[0]["response"] for at, lines in read_answers(tmp_path / name).items()}
    assert found["torch"] == found["vllm"] and len(found["torch"]) == 8
