"""W&B: what is asked of it, with a stand-in, and what it then holds, with the real one offline."""

import base64
import io
import json
import logging
import os
import struct
import subprocess
import sys
import types
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from easyr1.errors import ConfigError
from easyr1.tracking.loggers import Tracker
from easyr1.tracking.wandb_logger import answer_table

CONFIG = {
    "config": {"trainer": {"project_name": "digits", "experiment_name": "first"}, "data": {"seed": 7}},
    "set_by_user": ["data.seed"],
}
STORED = {"wandb": {"id": "abc123"}}
ROOT = Path(__file__).parents[2]
ROW = {"prompt": "Which digit?", "response": "7", "ground_truth": "3", "scores": {"overall": 0.5}}


def png(colour):
    buffer = io.BytesIO()
    Image.new("RGB", (3, 2), colour).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def track(folder, **options):
    return Tracker(["wandb"], folder, Console(file=io.StringIO()), CONFIG, **options)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)


class StandIn(types.ModuleType):
    """A module named wandb that keeps what it is told; `failing` names the calls that raise."""

    class Error(Exception):
        pass

    def __init__(self, failing=()):
        super().__init__("wandb")
        self.failing, self.rows, self.metrics, self.finished, self.stdin = failing, [], [], [], None

    def init(self, **arguments):
        self.arguments, self.stdin, self.id = arguments, sys.stdin, arguments.get("id") or "new"
        if "init" in self.failing:
            raise self.Error("no API key")
        return self

    def define_metric(self, name, step_metric=None):
        self.metrics.append((name, step_metric))

    def log(self, row):
        if "log" in self.failing:
            raise self.Error("no network")
        self.rows.append(row)

    def finish(self, exit_code):
        self.finished.append(exit_code)


@pytest.fixture
def stand_in(monkeypatch):
    def install(failing=()):
        module = StandIn(failing)
        monkeypatch.setitem(sys.modules, "wandb", module)
        return module

    return install


def asked(stand_in, folder, identity=None):
    """The arguments that wandb.init got, without those that are None."""
    wandb = stand_in()
    track(folder, identity=identity).finish()
    return {name: value for name, value in wandb.arguments.items() if value is not None}


def test_a_fresh_run_takes_its_names_from_the_configuration(stand_in, tmp_path):
    arguments = asked(stand_in, tmp_path / "run")
    assert arguments.pop("config") == {**CONFIG["config"], "set_by_user": ["data.seed"]}
    assert arguments == {"project": "digits", "name": "first", "dir": str(tmp_path / "run")}
    assert (tmp_path / "run").is_dir()


