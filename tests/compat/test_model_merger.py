"""The documented command lines of the merger, in processes of their own."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import runs
import transformers
from commands import ROOT, run

STEP = Path("checkpoints/easy_r1/exp_name/global_step_1")
LORA = {"worker.actor.model.lora.rank": 4}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Whether with LoRA -> a working folder as users have it, with a checkpoint and the scripts."""

    def make(lora: bool) -> Path:
        folder = tmp_path_factory.mktemp("merger")
        (folder / "scripts").symlink_to(ROOT / "scripts")
        settings = {"trainer.max_steps": 1, "trainer.val_freq": -1, "trainer.val_before_train": "false"}
        settings |= {"data.rollout_batch_size": 2, "trainer.save_checkpoint_path": folder / STEP.parent}
        runs.run(runs.arguments(folder, "qwen2_5_vl", rows=2, **settings, **(LORA if lora else {})))
        return folder

    return {lora: make(lora) for lora in (False, True)}


@pytest.fixture
def place(checkpoints, tmp_path):
    """A copy of such a folder that may be changed."""

    def of(lora: bool) -> Path:
        return shutil.copytree(checkpoints[lora], tmp_path / "here", symlinks=True)

    return of


def merger(folder: Path, *arguments: str, status: int = 0) -> str:
    """Output of `python3 scripts/model_merger.py ...` where easyr1 is not installed, only what it needs."""
    done = subprocess.run(
        [sys.executable, "-S", "scripts/model_merger.py", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": sysconfig.get_path("purelib"), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def load(folder: Path):
    model, report = transformers.AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    return model


@pytest.mark.slow
def test_the_actor_is_merged_into_its_huggingface_folder(place):
    folder = place(lora=False)
    shown = merger(folder, "--local_dir", str(STEP / "actor"))
    out = folder / STEP / "actor" / "huggingface"
    last = shown.splitlines()[-1]
    assert last == f'{out}: load it with transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained("{out}")'
    load(out)


@pytest.mark.slow
def test_an_adapter_is_merged_into_its_base(place):
    folder = place(lora=True)
    base = shutil.copytree(folder / "qwen2_5_vl", folder / "moved")
    arguments = ["--model_path", str(base), "--adapter_checkpoint", str(STEP / "actor")]
    merger(folder, *arguments, "--output_path", "./merged_geoqa_model")
    merged, before = (load(each).state_dict() for each in (folder / "merged_geoqa_model", base))
    changed = {name for name in merged if not merged[name].equal(before[name])}
    assert changed and all("language_model" in name and name.endswith("_proj.weight") for name in changed)


@pytest.mark.slow
def test_a_whole_model_needs_no_base_though_one_is_named(place):
    folder = place(lora=False)
    arguments = ["--model_path", "Qwen/Qwen2.5-VL-3B-Instruct", "--adapter_checkpoint", str(STEP / "actor")]
    shown = merger(folder, *arguments, "--output_path", "merged")
    assert "--model_path is not needed" in shown
    load(folder / "merged")


@pytest.mark.slow
def test_the_command_of_ours_and_a_damaged_checkpoint(place):
    folder = place(lora=True)
    shown = run("easyr1.cli.main", "merge", str(STEP), "--output_path", "out", "--adapter_only", folder=folder)
    assert "peft.PeftModel.from_pretrained" in shown.splitlines()[-1]
    assert json.loads((folder / "out" / "adapter_config.json").read_text())["r"] == 4
    weights = folder / STEP / "actor" / "lora_adapter" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    shown = run("easyr1.cli.main", "merge", str(STEP), "--output_path", "more", folder=folder, status=1)
    assert "adapter_model.safetensors is damaged" in shown and "Traceback" not in shown
    assert not (folder / "more").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "CHECKPOINT"),
        (["here", "--local_dir", "there"], "not allowed with"),
        (["--local_dirr", "there"], "arguments"),
        (["there", "--dtype", "int8"], "bfloat16"),
        (["there", "--hf_upload_path", "name"], "OWNER/NAME"),
        (["there"], "there is no folder"),
    ],
)
def test_a_wrong_call_ends_with_status_2(tmp_path, arguments, says):
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    shown = merger(tmp_path, *arguments, status=2)
    assert says in shown and "Traceback" not in shown


def test_help_names_every_spelling(tmp_path):
    shown = run("easyr1.cli.main", "merge", "--help", folder=tmp_path)
    for name in ("--local_dir", "--adapter_checkpoint", "--output_path", "--model_path", "--hf_upload_path"):
        assert name in shown
    assert "merge" in run("easyr1.cli.main", "--help", folder=tmp_path)
