"""The report: what it says of whole, partial and hostile run folders."""

import base64
import hashlib
import io
import json
import re
from html.parser import HTMLParser

import pytest
from PIL import Image

from easyr1.config.load import dump
from easyr1.config.schema import Config, set_leaves
from easyr1.tracking.answers import PNG_START
from easyr1.tracking.page import WEB
from easyr1.tracking.panels import PANELS
from easyr1.tracking.report import sentence, write_report

VOID = {"meta", "img"}


class Page(HTMLParser):
    """Text and tags of a page; fails on tags that do not match."""

    def __init__(self, source):
        super().__init__()
        self.source = source
        self.open_tags, self.tags, self.texts, self.scripts = [], [], [], []
        self.feed(source)
        assert self.open_tags == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open_tags.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open_tags.pop() == tag

    def handle_data(self, data):
        if self.open_tags[-1:] == ["script"]:
            self.scripts.append(data)
        elif self.open_tags[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self):
        return "\n".join(self.texts)

    @property
    def data(self):
        """What the page's script shows."""
        return json.loads(self.scripts[0])

    def having(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def report(folder):
    path = write_report(folder)
    return Page(path.read_text(encoding="utf-8")), json.loads((folder / "report.json").read_text(encoding="utf-8"))


def put(folder, name, *rows):
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def png(width=8, height=8):
    file = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


@pytest.fixture
def run(tmp_path):
    """A finished run of two steps with a validation before and after."""
    put(
        tmp_path,
        "metrics.jsonl",
        {"step": 0, "val/accuracy_reward": 0.34, "val/format_reward": 0.9, "timing_s/validation": 2.0},
        {"step": 1, "reward/overall": 0.5, "reward/tone": 0.1, "timing_s/gen": 3.0, "timing_s/step": 4.0},
        {"step": 2, "reward/overall": 0.7, "reward/tone": 0.2, "timing_s/gen": 3.0, "timing_s/step": 4.0},
        {"step": 2, "val/accuracy_reward": 0.86, "val/format_reward": 0.9, "timing_s/validation": 2.0},
    )
    rows = [
        {"step": step, "row": row, "prompt": f"Question {row}", "response": f"At {step}", "ground_truth": "4"}
        for step in (2, 0, 1)
        for row in (1, 2)
    ]
    put(tmp_path, "generations.jsonl", *rows)
    put(tmp_path, "events.jsonl", {"kind": "checkpoint", "step": 2}, {"kind": "warning", "message": "tone is flat"})
    config = set_leaves(Config(), {"data.seed": 77, "trainer.experiment_name": "digits"})
    (tmp_path / "config.json").write_text(dump(config, frozenset({"data.seed"})))
    return tmp_path


def test_the_outcome_stands_in_a_sentence(run):
    page, facts = report(run)
    expected = "In 2 steps (12 s) validation accuracy rose from 0.34 to 0.86; format stayed at 0.90."
    assert facts["sentence"] == expected
    assert expected in page.texts
    assert facts["validation"]["accuracy"] == {"first": 0.34, "last": 0.86}


def test_curves_are_drawn_and_in_the_json(run):
    page, facts = report(run)
    assert facts["curves"]["reward/overall"] == [[1, 0.5], [2, 0.7]]
    validation, training, _ = page.data["panels"]
    assert (validation["title"], validation["x"]) == ("Validation", [0, 2])
    assert validation["curves"] == [
        {"label": "accuracy", "y": [0.34, 0.86]},
        {"label": "format", "y": [0.9, 0.9]},
    ]
    assert [curve["label"] for curve in training["curves"]] == ["overall", "tone"]


def test_time_by_phase_adds_up(run):
    _, facts = report(run)
    times = facts["time_by_phase"]
    assert {name: part["seconds"] for name, part in times.items()} == {"gen": 6.0, "validation": 4.0, "other": 2.0}
    assert sum(part["share"] for part in times.values()) == pytest.approx(1)
    assert next(iter(times)) == "gen"


def test_settings_that_differ_from_the_default_are_listed(run):
    page, facts = report(run)
    assert facts["settings"]["data.seed"] == {"value": 77, "default": Config().data.seed}
    assert set(facts["settings"]) == {"data.seed", "trainer.experiment_name"}
    assert "data.seed" in page.texts
    assert any("digits" in text for text in page.texts[:2])


def test_a_default_configuration_has_no_differences(tmp_path):
    (tmp_path / "config.json").write_text(dump(Config(), frozenset()))
    assert report(tmp_path)[1]["settings"] == {}


def test_warnings_of_the_run_and_numbers_that_were_none(run):
    with (run / "metrics.jsonl").open("a") as file:
        for step in (3, 4):
            file.write(json.dumps({"step": step, "actor/grad_norm": None, "not_finite": {"actor/grad_norm": "nan"}}))
            file.write("\n")
    page, facts = report(run)
    assert facts["warnings"] == [
        "actor/grad_norm was not a finite number at step 3 and 1 other step",
        "tone is flat",
    ]
    assert "tone is flat" in page.texts


EVIL = "</pre></script><script>alert(1)</script><!-- <img src=x onerror=alert(1)>\"'&\u2028"


def hostile(folder):
    """A run in which every text that a user or a model may choose is markup."""
    row = {"step": 1, f"reward/{EVIL}": 1.0, f"timing_s/{EVIL}": 1.0, "timing_s/step": 2.0}
    put(folder, "metrics.jsonl", {"step": 0, f"val/{EVIL}_reward": 1.0, "val/reward_score": 0.5}, row)
    shared = {"row": EVIL, "source": EVIL, "prompt": EVIL, "response": EVIL, "ground_truth": EVIL, "parsed": EVIL}
    scores = {EVIL: 1, "b": EVIL}
    train = {"step": 1, "split": "train", **shared, "group": EVIL, "scores": scores, "advantage": 1.5}
    put(folder, "generations.jsonl", {"step": 0, **shared, "scores": scores, "images": [EVIL, png()]}, train)
    put(folder, "events.jsonl", {"kind": EVIL, "time": EVIL, EVIL: EVIL}, {"kind": "warning", "message": EVIL})
    (folder / "config.json").write_text(json.dumps({"config": {EVIL: EVIL, "trainer": {"experiment_name": EVIL}}}))


def test_nothing_that_a_model_or_user_writes_becomes_markup(tmp_path):
    hostile(tmp_path)
    page, _ = report(tmp_path)
    assert [attrs.get("type") for attrs in page.having("script")] == ["application/json", None, None]
    assert page.having("img") == []
    names = {name for _, attrs in page.tags for name in attrs}
    assert all(re.fullmatch(r"[a-z][a-z0-9-]*", name) and not name.startswith("on") for name in names)
    assert page.text.count("alert(1)") >= 6
    assert "<" not in page.scripts[0]
    (question,) = page.data["questions"]
    assert question["prompt"] == question["answers"][0]["text"] == question["answers"][0]["parsed"] == EVIL
    assert page.data["panels"][1]["curves"][0]["label"] == EVIL.rsplit("/")[-1]


def test_the_page_fetches_nothing_and_runs_no_script_but_its_own(run):
    put(run, "generations.jsonl", {"step": 1, "prompt": "p", "response": "r", "images": [png(), png(200, 100), "no"]})
    page, _ = report(run)
    assert page.data["pictures"] == [png(), png(200, 100)]
    assert page.data["questions"][0]["pictures"] == [0, 1, -2]
    assert page.having("link") == []
    assert all("src" not in attrs and "href" not in attrs for _, attrs in page.tags)
    assert "@import" not in page.source and "url(" not in page.source.split("<script")[0]
    policy = page.having("meta")[1]["content"]
    assert policy.startswith("default-src 'none'; img-src data:;")
    for script in page.scripts[1:]:
        assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert "prefers-color-scheme: dark" in page.source


def test_the_plotting_library_is_the_released_one_under_its_licence(run):
    digests = {
        "uPlot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uPlot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
        "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    }
    assert {name: hashlib.sha256((WEB / name).read_bytes()).hexdigest() for name in digests} == digests
    page, _ = report(run)
    assert "(v1.6.32)" in page.scripts[1] and "Permission is hereby granted, free of charge" in page.scripts[1]


def test_an_empty_folder_makes_a_page(tmp_path):
    page, facts = report(tmp_path)
    assert facts["sentence"] == "No step has been logged yet."
    assert facts["sentence"] in page.texts


def test_a_run_killed_in_the_middle_of_a_row_makes_a_page(run):
    for name in ("metrics.jsonl", "generations.jsonl", "events.jsonl"):
        with (run / name).open("a") as file:
            file.write('{"step": 3, "reward/ov')
    (run / "config.json").write_text('{"config": {"da')
    page, facts = report(run)
    assert facts["steps"] == 2
    assert facts["settings"] == {}
    assert page.data["panels"]


def test_rows_of_odd_shape_are_no_reason_to_fail(tmp_path):
    put(tmp_path, "metrics.jsonl", {"reward/overall": 1.0}, {"step": 1, "note": "text", "lr": [1]}, [1])
    put(tmp_path, "generations.jsonl", {}, {"step": 2, "response": None, "scores": 0.5, "images": "no", "row": None})
    (tmp_path / "config.json").write_text("[]")
    page, facts = report(tmp_path)
    assert facts["curves"] == {}
    assert [answer["scores"] for answer in page.data["questions"][-1]["answers"]] == [[["score", 0.5]]]


def test_numbers_that_json_lacks_stay_out_of_page_and_json(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "reward/overall": 0.5, "actor/entropy": NaN, "actor/kl_loss": 1e999, "actor/lr": 1'
        + "0" * 400
        + "}\n"
    )
    row = '"prompt": "p", "response": "r", "scores": {"overall": NaN}, "advantage": Infinity'
    (tmp_path / "generations.jsonl").write_text('{"step": 1, "split": "train", "group": "g", ' + row + "}\n")
    (tmp_path / "config.json").write_text('{"config": {"algorithm": {"kl_coef": Infinity}}}')
    page, facts = report(tmp_path)
    assert list(facts["curves"]) == ["reward/overall"]
    for text in (page.scripts[0], (tmp_path / "report.json").read_text()):
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    (answer,) = page.data["groups"][0]["answers"]
    assert (answer["scores"], answer["advantage"], answer["right"]) == ([["overall", "nan"]], None, False)


def test_a_later_row_of_a_step_replaces_the_earlier_one(tmp_path):
    put(tmp_path, "metrics.jsonl", {"step": 1, "a": 1.0}, {"step": 2, "a": 2.0}, {"step": 1, "a": 3.0})
    assert report(tmp_path)[1]["curves"] == {"a": [[1, 3.0], [2, 2.0]]}


def test_a_second_report_replaces_the_first_and_leaves_no_other_file(run):
    before = {path.name for path in run.iterdir()}
    write_report(run)
    write_report(run)
    assert {path.name for path in run.iterdir()} - before == {"report.html", "report.json"}


def test_the_page_stays_below_five_megabytes_whatever_is_logged(tmp_path):
    names = [
        panel_name.replace("*", f"m{index}") for panel in PANELS for panel_name in panel.names for index in range(9)
    ]
    put(tmp_path, "metrics.jsonl", *({"step": step} | dict.fromkeys(names, step / 7) for step in range(1200)))
    noise = base64.b64encode(PNG_START + bytes(600_000)).decode()
    train = [
        {"step": step, "split": "train", "group": f"{group}", "prompt": "<" * 5000, "response": f"{answer}<é" * 2000}
        for step in range(40)
        for group in range(4)
        for answer in range(8)
    ]
    val = [
        {"step": 0, "split": "val", "row": row, "prompt": "<" * 5000, "images": [noise[: -4 * row - 4]]}
        for row in range(9)
    ]
    put(tmp_path, "generations.jsonl", *val, *train)
    page = write_report(tmp_path)
    assert 3_000_000 < page.stat().st_size < 5_000_000
    assert "for which the page has no room" in page.read_text()


def test_the_sentence_for_runs_without_validation_or_steps():
    words = sentence(1, 90, {}, (0.4, 0.2))
    assert words == "In 1 step (1 min 30 s) the training reward fell from 0.40 to 0.20, and nothing was validated."
    assert sentence(0, 3, {"accuracy": (0.3, 0.3)}, None) == "Before training validation accuracy stayed at 0.30."


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write_report(tmp_path / "nowhere")
