"""`easyr1 init`: what it writes passes the check as it is, trains with a model, and never replaces a file."""

import pytest
import tiny
from commands import run

from easyr1.cli.main import main

FILES = ("config.yaml", "prompt.jinja", "reward.py", "README.md", "data/train.jsonl", "data/val.jsonl")


def test_a_project_is_checked_as_it_was_written(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "it's my: #1 project", "--dry-run"]) == 0
    assert "config.yaml" in capsys.readouterr().out and not list(tmp_path.iterdir())
    assert main(["init", "it's my: #1 project"]) == 0
    shown, folder = capsys.readouterr().out, tmp_path / "it's my: #1 project"
    assert all((folder / name).is_file() for name in FILES) and "easyr1 check" in shown
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["check", f"config={folder / 'config.yaml'}"]) == 0
    shown = capsys.readouterr().out
    assert "8     8     0" in shown and "names no model" in shown and "once worker.actor.model.model_path" in shown
    assert "<|vision_end|>How many blue dots" in shown and "scores as much" not in shown
    assert not (folder / "run").exists() and not list((tmp_path / "elsewhere").iterdir())


def test_nothing_is_overwritten_and_a_wrong_call_is_told(tmp_path, capsys):
    (tmp_path / "reward.py").write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    assert "holds reward.py already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["reward.py"]
    file = str(tmp_path / "reward.py")
    for wrong in (["a", "b"], ["a", "modle=x"], ["--modle"], ["a", "model="], [file], ["--dry-run", file]):
        assert main(["init", *wrong]) == 2
        shown = capsys.readouterr()
        assert shown.err.count("\n") == 1 and not shown.out


@pytest.mark.slow
def test_a_project_trains_and_is_evaluated_with_a_model(tmp_path):
    model = tiny.save("qwen2_5_vl", tmp_path / "model")
    run("easyr1.cli.main", "init", "project", "model=model", folder=tmp_path)
    config = "config=project/config.yaml"
    assert str(model) in (tmp_path / "project/config.yaml").read_text()
    assert "MODEL" not in (tmp_path / "project/README.md").read_text()
    shown = run("easyr1.cli.main", "check", config, folder=tmp_path)
    assert "checked: it would run\n" in shown
    few = ["trainer.max_steps=1", "data.max_response_length=16"]
    shown = run("easyr1.cli.main", "train", config, *few, folder=tmp_path)
    assert "own_data (batch)" in shown and (tmp_path / "project/run/report.html").is_file()
    shown = run("easyr1.cli.main", "eval", config, "trainer.load_checkpoint_path=last", *few[1:], folder=tmp_path)
    assert "accuracy >= 1 is right" in shown
    assert (tmp_path / "project/run/eval/global_step_1/summary.json").is_file()
