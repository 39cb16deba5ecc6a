"""The quickstart learns with adapters alone, with no other setting changed."""

import json

import pytest
from commands import run


@pytest.mark.slow
def test_the_quickstart_learns_with_adapters(tmp_path):
    settings = ["worker.actor.model.lora.rank=16", "trainer.save_checkpoint_path=run"]
    shown = run("easyr1.cli.main", "quickstart", *settings, folder=tmp_path)
    assert "28 layers get adapters of rank 16" in shown
    accuracy = json.loads((tmp_path / "run" / "report.json").read_text())["validation"]["accuracy"]
    assert accuracy["last"] - accuracy["first"] >= 0.25
