"""Whole runs whose answers vLLM samples: on the ranks that train, alone or together, and on others; with adapters."""

import os
from pathlib import Path

import commands
import pytest
import runs
import samplers
import tiny
from test_ranks import same_metrics, same_weights

from easyr1.errors import ConfigError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not samplers.HAS_VLLM, reason="vLLM is not installed"),
]
THREE_STEPS = {
    "worker__rollout__name": "vllm",
    "worker__rollout__enforce_eager": "true",
    "worker__rollout__seed_answers": "true",
    "worker__rollout__engine_kwargs__max_num_seqs": 16,
    "worker__actor__optim__lr": 1e-4,
    "trainer__max_steps": 3,
    "trainer__save_freq": 1,
    "trainer__val_freq": -1,
    "trainer__val_before_train": "false",
}
PLACES = {
    "one rank": {},
    "an engine on each of two ranks": {"trainer__n_gpus_per_node": 2},
    "one engine over two ranks": {"trainer__n_gpus_per_node": 2, "worker__rollout__tensor_parallel_size": 2},
    "adapters on one rank": {"worker__actor__model__lora__rank": 4},
    "adapters for two ranks that only sample, with one engine": {
        "worker__actor__model__lora__rank": 4,
        "worker__hybrid_engine": "false",
        "worker__rollout__n_gpus": 2,
        "worker__rollout__tensor_parallel_size": 2,
    },
}


@pytest.mark.parametrize("place", PLACES)
def test_pictures_are_sampled_with_the_trainers_weights_in_every_step(tmp_path, place):
    """Beside a sharded actor, where there are two ranks; the probe looks after each update."""
    before = set(Path("/dev/shm").glob("psm_*"))
    _, last = runs.run(
        runs.arguments(
            tmp_path,
            "qwen2_5_vl",
            worker__rollout__name="vllm",
            worker__rollout__enforce_eager="true",
            worker__rollout__probe_freq=1,
            worker__rollout__limit_images=1,
            worker__rollout__engine_kwargs__max_num_seqs=16,
            trainer__max_steps=3,
            trainer__val_freq=2,
            **PLACES[place],
        )
    )
    if "one engine" in place:  # nothing of its ranks' shared memory is left
        assert not set(Path("/dev/shm").glob("psm_*")) - before
    steps = runs.steps(tmp_path / "run")
    assert [step for step in sorted(steps) if step] == [1, 2, 3] and "val/reward_score" in last
    for step in (1, 2, 3):
        assert steps[step]["rollout/log_prob_gap_max"] < 1e-4, step
        assert steps[step]["actor/grad_norm"] > 0
    told = [row["message"] for row in runs.rows(tmp_path / "run", "events.jsonl") if row["kind"] == "lora"]
    assert len(told) == place.startswith("adapters")
    assert all("vLLM gets the base once and then adapters alone" in message for message in told)


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    """Three steps on one rank, each of them saved, with answers that do not depend on their company."""
    folder = tmp_path_factory.mktemp("straight")
    runs.run(runs.arguments(folder, "qwen2_5_vl", **THREE_STEPS))
    return folder


def test_a_run_goes_on_from_its_checkpoint_with_the_same_answers(straight, tmp_path):
    again = {"trainer__save_checkpoint_path": tmp_path / "again"}
    resume = {"trainer__load_checkpoint_path": straight / "run/global_step_2"}
    runs.run(runs.arguments(straight, "qwen2_5_vl", **THREE_STEPS | again | resume))
    same_metrics({3: runs.steps(straight / "run")[3]}, runs.steps(tmp_path / "again"))


def test_engines_on_ranks_that_only_sample_make_no_difference(straight, tmp_path):
    """Two, which share the prompts out."""
    run = tmp_path / "apart"
    where = {"trainer__save_checkpoint_path": run, "worker__hybrid_engine": "false", "worker__rollout__n_gpus": 2}
    command = runs.arguments(straight, "qwen2_5_vl", **THREE_STEPS | where)
    paths = os.pathsep.join(map(str, (commands.ROOT, commands.ROOT / "tests/torchvision_on_cpu")))
    commands.run("easyr1.cli.main", "train", *command, RAY_ADDRESS="local", OMP_NUM_THREADS="1", PYTHONPATH=paths)
    same_metrics(runs.steps(straight / "run"), runs.steps(run))
    same_weights(*(folder / "global_step_3/actor/model" for folder in (straight / "run", run)))


def test_a_family_whose_pictures_cannot_be_handed_over_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("easyr1.engines.vllm_settings.PICTURE_MODELS", ("qwen3_vl",))
    with pytest.raises(ConfigError, match="not for qwen2_5_vl; set torch"):
        runs.run(runs.arguments(tmp_path, "qwen2_5_vl", worker__rollout__name="vllm"))


def test_what_vllm_refuses_is_told_in_one_line(tmp_path):
    tiny.save("qwen2", tmp_path / "qwen2")
    with pytest.raises(ConfigError, match=r"vLLM 0\.\d+\.\d+ refuses: .*no_such_argument"):
        runs.run(
            runs.arguments(
                tmp_path,
                "qwen2",
                worker__rollout__name="vllm",
                worker__rollout__engine_kwargs__no_such_argument=1,
            )
        )
