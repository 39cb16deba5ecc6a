"""Several runs on one page, by the command `easyr1 report`."""

import json

import pytest
from test_report import EVIL, Page, put

from easyr1.cli import report as command
from easyr1.config.load import dump
from easyr1.config.schema import Config, set_leaves
from easyr1.errors import ConfigError


def make_run(folder, name, lr, accuracy, **more):
    folder.mkdir()
    put(
        folder,
        "metrics.jsonl",
        {"step": 0, "val/accuracy_reward": 0.1},
        {"step": 5, "val/accuracy_reward": accuracy, **more},
    )
    values = {"trainer.experiment_name": name, "worker.actor.optim.lr": lr, "data.seed": 7}
    (folder / "config.json").write_text(dump(set_leaves(Config(), values), frozenset()))
    return str(folder)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_curves_of_two_runs_lie_over_each_other_and_settings_that_differ_are_listed(here, capsys):
    runs = [make_run(here / "a", "slow", 1e-6, 0.5), make_run(here / "b", EVIL, 1e-5, 0.9, **{"actor/kl_loss": 0.1})]
    assert command.main(runs) == 0
    pages = [here / "a" / "report.html", here / "b" / "report.html", here / "comparison.html"]
    assert capsys.readouterr().out.split() == [str(page) for page in pages]
    page = Page(pages[2].read_text())
    first, second = page.data["panels"]
    assert (first["title"], first["x"]) == ("Validation: accuracy", [0, 5])
    assert first["curves"] == [
        {"label": "easy_r1 / slow", "y": [0.1, 0.5]},
        {"label": f"easy_r1 / {EVIL}", "y": [0.1, 0.9]},
    ]
    assert second["title"] == "KL to the reference: kl_loss" and len(second["curves"]) == 1
    assert "worker.actor.optim.lr" in page.texts and "data.seed" not in page.texts
    assert "trainer.experiment_name" not in page.texts
    assert "In 5 steps (0 s) validation accuracy rose from 0.10 to 0.90." in page.texts
    assert len(page.having("script")) == 3


def test_runs_of_one_name_are_told_apart_by_their_folders(here, capsys):
    assert command.main([make_run(here / "a", "same", 1e-6, 0.5), make_run(here / "b", "same", 1e-6, 0.5)]) == 0
    page = Page((here / "comparison.html").read_text())
    assert [curve["label"] for curve in page.data["panels"][0]["curves"]] == ["a", "b"]
    assert "None." in page.texts


def test_a_single_run_is_compared_with_nothing(here, capsys):
    run = make_run(here / "a", "one", 1e-6, 0.5)
    assert command.main([run]) == 0
    assert json.loads((here / "a" / "report.json").read_text())["steps"] == 5
    assert not (here / "comparison.html").exists()


def test_a_dry_run_names_the_pages_and_writes_none(here, capsys):
    runs = [make_run(here / name, name, 1e-6, 0.5) for name in "ab"]
    assert command.main(["--dry-run", *runs]) == 0
    shown = capsys.readouterr().out.split()
    assert shown[-1] == str(here / "comparison.html") and len(shown) == 3
    assert list(here.rglob("*.html")) == []


def test_what_is_no_run_is_named(here):
    with pytest.raises(ConfigError, match="nowhere is no folder"):
        command.main([make_run(here / "a", "a", 1e-6, 0.5), "nowhere"])
    with pytest.raises(ConfigError, match="give a run folder"):
        command.main([])
    with pytest.raises(ConfigError, match="9 runs are too many"):
        command.main([make_run(here / f"r{index}", "r", 1e-6, 0.5) for index in range(9)])
