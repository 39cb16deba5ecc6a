"""Trackers in whole runs: what a run logs reaches them, and a resumed run goes on in the same place."""

import pytest
import runs


def scalars(folder, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return {event.step: event.value for event in EventAccumulator(str(folder)).Reload().Scalars(name)}


def test_a_resumed_run_goes_on_in_the_events_that_it_wrote(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    settings = {"trainer__logger": "['file','tensorboard']", "trainer__project_name": "p", "trainer__val_freq": 1}
    runs.run(runs.arguments(tmp_path, **settings, trainer__experiment_name="first"))
    folder = tmp_path / "tensorboard_log" / "p" / "first"
    (file,) = folder.iterdir()
    # another name would be another folder; the checkpoint knows better
    runs.run(runs.arguments(tmp_path, **settings, trainer__experiment_name="other", trainer__max_steps=3))
    assert [path.name for path in folder.parent.iterdir()] == ["first"]
    assert len(list(folder.iterdir())) == 2 and file.exists()
    steps = runs.steps(tmp_path / "run")
    for name in ("reward/overall", "actor/pg_loss", "perf/throughput", "val/reward_score"):
        logged = {step: row[name] for step, row in steps.items() if name in row}
        assert scalars(folder, name) == pytest.approx(logged, rel=1e-6) and 3 in logged
