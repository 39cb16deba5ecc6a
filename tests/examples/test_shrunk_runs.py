"""Every example script trained as it is, but for model, data, sizes, steps and devices."""

import importlib.util
import json
import math
from pathlib import Path

import pytest
import runs
import speakers
import tiny
from example_scripts import MAY_SHRINK, SCRIPTS, differing, handed_over, model_kind

from easyr1.examples import videos

SHRUNK = [
    "data.max_prompt_length=700",
    "data.rollout_batch_size=4",
    "data.mini_rollout_batch_size=null",
    f"data.min_pixels={tiny.MIN_PIXELS}",
    f"data.max_pixels={tiny.MAX_PIXELS}",
    "worker.actor.global_batch_size=2",
    "worker.critic.global_batch_size=2",
    "worker.actor.ulysses_size=1",
    "worker.rollout.tensor_parallel_size=1",
    "trainer.n_gpus_per_node=1",
    "trainer.device=cpu",
    "trainer.max_steps=1",
    "trainer.critic_warmup=0",
]
ONE_ANSWER_EACH = ("gae", "remax")  # scripts whose groups of one are right or wrong by chance: more of them
LONGEST = {"MAX_RESPONSE_LENGTH": "12"}  # as a variable, so that what depends on it follows


def look_alike(script: str, folder: Path) -> list[str]:
    """Settings of the model and the rows: of the script's family, with as many pictures; the answer is always 1."""
    kind = model_kind(script)
    model = speakers.save(kind, folder / kind)
    if "video" in script:
        (rows,) = videos.write_videos(folder, {"rows": 8})
        asked = map(json.loads, rows.read_text().splitlines())
        rows.write_text("".join(json.dumps(row | {"answer": "1"}) + "\n" for row in asked))
    elif kind in ("qwen2", "qwen3", "llama"):
        rows = tiny.write_rows(folder / "rows.jsonl", [row | {"answer": "1"} for row in tiny.text_rows(8)])
    else:
        pictured = tiny.vision_rows(8, pictures_per_row=2 if "multi_image" in script else 1)
        rows = tiny.write_rows(folder / "rows.parquet", [row | {"answer": "1"} for row in pictured])
    return [
        f"worker.actor.model.model_path={model}",
        f"data.train_files={rows}",
        f"data.val_files={rows}",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_step_of_each_script(script, tmp_path, monkeypatch):
    if "swanlab" in script and importlib.util.find_spec("swanlab") is None:
        pytest.skip("swanlab is not installed")
    monkeypatch.chdir(tmp_path)
    more = ["data.rollout_batch_size=8"] if any(name in script for name in ONE_ANSWER_EACH) else []
    settings = [*look_alike(script, tmp_path), *SHRUNK, *more]
    whole = handed_over(script, tmp=tmp_path)
    arguments = handed_over(script, *settings, tmp=tmp_path, **LONGEST)
    assert set(differing(arguments, whole)) <= MAY_SHRINK
    runs.run(arguments)
    folder = tmp_path / "checkpoints/easy_r1" / Path(script).stem
    assert (folder / "global_step_1").is_dir()
    row = runs.steps(folder)[1]
    assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))
    assert row["actor/grad_norm"] > 0
    assert (-1 if "dapo17k" in script else 0) < row["reward/accuracy"] < 1


def test_shrinking_touches_nothing_else():
    assert {setting.partition("=")[0] for setting in SHRUNK} <= MAY_SHRINK