@pytest.mark.parametrize(
    ("variables", "stored", "expected"),
    [
        ({}, None, {}),
        ({}, STORED, {"id": "abc123", "resume": "allow"}),
        ({"WANDB_RUN_ID": "mine"}, None, {}),
        ({"WANDB_RUN_ID": "mine"}, STORED, {"resume": "allow"}),
        ({"WANDB_RESUME": "must"}, None, {}),
        ({"WANDB_RESUME": "must"}, STORED, {"id": "abc123"}),
        ({"WANDB_RUN_ID": "mine", "WANDB_RESUME": "must"}, None, {}),
        ({"WANDB_RUN_ID": "mine", "WANDB_RESUME": "must"}, STORED, {}),
        ({"WANDB_RUN_ID": ""}, STORED, {"id": "abc123", "resume": "allow"}),
        ({"WANDB_FORK_FROM": "abc123?_step=4"}, STORED, {}),
        ({"WANDB_RESUME_FROM": "abc123?_step=4"}, STORED, {}),
        ({}, {"mlflow": {"id": "other"}}, {}),
    ],
)
def test_the_stored_run_goes_on_unless_a_variable_says_otherwise(
    stand_in, tmp_path, monkeypatch, variables, stored, expected
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    arguments = asked(stand_in, tmp_path, stored)
    assert {name: arguments[name] for name in ("id", "resume") if name in arguments} == expected


@pytest.mark.parametrize(
    ("variable", "argument"),
    [
        ("WANDB_PROJECT", "project"),
        ("WANDB_NAME", "name"),
        ("WANDB_DIR", "dir"),
        ("WANDB_RUN_ID", "id"),
        ("WANDB_RESUME", "resume"),
    ],
)
def test_a_variable_wins_over_its_argument_alone(stand_in, tmp_path, monkeypatch, variable, argument):
    assert argument in asked(stand_in, tmp_path, STORED)
    monkeypatch.setenv(variable, "mine")
    left = {"project", "name", "dir", "id", "resume", "config"} - {argument}
    assert set(asked(stand_in, tmp_path, STORED)) == left


def test_entity_and_mode_are_left_to_variables(stand_in, tmp_path):
    assert not {"entity", "mode", "settings", "group"} & set(asked(stand_in, tmp_path, STORED))


@pytest.mark.parametrize(("chosen", "lines"), [("mine", 1), ("abc123", 0), (None, 0)])
def test_another_run_than_the_stored_one_is_told(stand_in, tmp_path, monkeypatch, caplog, chosen, lines):
    if chosen:
        monkeypatch.setenv("WANDB_RUN_ID", chosen)
    asked(stand_in, tmp_path, STORED)
    told = [text for text in caplog.messages if "WANDB_RUN_ID" in text]
    assert len(told) == lines
    assert all("mine" in text and "abc123" in text for text in told)


def test_a_step_that_comes_again_is_a_row_of_its_own(stand_in, tmp_path):
    wandb = stand_in()
    tracker = track(tmp_path)
    for step, name in ((5, "reward/overall"), (5, "timing_s/save_checkpoint"), (4, "reward/overall")):
        tracker.log({name: 0.5}, step)
    assert wandb.metrics == [("trainer/step", None), ("*", "trainer/step")]
    assert [row["trainer/step"] for row in wandb.rows] == [5, 5, 4]


def test_a_failing_log_warns_once_and_never_leaves_the_tracker(stand_in, tmp_path, caplog):
    wandb = stand_in(failing=("log",))
    tracker = track(tmp_path)
    for step in (1, 2, 3):
        tracker.log({"reward/overall": 0.5}, step)
    tracker.finish()
    (warning,) = caplog.messages
    assert "'wandb'" in warning
    assert "no network" in warning
    assert wandb.finished == [0]


def test_a_run_that_failed_is_shown_as_failed(stand_in, tmp_path):
    wandb = stand_in()
    track(tmp_path).finish(failed=True)
    assert wandb.finished == [1]


def test_events_and_empty_samples_send_nothing(stand_in, tmp_path):
    wandb = stand_in()
    tracker = track(tmp_path)
    tracker.event("warning", message="format is constant")
    tracker.log_samples([], 1)
    assert wandb.rows == []


def test_a_start_that_fails_names_the_cures(stand_in, tmp_path):
    stand_in(failing=("init",))
    with pytest.raises(ConfigError, match="no API key") as refused:
        track(tmp_path)
    assert refused.value.key == "trainer.logger"
    for cure in ("`wandb login`", "WANDB_API_KEY", "WANDB_MODE=offline", "['console','file']"):
        assert cure in str(refused.value)


def test_there_is_nobody_to_ask_while_it_starts(stand_in, tmp_path):
    before, wandb = sys.stdin, stand_in()
    track(tmp_path)
    assert not wandb.stdin.isatty()
    assert wandb.stdin is not before
    assert sys.stdin is before


@pytest.mark.parametrize("module", [None, types.ModuleType("wandb")])
def test_a_missing_package_names_the_cures(tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, "wandb", module)
    with pytest.raises(ConfigError) as refused:
        track(tmp_path)
    assert refused.value.key == "trainer.logger"
    for cure in ("pip install wandb", 'pip install "easyr1[wandb]"', "['console','file']"):
        assert cure in str(refused.value)


def test_a_service_that_cannot_name_its_run_is_warned_of(stand_in, tmp_path, caplog):
    wandb = stand_in()
    tracker = Tracker(["wandb", "file"], tmp_path, Console(file=io.StringIO()), CONFIG, identity=STORED)
    assert tracker.identity() == STORED
    del wandb.id
    with caplog.at_level(logging.WARNING):
        assert tracker.identity() == STORED  # the next checkpoint goes on naming it
    assert len(caplog.messages) == 1


def test_answers_become_one_row_each_with_gaps_where_a_row_has_nothing():
    rows = [
        {**ROW, "images": ["a", "b"]},
        {**ROW, "response": "8", "ground_truth": 3, "scores": {"format": 1.0}},
    ]
    columns, cells = answer_table(rows, str.upper)
    names = ["prompt", "response", "ground_truth", "scores/overall", "scores/format", "image_1", "image_2"]
    assert columns == names
    assert cells == [
        ["Which digit?", "7", "3", 0.5, None, "A", "B"],
        ["Which digit?", "8", "3", None, 1.0, None, None],
    ]


def python(code, **streams):
    """A fresh interpreter that ends after the code."""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False, **streams)


