"""MLflow: what its store holds after a run, read back by its own client."""

import math
import socket
import sys
import time

import pytest
from PIL import Image
from tracked import log_a_run, track

from easyr1.errors import ConfigError
from easyr1.tracking import sender
from easyr1.tracking.mlflow_logger import allowed


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    """The real package, with a store of its own."""
    module = pytest.importorskip("mlflow")
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return module


def values(client, run_id, name):
    return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)]


def test_a_run_and_its_resumption_are_read_back(mlflow, tmp_path, caplog):
    identity = log_a_run("mlflow", tmp_path / "run")
    assert not [record for record in caplog.records if record.name.startswith("easyr1")]
    client = mlflow.MlflowClient()
    run = client.get_run(identity["mlflow"]["run_id"])
    assert client.get_experiment(run.info.experiment_id).name == "digits"
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.params["data.seed"] == "7"
    assert values(client, run.info.run_id, "reward/overall") == [(1, 0.25), (2, 0.5)]
    assert values(client, run.info.run_id, "timing_s/save_checkpoint") == [(1, 2.0), (2, 2.0)]
    assert math.isnan(values(client, run.info.run_id, "actor/grad_norm")[0][1])
    artifacts = [file.path for file in client.list_artifacts(run.info.run_id)]
    assert {"config.json", "generations"} <= set(artifacts)
    table = client.load_table(run.info.experiment_id, "generations/step_000002.json", [run.info.run_id])
    assert list(map(str, table["response"])) == ["7", "7"]
    assert list(table["scores/overall"]) == [0.5, 0.5]
    files = [[cell["filepath"] for cell in table[name]] for name in ("image_1", "image_2")]
    pictures = [[Image.open(client.download_artifacts(run.info.run_id, file)) for file in row] for row in files]
    assert [[picture.size for picture in column] for column in pictures] == [[(1, 1), (3, 2)]] * 2
    assert pictures[1][1].convert("RGB").getpixel((0, 0)) == (0, 0, 255)
    # the same run goes on, whatever its settings are now
    assert log_a_run("mlflow", tmp_path / "run", steps=(3,), identity=identity, resume_step=2) == identity
    assert values(client, run.info.run_id, "reward/overall") == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert client.get_run(run.info.run_id).info.status == "FINISHED"
    assert len(client.search_runs([run.info.experiment_id])) == 1


def test_a_run_that_failed_is_shown_as_failed(mlflow, tmp_path):
    tracker = track("mlflow", tmp_path)
    tracker.finish(failed=True)
    (found,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert found.info.status == "FAILED"


def test_a_server_that_never_answers_stops_the_start_and_holds_up_no_step(mlflow, tmp_path, monkeypatch, caplog):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        monkeypatch.setattr(sender, "CLOSE_S", 0.2)
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        tracker = track("mlflow", tmp_path)
        tracker._loggers["mlflow"]._client = mlflow.MlflowClient(uri)
        start = time.monotonic()
        for step in range(5):
            tracker.log({"reward/overall": 0.5}, step)
        assert time.monotonic() - start < 0.5
        tracker.finish()
        assert len([text for text in caplog.messages if "the logger 'mlflow' failed" in text]) == 1
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        with pytest.raises(ConfigError, match="MLflow did not start"):
            track("mlflow", tmp_path)


def test_what_the_user_names_wins_and_an_unknown_stored_run_is_told(mlflow, tmp_path, monkeypatch, caplog):
    fresh = log_a_run("mlflow", tmp_path, identity={"mlflow": {"run_id": "0" * 32}})
    assert fresh["mlflow"]["run_id"] != "0" * 32
    assert any("mlflow knows no run 000" in text for text in caplog.messages)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    named = log_a_run("mlflow", tmp_path)
    client = mlflow.MlflowClient()
    assert client.get_experiment(client.get_run(named["mlflow"]["run_id"]).info.experiment_id).name == "mine"
    monkeypatch.setenv("MLFLOW_RUN_ID", fresh["mlflow"]["run_id"])
    assert log_a_run("mlflow", tmp_path, identity=named) == fresh
    monkeypatch.setenv("MLFLOW_RUN_ID", "1" * 32)
    with pytest.raises(ConfigError, match="MLflow did not start"):
        track("mlflow", tmp_path)


def test_a_missing_package_names_the_cures(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match=r'pip install "easyr1\[mlflow\]"'):
        track("mlflow", tmp_path)


def test_names_keep_to_what_is_allowed():
    assert allowed("val/a@b:c/overall_reward") == "val/a_b_c/overall_reward"
