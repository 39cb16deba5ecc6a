"""Everything that the tutorials of the original tell people to type or save works, or docs/differences.md says what to
type instead."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import runs
import tiny
from commands import ROOT
from tutorials import FOLDER, Piece, pieces, unglued

from easyr1.cli.main import main, run
from easyr1.config.load import from_mapping
from easyr1.config.paths import find_file
from easyr1.config.schema import known_keys
from easyr1.data.chat import Chat
from easyr1.errors import ConfigError, RewardError
from easyr1.rewards.load import load_reward
from easyr1.rewards.worker import RewardWorker

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the tutorials are not here")

DIFFERENCES = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
NOT_AS_WRITTEN = {  # the beginning of a line -> what is typed instead; both stand in docs/differences.md
    "docker pull hiyouga/verl": "Dockerfile",
    "docker run -it --ipc=host --gpus=all": "Dockerfile",
    "apptainer pull easyr1.sif docker://hiyouga/verl": "apptainer.def",
    "apptainer shell --nv --cleanenv": "apptainer.def",
    "git clone https://github.com/hiyouga/EasyR1.git": "git clone",
    "cd EasyR1": "cd",
    "conda create -n EasyR1 python=3.10": "python3 -m venv .venv",
    "conda activate EasyR1": "source .venv/bin/activate",
    "python3 -m verl.tainer.main": "python3 -m verl.trainer.main",
    "ray start --address=<head_node_ip>:6379": "<head_node_ip>",
    "bash examples/qwen3_vl_4b_geo3k_grpo_VLM.sh": "qwen3_vl_4b_geo3k_grpo.sh",
    "check_answer": "check_format",
    "worker.actor.model.path": "worker.actor.model.model_path",
    "export WANDB_ENTITY=<wandb-entity>": "<username>",
}
ELSEWHERE = ("docker", "apptainer", "git", "cd", "conda")  # of other programs, and not as written
INSTALLING = {"pip install -e .": None, 'pip install -e ".[vllm]"': "vllm", "pip install -r requirements.txt": None}
MISPRINTS = {"verl.tainer": "verl.trainer"}
KEY = re.compile(r"\b(?:data|algorithm|worker|trainer)\.[a-z][\w.]*\w")
NO_KEY = re.compile(r"\.(py|sh|yaml|jinja|main)$")  # files and modules with such names
CHECKPOINTS = ("exp_name/global_step_1", "exp_name/global_step_40", "qwen2_5_vl_3b_geoqa8k/global_step_15")


def found(kind: str) -> list[Piece]:
    return [piece for piece in (pieces() if FOLDER.is_dir() else []) if piece.kind == kind]


def ids(kind: str) -> list:
    """Those of a kind, each text once."""
    pieces_by_text = {piece.text: piece for piece in reversed(found(kind))}
    return [pytest.param(piece, id=piece.where) for piece in reversed(pieces_by_text.values())]


def starting(*programs: str) -> list:
    return [param for param in ids("command") if param.values[0].text.split()[0] in programs]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A copy of the checkout as links, with a `python3` on the PATH that only notes what it is asked."""
    (tmp_path / "examples").mkdir()
    for entry in (ROOT / "examples").iterdir():
        (tmp_path / "examples" / entry.name).symlink_to(entry)
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    (tmp_path / "bin").mkdir()
    for name in ("python", "python3"):
        noting = tmp_path / "bin" / name
        noting.write_text('#!/bin/bash\nprintf "%s\\0" "$@" >> "$NOTED"\nprintf "\\n\\0" >> "$NOTED"\n')
        noting.chmod(0o755)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked_of_python(text: str, folder: Path) -> list[list[str]]:
    """The arguments of every call of python that a piece of shell makes; the shell itself must not fail."""
    noted = folder / "noted"
    environment = os.environ | {"NOTED": str(noted), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e", "-c", text], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    calls = noted.read_text().split("\n\0")[:-1]
    noted.unlink()
    return [call.split("\0")[:-1] for call in calls]


def dry_run(call: list[str]) -> int:
    """What `python3 -m ...` would do, with --dry-run behind it."""
    assert call[0] == "-m"
    if call[1] == "verl.trainer.main":
        return run("easyr1.cli.train", [*call[2:], "--dry-run"])
    assert call[1] == "easyr1.cli.main"
    return main([*call[2:], "--dry-run"])


def corrected(text: str) -> str:
    for wrong, right in MISPRINTS.items():
        text = text.replace(wrong, right)
    return text


def test_the_tutorials_are_taken_apart():
    counts = {kind: len(found(kind)) for kind in ("command", "script", "yaml", "python", "template")}
    assert counts["command"] >= 40 and counts["yaml"] == 4 and counts["python"] == 3 and counts["template"] == 1
    assert counts["script"] == 3


@pytest.mark.parametrize("written", NOT_AS_WRITTEN)
def test_what_does_not_work_as_written_is_told_with_what_does(written):
    rows = [line for line in DIFFERENCES.splitlines() if line.startswith("|") and written in line]
    assert rows and all(NOT_AS_WRITTEN[written] in row for row in rows[:1])


@pytest.mark.parametrize("piece", ids("command"))
def test_every_command_is_tried_here_or_told(piece):
    """By one of the tests below, or in the document."""
    first = piece.text.split()[0]
    tried = first in ("python", "python3", "bash", "export", "ray") or piece.text in INSTALLING
    told = any(piece.text.startswith(written) for written in NOT_AS_WRITTEN)
    assert tried or told
    assert first not in ELSEWHERE or told


@pytest.mark.parametrize("piece", [*ids("script"), *starting("bash", "python3")])
def test_trainings_are_planned(piece, checkout, capsys):
    text = unglued(piece.text) if piece.where.startswith("003") else corrected(piece.text)
    if "model_merger" in text:
        pytest.skip("merged below")
    if "_VLM.sh" in text:  # "make a script of your own": that of the same page
        (script,) = [one for one in found("script") if one.where[:3] == piece.where[:3]]
        (checkout / text.split()[1]).write_text(script.text)
    (checkout / "resumed/models/Qwen2.5-VL-3B-Instruct").mkdir(parents=True)
    for step in re.findall(r'RUN_DIR="/data/<username>(/.*?)"', text):
        (checkout / "resumed" / step[1:] / "global_step_160").mkdir(parents=True)
    text = re.sub(r"<[\w-]+>", "mine", text.replace("/data/<username>", str(checkout / "resumed")))
    before = set(checkout.rglob("*"))
    (call,) = asked_of_python(text, checkout)
    assert dry_run(call) == 0
    shown = capsys.readouterr().err
    assert "dry run: nothing was loaded" in shown
    assert set(checkout.rglob("*")) == before
    if "max_steps=195" in text:
        assert "195 (trainer.max_steps)" in shown and "128 (32 prompts x 4 answers)" in shown


@pytest.mark.parametrize("piece", ids("yaml"))
def test_settings_load_and_are_planned(piece, checkout, capsys):
    (checkout / "block.yaml").write_text(piece.text, encoding="utf-8")
    assert main(["train", "config=block.yaml", "--dry-run"]) == 0
    assert "dry run: nothing was loaded" in capsys.readouterr().err


def test_all_settings_of_a_tutorial_together(checkout, capsys):
    (checkout / "whole.yaml").write_text("\n".join(piece.text for piece in found("yaml")), encoding="utf-8")
    assert main(["train", "config=whole.yaml", "--dry-run"]) == 0
    assert "2560 (512 prompts x 5 answers)" in capsys.readouterr().err


def test_every_key_in_the_prose_is_a_key_of_ours():
    keys = {key for file in FOLDER.glob("*.txt") for key in KEY.findall(file.read_text(encoding="utf-8"))}
    named = {key for key in keys if not NO_KEY.search(key)}
    unknown = {key for key in named if not any(one == key or one.startswith(f"{key}.") for one in known_keys())}
    assert len(named) >= 30 and unknown <= {"worker.actor.model.path"}
    with pytest.raises(ConfigError, match=r"is now called worker\.actor\.model\.model_path"):
        from_mapping({"worker": {"actor": {"model": {"path": "Qwen/Qwen2.5-VL-3B-Instruct"}}}})


def test_the_reward_of_the_tutorial_scores_its_own_answers(checkout):
    (piece,) = [one for one in found("python") if one.name.endswith("r1v.py")]
    (checkout / "r1v.py").write_text(piece.text, encoding="utf-8")
    reward = load_reward("r1v.py:compute_score", {"format_weight": 0.5}, find_file)
    assert (reward.name, reward.kind) == ("r1v", "sequential")
    tag = re.search(r"<(think\w*)>", piece.text)[1]
    answers = ["12", f"<{tag}>...</{tag}><answer>8</answer>", f"<{tag}>a\nb</{tag}><answer>12</answer>"]
    inputs = [{"response": one, "response_length": 5, "ground_truth": "12"} for one in answers]
    with RewardWorker(reward, 30.0) as worker:
        scores = worker.score(inputs, ["row"] * 3)
    assert [one["overall"] for one in scores] == [0.5, 0.5, 1.0]


def test_the_reward_to_be_filled_in_loads_and_says_what_is_missing(checkout):
    (piece,) = [one for one in found("python") if one.name == "my_reward.py"]
    (checkout / "my_reward.py").write_text(piece.text, encoding="utf-8")
    reward = load_reward("./my_reward.py:compute_score", {}, find_file)
    one = {"response": "12", "response_length": 1, "ground_truth": "12"}
    with RewardWorker(reward, 30.0) as worker, pytest.raises(RewardError, match="check_answer"):
        worker.score([one], ["row"])
    text = piece.text + "\n\ncheck_answer = lambda response, gt: gt in response\ncheck_format = lambda response: 1.0\n"
    (checkout / "my_reward.py").write_text(text, encoding="utf-8")
    with RewardWorker(reward, 30.0) as worker:
        assert worker.score([one], ["row"]) == [{"overall": 1.0, "accuracy": 1.0, "format": 1.0}]


def test_the_template_is_put_around_a_question(checkout):
    (piece,) = found("template")
    (checkout / "r1v.jinja").write_text(piece.text, encoding="utf-8")
    model = tiny.save("qwen2_5_vl", checkout / "model")
    shown = Chat.load(str(model), format_prompt="r1v.jinja").render("<image> How long is AB?  ")
    assert "How long is AB?\nYou FIRST think" in shown and "<answer> </answer> tags." in shown
    assert "{#" not in shown and "<image>" not in shown


@pytest.mark.parametrize("text", INSTALLING)
def test_what_is_installed_from_a_checkout_is_there(text):
    assert text in {piece.text for piece in found("command")}
    extra, project = INSTALLING[text], (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert extra is None or f"\n{extra} = [" in project
    if "requirements.txt" in text and (ROOT / "requirements.txt").is_file():
        assert "torch" in (ROOT / "requirements.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("piece", starting("export"))
def test_variables_have_the_effect_that_is_promised(piece):
    name = piece.text.removeprefix("export ").partition("=")[0]
    assert any(name in file.read_text(encoding="utf-8") for file in (ROOT / "easyr1/data").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("piece", starting("ray"))
def test_ray_takes_the_options(piece):
    program = shutil.which("ray") or str(Path(sys.executable).with_name("ray"))
    words = shlex.split(piece.text.replace("<head_node_ip>", "localhost"))
    done = subprocess.run([program, words[1], "--help"], capture_output=True, text=True, check=True)
    assert all(word.partition("=")[0] in done.stdout for word in words[2:])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a checkpoint under each of the names that the tutorials give to theirs."""
    folder = tmp_path_factory.mktemp("tutorial")
    step, *others = (folder / "checkpoints/easy_r1" / name for name in CHECKPOINTS)
    settings = {"trainer.max_steps": 1, "trainer.val_freq": -1, "trainer.val_before_train": "false"}
    settings |= {"data.rollout_batch_size": 2, "trainer.save_checkpoint_path": step.parent}
    runs.run(runs.arguments(folder, "qwen2_5_vl", rows=2, **settings))
    for other in others:
        shutil.copytree(step, other)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", [one for one in starting("python", "python3") if "model_merger" in one.values[0].text]
)
def test_checkpoints_are_merged(piece, checkout, trained, capsys):
    shutil.copytree(trained / "checkpoints", checkout / "checkpoints")
    ((script, *arguments),) = asked_of_python(piece.text, checkout)
    assert script == "scripts/model_merger.py" and run("easyr1.cli.merge", arguments) == 0
    assert "load it with transformers.Qwen2_5_VLForConditionalGeneration" in capsys.readouterr().out
    if "merged_geoqa_model" in piece.text:
        (loading,) = [one for one in found("python") if "from_pretrained" in one.text]
        names: dict = {}
        exec(loading.text, names)
        assert names["model"].config.model_type == "qwen2_5_vl"