def records(wandb, folder):
    """What the run folder's one W&B run wrote: 32 KiB blocks of chunks, each 4 bytes of CRC, length, kind and data."""
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # its writing process ends, and so the file is whole
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, place, parts, found = file.read_bytes(), 7, b"", []
    while place + 7 <= len(data):
        rest = 32768 - place % 32768
        if rest < 7:  # no room for the head of a chunk: zeros to the next block
            place += rest
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, the end of one
            found.append(wandb_internal_pb2.Record.FromString(parts))
            parts = b""
    return found


def logged(wandb, folder):
    """The rows of history that the run folder's one W&B run holds."""
    rows = [record.history.item for record in records(wandb, folder) if record.HasField("history")]
    return [
        {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row if item.value_json}
        for row in rows
    ]


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """The real package, which reads its variables once and so is put back to its start before and after."""
    wandb = pytest.importorskip("wandb")
    for name, value in {"MODE": "offline", "ERROR_REPORTING": "false", "SILENT": "true", "CONSOLE": "off"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    wandb.teardown()
    yield wandb
    wandb.teardown()


def test_every_part_of_a_step_reaches_the_file_in_whatever_order(offline, tmp_path):
    tracker = track(tmp_path, identity=STORED)
    tracker.log({"reward/overall": 0.5, "actor/grad_norm": float("nan")}, 5)
    tracker.log({"timing_s/save_checkpoint": 2.0}, 5)
    tracker.log({"reward/overall": 0.25}, 4)
    tracker.finish()
    rows = [
        {name: value for name, value in row.items() if not name.startswith("_")} for row in logged(offline, tmp_path)
    ]
    assert [row["trainer/step"] for row in rows] == [5, 5, 4]
    assert [row.get("reward/overall") for row in rows] == [0.5, None, 0.25]
    assert rows[1]["timing_s/save_checkpoint"] == 2.0


def test_project_name_and_configuration_reach_the_file(offline, tmp_path):
    track(tmp_path).finish()
    run = next(record.run for record in records(offline, tmp_path) if record.HasField("run"))
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (run.project, run.display_name) == ("digits", "first")
    assert config["data"] == {"seed": 7}
    assert config["set_by_user"] == ["data.seed"]


def test_answers_with_pictures_become_a_table(offline, tmp_path):
    tracker = track(tmp_path)
    tracker.log_samples([{**ROW, "images": ["no picture"]}, {**ROW, "images": [png("red"), png("blue")]}], 5)
    tracker.log_samples([ROW], 10)
    tracker.finish()
    assert [row["trainer/step"] for row in logged(offline, tmp_path)] == [5, 10]
    first, second = [
        {Path(file.path).name: Path(file.local_path) for file in record.artifact.manifest.contents}
        for record in records(offline, tmp_path)
        if record.HasField("artifact")
    ]
    table = json.loads(first.pop("generations.table.json").read_text())
    without, with_pictures = (dict(zip(table["columns"], row, strict=True)) for row in table["data"])
    assert (without["response"], without["scores/overall"], without["image_1"]) == ("7", 0.5, None)
    assert (with_pictures["image_1"]["width"], with_pictures["image_2"]["height"]) == (3, 2)
    assert sorted(Image.open(file).getpixel((0, 0)) for file in first.values()) == [(0, 0, 255), (255, 0, 0)]
    assert set(second) == {"generations.table.json"}


def test_a_second_tracker_goes_on_in_the_run_of_the_first(offline, tmp_path):
    first = track(tmp_path)
    identity = json.loads(json.dumps(first.identity()))
    first.finish()
    second = track(tmp_path, identity=identity)
    assert second.identity() == identity
    second.finish()
    fresh = track(tmp_path)
    assert fresh.identity() != identity
    fresh.finish()


def test_the_users_run_wins_over_the_stored_one(offline, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    tracker = track(tmp_path, identity=STORED)
    assert tracker.identity() == {"wandb": {"id": "mine"}}
    assert offline.run.project == "theirs"
    tracker.finish()


def test_online_without_a_key_stops_at_once_even_at_a_terminal(offline, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_SILENT")
    monkeypatch.setenv("TERM", "xterm")
    code = f"from easyr1.tracking.loggers import Tracker; Tracker(['wandb'], {str(tmp_path)!r}, None, {{}})"
    ours, theirs = os.openpty()
    ended = python(code, stdin=theirs, stderr=theirs)
    os.close(theirs)
    told = os.read(ours, 65536).decode()
    os.close(ours)
    assert ended.returncode == 1
    assert "ConfigError: trainer.logger" in told
    assert "WANDB_API_KEY" in told


def test_the_logger_is_known_without_loading_its_package():
    code = "import sys, easyr1.tracking.loggers as l; sys.exit('wandb' in sys.modules or 'wandb' not in l.LOGGERS)"
    assert python(code).returncode == 0
