"""Whole runs whose answers vLLM samples: on one rank, on two with an engine each, and on two that share one."""

import pytest
import runs
import samplers
import tiny

from easyr1.errors import ConfigError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not samplers.HAS_VLLM, reason="vLLM is not installed"),
]
PLACES = {
    "one rank": {},
    "an engine on each of two ranks": {"trainer__n_gpus_per_node": 2},
    "one engine over two ranks": {"trainer__n_gpus_per_node": 2, "worker__rollout__tensor_parallel_size": 2},
}


@pytest.mark.parametrize("place", PLACES)
def test_pictures_are_sampled_with_the_trainers_weights_in_every_step(tmp_path, place):
    """Beside a sharded actor, where there are two ranks; the probe looks after each update."""
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
    steps = runs.steps(tmp_path / "run")
    assert [step for step in sorted(steps) if step] == [1, 2, 3] and "val/reward_score" in last
    for step in (1, 2, 3):
        assert steps[step]["rollout/log_prob_gap_max"] < 1e-4, step
        assert steps[step]["actor/grad_norm"] > 0


def test_a_run_goes_on_from_its_checkpoint_with_the_same_answers(tmp_path):
    common = {"worker__rollout__name": "vllm", "worker__rollout__enforce_eager": "true", "trainer__save_freq": 1}
    runs.run(runs.arguments(tmp_path, "qwen2_5_vl", trainer__max_steps=3, **common))
    straight = runs.steps(tmp_path / "run")
    resume = {"trainer__load_checkpoint_path": tmp_path / "run" / "global_step_2"}
    again = {"trainer__save_checkpoint_path": tmp_path / "again", "trainer__max_steps": 3}
    runs.run(runs.arguments(tmp_path, "qwen2_5_vl", **common, **resume, **again))
    resumed = runs.steps(tmp_path / "again")
    for name in ("reward/overall", "response_length/mean"):
        assert straight[3][name] == resumed[3][name]
    assert resumed[3]["actor/pg_loss"] == pytest.approx(straight[3]["actor/pg_loss"], abs=1e-5)


def test_a_family_whose_pictures_cannot_be_handed_over_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("easyr1.engines.rollout_vllm.PICTURE_MODELS", ("qwen3_vl",))
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
