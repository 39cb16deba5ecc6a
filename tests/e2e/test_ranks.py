"""Whole commands on two ranks against the same on one: what is logged and saved, and who can go on with it."""

from pathlib import Path
from typing import Any

import commands
import pytest
import runs
import tiny
import torch
from transformers import AutoModelForImageTextToText

pytestmark = pytest.mark.slow

COMMON = {
    "trainer__val_freq": -1,
    "worker__actor__optim__lr": 1e-4,
    "worker__critic__optim__lr": 1e-4,
}
CRITIC = {"algorithm__adv_estimator": "gae", "algorithm__use_kl_loss": "false"}
FILTERED = {
    "algorithm__online_filtering": "true",
    "algorithm__filter_key": "overall",
    "algorithm__filter_low": 0.2,
    "algorithm__filter_high": 0.6,
    "data__mini_rollout_batch_size": 4,
}
SHARED_ROWS = {"worker__rollout__n": 4, "worker__actor__ulysses_size": 2}
ADAPTERS = {"worker__actor__model__lora__rank": 4, "algorithm__kl_penalty": "full"}


def train(folder: Path, run: Path, kind: str, ranks: int, **settings: Any) -> dict[int, dict[str, Any]]:
    """The metrics of each step of a command on so many ranks of a CPU."""
    where = {"trainer__n_gpus_per_node": ranks, "trainer__save_checkpoint_path": run}
    arguments = runs.arguments(folder, kind, **COMMON | settings | where)
    if ranks == 1:
        runs.run([*arguments, "worker.actor.ulysses_size=1"])
    else:
        commands.run("easyr1.cli.main", "train", *arguments, RAY_ADDRESS="local", OMP_NUM_THREADS="1")
    return runs.steps(run)


def same_metrics(one: dict[int, dict[str, Any]], many: dict[int, dict[str, Any]]) -> None:
    assert sorted(one) == sorted(many)
    for step, metrics in one.items():
        told = {name: value for name, value in metrics.items() if not name.startswith(("time", "timing", "perf"))}
        own = {name for name in many[step] if not name.startswith(("time", "timing", "perf", "balance"))}
        assert told.keys() == own
        for name, value in told.items():
            assert many[step][name] == pytest.approx(value, rel=1e-4, abs=1e-4), (step, name)


def same_weights(one: Path, many: Path) -> None:
    left, right = runs.read_shards(one), runs.read_shards(many)
    assert left.keys() == right.keys()
    assert max(float((left[name] - right[name]).abs().max()) for name in left) < 1e-4


@pytest.mark.parametrize(
    ("kind", "settings"),
    (("qwen2_5_vl", CRITIC), ("qwen2", FILTERED), ("qwen3_vl", ADAPTERS), ("qwen2_5_vl", SHARED_ROWS)),
    ids=("critic", "dynamic", "adapters", "sequence"),
)
def test_two_ranks_train_as_one_does(tmp_path, kind, settings):
    one = train(tmp_path, tmp_path / "one", kind, 1, **settings, trainer__max_steps=3)
    many = train(tmp_path, tmp_path / "two", kind, 2, **settings, trainer__max_steps=3)
    same_metrics(one, many)
    assert ("balance/actor_update" in many[3]) == (settings is not SHARED_ROWS)  # two ranks that are one replica
    for name in ("actor", "critic") if settings is CRITIC else ("actor",):
        same_weights(*(tmp_path / run / f"global_step_3/{name}/model" for run in ("one", "two")))
    files = [
        sorted(
            path.relative_to(tmp_path / run)
            for path in (tmp_path / run / "global_step_3").rglob("*")
            if path.is_file()
        )
        for run in ("one", "two")
    ]
    kept = [
        {str(path) for path in listed if "model/" not in str(path) and "optim/" not in str(path)} for listed in files
    ]
    assert kept[0] == kept[1]  # tensors apart, whose files are named after ranks
    assert (tmp_path / "two/logs/rank_1.log").is_file()


def test_a_checkpoint_of_two_ranks_goes_on_on_one_and_four_and_is_exported(tmp_path):
    """B18 on two ranks, with a tied head; the quickest of resumes is that of one rank."""
    tiny.save("qwen2_5_vl", tmp_path / "qwen2_5_vl", tie_word_embeddings=True)
    four = {"worker__rollout__n": 4}  # so that each of four ranks gets as many answers of an update
    straight = train(tmp_path, tmp_path / "straight", "qwen2_5_vl", 1, **four, trainer__max_steps=3)
    train(tmp_path, tmp_path / "two", "qwen2_5_vl", 2, **four, trainer__max_steps=2)
    checkpoint = tmp_path / "two/global_step_2"
    for ranks in (1, 4):
        run = tmp_path / f"again{ranks}"
        again = four | {"trainer__load_checkpoint_path": checkpoint, "trainer__max_steps": 3}
        steps = train(tmp_path, run, "qwen2_5_vl", ranks, **again)
        assert steps[3]["actor/grad_norm"] == pytest.approx(straight[3]["actor/grad_norm"], rel=1e-3)
        same_weights(tmp_path / "straight/global_step_3/actor/model", run / "global_step_3/actor/model")
    commands.run("easyr1.cli.main", "merge", str(checkpoint))
    output = commands.run("easyr1.cli.main", "merge", str(checkpoint))  # again, with the same outcome
    merged = checkpoint / "actor/huggingface"
    assert str(merged) in output
    model, info = AutoModelForImageTextToText.from_pretrained(merged, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    saved = runs.read_shards(checkpoint / "actor/model")
    own = model.state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in saved.items())
    assert own["lm_head.weight"].data_ptr() == model.get_input_embeddings().weight.data_ptr()


