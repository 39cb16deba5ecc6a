"""The documented commands as a user types them, in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from commands import ROOT, run

from easyr1.cli.main import main

GEOMETRY3K = Path(os.environ.get("EASYR1_GEOMETRY3K", ROOT.parent / "shared/data/geometry3k-mini"))


@pytest.mark.parametrize("command", (["verl.trainer.main"], ["easyr1.cli.main", "train"]))
def test_a_dry_run_shows_the_plan_and_leaves_nothing(tmp_path, command):
    settings = ["config=examples/config.yaml", "data.train_files=hiyouga/geometry3k@train", "trainer.max_steps=195"]
    settings += ["data.rollout_batch_size=32", "worker.actor.global_batch_size=16", "worker.rollout.n=4"]
    shown = run(*command, *settings, "--dry-run", folder=tmp_path)
    assert "128 (32 prompts x 4 answers)" in shown and "2 (16 prompts each)" in shown and "195" in shown
    assert list(tmp_path.iterdir()) == []


def test_mistakes_end_with_one_line_and_status_2(tmp_path):
    shown = run("easyr1.cli.main", "train", "data.max_prompt_lenght=10", folder=tmp_path, status=2)
    assert "data.max_prompt_length" in shown and "Traceback" not in shown and len(shown.splitlines()) == 1
    shown = run("easyr1.cli.main", "trian", folder=tmp_path, status=2)
    assert "no command 'trian'" in shown and "quickstart" in shown


@pytest.mark.parametrize("command", (["--help"], ["env", "--json"]))
def test_a_reader_that_has_seen_enough_gets_no_traceback(command):
    read, write = os.pipe()
    os.close(read)
    python = [sys.executable, "-m", "easyr1.cli.main"]
    done = subprocess.run([*python, *command], cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_report_is_made_of_runs_alone(tmp_path, capsys):
    for wrong in ([], [str(tmp_path / "nowhere")], [str(tmp_path)], ["--dry-run", str(tmp_path)]):
        assert main(["report", *wrong]) == 2
        assert capsys.readouterr().err.startswith("configuration error: report: ")
    assert not list(tmp_path.iterdir())


def test_a_broken_row_ends_with_one_line_before_a_model_is_built(tmp_path):
    model = tiny.save("qwen2_5_vl", tmp_path / "model")
    (model / "model.safetensors").unlink()  # never reached
    rows = tiny.vision_rows(6)
    rows[4]["problem"] = "no placeholder"
    data = tiny.write_rows(tmp_path / "rows.jsonl", rows)
    settings = [f"data.train_files={data}", f"data.val_files={data}", f"worker.actor.model.model_path={model}"]
    sizes = ["data.rollout_batch_size=4", "worker.actor.global_batch_size=4"]
    shown = run("easyr1.cli.main", "train", *settings, *sizes, folder=tmp_path, status=1)
    assert "row 4" in shown.replace("\n", " ") and "Traceback" not in shown


@pytest.mark.skipif(not GEOMETRY3K.is_dir(), reason="the Geometry3K pictures are not here")
def test_real_pictures_train_validate_save_and_resume(tmp_path):
    model = tiny.save("qwen2_5_vl", tmp_path / "model")
    data = GEOMETRY3K / "train.jsonl"
    settings = [
        "config=examples/config.yaml",
        f"data.train_files={data}",
        f"data.val_files={data}",
        "data.format_prompt=./examples/format_prompt/r1v.jinja",
        "data.rollout_batch_size=4",
        "data.max_response_length=32",
        "data.min_pixels=3136",
        "data.max_pixels=100352",
        "worker.actor.global_batch_size=2",
        "worker.rollout.n=3",
        f"worker.actor.model.model_path={model}",
        "worker.reward.reward_function=./examples/reward_function/r1v.py:compute_score",
        f"trainer.save_checkpoint_path={tmp_path / 'run'}",
        "trainer.val_freq=2",
        "trainer.save_freq=2",
    ]
    shown = run("verl.trainer.main", *settings, "trainer.max_steps=2")
    assert "kept 10 of 10" in shown and "[Step 2] train | " in shown and "r1v" in shown
    shown = run("verl.trainer.main", *settings, "trainer.max_steps=3")
    assert "step 2 of 3 is done" in shown and "[Step 3] train" in shown and "[Step 1]" not in shown
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps[0] == 0 and steps[-1] == 3 and steps == sorted(steps)
    saved = tmp_path / "run" / "global_step_3" / "actor" / "huggingface"
    assert (saved / "preprocessor_config.json").read_bytes() == (model / "preprocessor_config.json").read_bytes()
