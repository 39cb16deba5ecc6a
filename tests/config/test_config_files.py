"""Files that the configuration names: found beside the user or in the package, told when they are not there."""

import pytest

from easyr1.config.files import looks_local
from easyr1.config.load import load
from easyr1.config.paths import PACKAGE, find_file
from easyr1.config.resolve import Facts, resolve
from easyr1.errors import ConfigError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reward.py").write_text("")
    (tmp_path / "rows.jsonl").write_text("")
    (tmp_path / "a@b.jsonl").write_text("")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    for step in (10, 9, 11, 100, 8):
        (tmp_path / "run" / f"global_step_{step}" / "actor" / "huggingface").mkdir(parents=True)
    return tmp_path


def notes_of(*argv, dry_run=False):
    config, given = load(["data.format_prompt=null", "worker.reward.reward_function=reward.py:score", *argv])
    return resolve(config, given, Facts(dry_run=dry_run)).notes


def test_examples_are_found_here_first_and_then_in_the_package(folder):
    shipped = PACKAGE / "examples" / "config.yaml"
    assert find_file("examples/config.yaml", "config") == shipped
    assert find_file("./examples/config.yaml", "config") == shipped
    own = folder / "examples" / "config.yaml"
    own.parent.mkdir()
    own.write_text("")
    assert find_file("./examples/config.yaml", "config") == own


def test_absolute_and_home_paths(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    assert find_file("~/rows.jsonl", "data.train_files") == folder / "rows.jsonl"
    with pytest.raises(ConfigError, match=r"did you mean 'rows\.jsonl'"):
        find_file(str(folder / "row.jsonl"), "data.train_files")


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("hiyouga/geometry3k", False),
        ("gsm8k", False),
        ("rows.jsonl", True),
        ("gone/rows.parquet", True),
        ("./data", True),
        ("/data/rows", True),
        ("examples/data", True),
        ("a/b/c", True),
        ("model", True),
    ],
)
def test_what_looks_like_a_path(path, local):
    assert looks_local(path) is local


@pytest.mark.parametrize(
    "argument",
    [
        "data.train_files=rows.jsonl",
        "data.train_files=rows.jsonl@train",
        "data.train_files=a@b.jsonl",
        "data.train_files=a@b.jsonl@train",
        "data.train_files=[rows.jsonl, hiyouga/geometry3k@train]",
        "data.val_files=./run@test",
        "data.image_dir=run",
        "data.override_chat_template=rows.jsonl",
        "worker.reward.reward_function=reward.py",
        "worker.actor.model.model_path=./model",
        "trainer.load_checkpoint_path=run/global_step_10",
        "trainer.load_checkpoint_path=run/global_step_10/",
        "trainer.load_checkpoint_path=run/global_step_9/actor",
        "trainer.load_checkpoint_path=run",
    ],
)
def test_what_is_there_passes(argument):
    notes_of(argument)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("data.train_files=row.jsonl@train", "did you mean 'rows.jsonl'"),
        ("data.train_files=[rows.jsonl, gone/x.csv]", "gone/x.csv"),
        ("data.train_files=[]", "no data named"),
        ("data.val_files=./nowhere", "does not exist"),
        ("data.format_prompt=./examples/format_prompt/nowhere.jinja", "does not exist"),
        ("data.format_prompt=run", "is a folder, not a file"),
        ("data.override_chat_template=gone.jinja", "does not exist"),
        ("data.image_dir=rows.jsonl", "is a file, not a folder"),
        ("worker.reward.reward_function=rewards.py:score", "did you mean 'reward.py'"),
        ("worker.reward.reward_function=null", "there is no reward"),
        ("worker.actor.model.model_path=./modell", "did you mean 'model'"),
        ("worker.actor.model.model_path=run", "holds no config.json"),
        ("worker.actor.model.model_path=null", "no model named"),
        ("worker.actor.model.tokenizer_path=/gone/tokenizer", "does not exist"),
        ("trainer.load_checkpoint_path=run/global_step_12", "does not exist"),
        ("trainer.load_checkpoint_path=.", "holds none"),
        ("trainer.load_checkpoint_path=run/global_step_9/actor/huggingface", "run/global_step_9'?"),
    ],
)
def test_what_is_not_there_is_told(argument, message):
    with pytest.raises(ConfigError) as caught:
        notes_of(argument)
    assert caught.value.key == argument.partition("=")[0]
    assert message in str(caught.value)


def test_a_dry_run_needs_no_weights_but_all_other_files():
    assert any("./modell" in note for note in notes_of("worker.actor.model.model_path=./modell", dry_run=True))
    with pytest.raises(ConfigError, match="does not exist"):
        notes_of("data.train_files=./nowhere", dry_run=True)
