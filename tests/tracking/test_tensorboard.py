"""TensorBoard: what its event files hold, read back by its own reader."""

import io
import math

import pytest
from PIL import Image
from tracked import log_a_run

from easyr1.tracking.loggers import Run
from easyr1.tracking.tensorboard_logger import event_folder


@pytest.fixture
def top(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "top"))
    return tmp_path / "top"


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


def scalars(events, name):
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_scalars_answers_pictures_and_configuration_are_read_back(top, tmp_path, caplog):
    identity = log_a_run("tensorboard", tmp_path)
    assert identity == {"tensorboard": {"folder": str(top / "digits" / "first")}}
    assert not caplog.messages
    events = read(top / "digits" / "first")
    assert scalars(events, "reward/overall") == [(1, 0.25), (2, 0.5)]
    assert scalars(events, "timing_s/save_checkpoint") == [(1, 2.0), (2, 2.0)]
    assert math.isnan(events.Scalars("actor/grad_norm")[0].value)
    (table,) = events.Tensors("val/generations")
    text = table.tensor_proto.string_val[0].decode()
    assert table.step == 2
    assert "| Which \\| digit? | 7 | 3 | 0.5 | 4 |" in text
    first, second = (events.Images(f"val/pictures/{place}")[0] for place in (1, 2))
    assert (first.width, first.height) == (3, 2)
    assert Image.open(io.BytesIO(second.encoded_image_string)).convert("RGB").getpixel((0, 0)) == (0, 0, 255)
    (config,) = events.Tensors("config")
    assert '"seed": 7' in config.tensor_proto.string_val[0].decode()


def test_a_resumed_run_goes_on_in_its_folder_and_steps_made_anew_count_once(top, tmp_path, monkeypatch):
    identity = log_a_run("tensorboard", tmp_path, steps=(1, 2, 3))
    monkeypatch.delenv("TENSORBOARD_DIR")
    assert log_a_run("tensorboard", tmp_path, steps=(2, 4), resume_step=1, identity=identity) == identity
    assert len(list((top / "digits" / "first").iterdir())) == 2
    events = read(top / "digits" / "first")
    assert scalars(events, "reward/overall") == [(1, 0.25), (2, 0.5), (4, 1.0)]


def test_the_users_folder_wins_and_names_become_folders(tmp_path):
    run = Run(tmp_path, config={"config": {"trainer": {"project_name": "a/b", "experiment_name": "c d"}}})
    assert event_folder(run, {"TENSORBOARD_DIR": "/logs"}).as_posix() == "/logs/a_b/c_d"
    assert event_folder(run, {}).parts[-3:] == ("tensorboard_log", "a_b", "c_d")
    stored = Run(tmp_path, identity={"tensorboard": {"folder": "/old"}})
    assert event_folder(stored, {}).as_posix() == "/old"
    assert event_folder(stored, {"TENSORBOARD_DIR": "/new"}).as_posix() == "/new/easyr1/run"