def test_rows_with_and_without_pictures_on_two_ranks(tmp_path):
    """B06: micro-batches of one answer; a rank that has but text still adds zeros to the vision tower's gradient."""
    rows = tiny.vision_rows(4) + tiny.text_rows(4)
    tiny.write_rows(tmp_path / "mixed.jsonl", rows)
    settings = {
        "data__train_files": tmp_path / "mixed.jsonl",
        "data__val_files": tmp_path / "mixed.jsonl",
        "data__shuffle": "false",
        "worker__actor__micro_batch_size_per_device_for_update": 1,
        "worker__actor__dynamic_batching": "false",
        "trainer__max_steps": 2,
    }
    one = train(tmp_path, tmp_path / "one", "qwen2_5_vl", 1, **settings)
    many = train(tmp_path, tmp_path / "two", "qwen2_5_vl", 2, **settings)
    same_metrics(one, many)
    same_weights(*(tmp_path / run / "global_step_2/actor/model" for run in ("one", "two")))


WITH_A_BROKEN_PICTURE = {
    "algorithm__adv_estimator": "remax",  # with a greedy answer to each prompt
    "data__on_bad_media": "skip",
    "data__shuffle": "false",
    "worker__actor__global_batch_size": 4,
    "worker__actor__model__lora__rank": 4,
    "worker__rollout__ignore_eos": "true",
    "trainer__val_before_train": "true",
    "trainer__val_freq": 1,
}


def two_long_and_two_short_rows(folder: Path) -> Path:
    """And one whose picture cannot be decoded, so that every step has the four others."""
    rows = tiny.vision_rows(5)
    for number, row in enumerate(rows):
        row["images"] = [tiny.picture(56, 56, seed=number)]
        row["problem"] = "<image>" + "much to read " * (8 if number < 3 else 1)
    data = tiny.write_rows(folder / "five.jsonl", rows)
    picture = folder / "five_images/1-0.png"
    tiny.picture(200, 200).save(picture)
    whole = picture.read_bytes()
    body = whole.index(b"IDAT") + 60
    picture.write_bytes(whole[:body] + bytes(100) + whole[body + 100 :])
    return data


def test_greedy_baselines_adapters_broken_pictures_and_a_single_validation_row_on_two_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    files = {
        "data__train_files": two_long_and_two_short_rows(tmp_path),
        "data__val_files": tiny.write_rows(tmp_path / "one_row.jsonl", tiny.vision_rows(1)),
    }
    found = []
    for ranks in (1, 2):
        run = tmp_path / f"on{ranks}"
        where = {"trainer__n_gpus_per_node": ranks, "trainer__save_checkpoint_path": run}
        settings = {**COMMON, **WITH_A_BROKEN_PICTURE, **files, **where}
        _, last = runs.run(runs.arguments(tmp_path, "qwen2_5_vl", **settings))
        told = [row["message"] for row in runs.rows(run, "events.jsonl") if "on_bad_media" in row.get("message", "")]
        assert len(told) == 1 and "row 1" in told[0] and "1-0.png" in told[0]
        only = {"trainer__val_only": "true", "trainer__load_checkpoint_path": tmp_path / "on1/global_step_2"}
        _, validated = runs.run(runs.arguments(tmp_path, "qwen2_5_vl", **settings | only))
        found.append((runs.steps(run), last, validated))
    (one, *results), (many, *others) = found
    same_metrics(one, many)
    for left, right in zip(results, others, strict=True):
        assert left.keys() == right.keys() and left["val/reward_score"] > 0
        assert right["val/reward_score"] == pytest.approx(left["val/reward_score"], abs=1e-4)
    for step in (1, 2):
        assert many[step]["data/skipped_rows"] == 1
        told = {name: value for name, value in many[step].items() if name.startswith("balance/")}
        assert {"balance/rollout_generate", "balance/actor_update"} <= told.keys()
        for name, value in told.items():
            # A long and a short row each; both long ones on one rank would be 1.4. Of validation's one row one rank
            # has nothing, which is 2 in one call of three.
            assert 1 <= value < (1.4 if name == "balance/rollout_generate" else 1.05), (step, told)
    same_weights(*(tmp_path / run / "global_step_2/actor/model" for run in ("on1", "on2")))
