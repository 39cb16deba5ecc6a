"""The loop as a whole on tiny models: what is logged and saved, how mini-batches are cut, what a resume takes up."""

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest
import runs

from easyr1.errors import ConfigError

ORIGINAL_NAMES = """
actor/pg_loss actor/ppo_kl actor/entropy_loss actor/pg_clipfrac_higher actor/pg_clipfrac_lower actor/grad_norm actor/lr
actor/kl_loss actor/kl_coef critic/score/mean critic/rewards/max critic/advantages/min critic/returns/mean
response_length/mean response_length/clip_ratio prompt_length/max prompt_length/clip_ratio reward/overall reward/length
timing_s/gen timing_s/reward timing_s/old timing_s/ref timing_s/adv timing_s/update_actor timing_s/step
timing_per_token_ms/gen timing_per_token_ms/update_actor perf/total_num_tokens perf/time_per_step perf/throughput
perf/cpu_memory_used_gb
"""
VALIDATION_NAMES = """
val/reward_score val/overall_reward val/length_reward val_response_length/mean val_prompt_length/mean
timing_s/validation
"""


def answers(folder, split):
    """The logged answers of validations ("val") or of training groups ("train")."""
    return [row for row in runs.rows(folder / "run", "generations.jsonl") if row["split"] == split]


@pytest.mark.parametrize("kind", ("qwen2", "qwen2_5_vl"))
def test_a_run_logs_the_originals_metrics_and_leaves_its_folder(tmp_path, kind):
    _, result = runs.run(runs.arguments(tmp_path, kind, trainer__save_freq=1, trainer__val_freq=2))
    folder = tmp_path / "run"
    steps = runs.steps(folder)
    assert sorted(steps) == [0, 1, 2]
    for step in (1, 2):
        assert not [name for name in ORIGINAL_NAMES.split() if name not in steps[step]]
        assert all(math.isfinite(value) for value in steps[step].values() if isinstance(value, float))
    for step in (0, 2):
        assert not [name for name in VALIDATION_NAMES.split() if name not in steps[step]]
    assert "val/reward_score" not in steps[1]
    assert result["val/reward_score"] == steps[2]["val/reward_score"]
    assert 0 < steps[1]["actor/entropy"] < math.log(512)
    record = json.loads((folder / "checkpoint_tracker.json").read_text())
    assert record["last_global_step"] == 2 and record["last_actor_path"].endswith("global_step_2/actor")
    assert record["best_global_step"] == 2  # step 1 was not validated, so it cannot be the best
    assert (folder / "report.html").exists() and (folder / "config.json").exists()
    assert {"config.json", "tokenizer.json"} <= {
        path.name for path in (folder / "global_step_2/actor/huggingface").iterdir()
    }


def test_mini_batches_are_cut_by_the_loop_in_order_and_passes_repeat(tmp_path):
    seen = []

    def watch(trainer):
        update = trainer.actor.engine.update

        def recorded(groups, lr, kl_coef=0.0):
            seen.append(([group.prompt.group_id for group in groups], lr))
            return update(groups, lr, kl_coef)

        trainer.actor.engine.update = recorded

    runs.run(
        runs.arguments(
            tmp_path,
            trainer__max_steps=1,
            worker__actor__ppo_epochs=2,
            worker__actor__optim__lr_warmup_steps=4,
            trainer__val_before_train="false",
        ),
        watch,
    )
    assert [ids for ids, _ in seen] == [["0-0-0", "0-1-0"], ["0-2-0", "0-3-0"]] * 2
    assert {lr for _, lr in seen} == {1e-3 / 4}


def test_on_policy_skips_the_old_log_probs_and_the_ratio_is_one(tmp_path):
    runs.run(runs.arguments(tmp_path, worker__actor__global_batch_size=4, algorithm__disable_kl="true"))
    step = runs.steps(tmp_path / "run")[1]
    assert "timing_s/old" not in step and "timing_s/ref" not in step
    assert step["actor/ppo_kl"] == 0 and step["actor/pg_clipfrac_higher"] == 0
    assert "actor/kl_loss" not in step and "actor/kl_coef" not in step


def test_kl_in_the_reward_is_taken_off_and_its_coefficient_adapts(tmp_path):
    settings = {"algorithm__use_kl_loss": "false", "algorithm__kl_penalty": "kl", "algorithm__kl_coef": 0.5}
    settings |= {"algorithm__kl_type": "adaptive", "algorithm__kl_horizon": 100, "algorithm__kl_target": 0.001}
    settings |= {"worker__actor__global_batch_size": 4, "worker__actor__optim__lr": 1e-2}
    runs.run(runs.arguments(tmp_path, **settings))
    first, second = (runs.steps(tmp_path / "run")[step] for step in (1, 2))
    assert first["actor/kl_penalty"] == pytest.approx(0, abs=1e-5)  # the policy is still the reference
    assert first["critic/rewards/mean"] == pytest.approx(first["critic/score/mean"], abs=1e-4)
    assert second["critic/rewards/mean"] != pytest.approx(second["critic/score/mean"], abs=1e-4)
    assert first["actor/kl_coef"] == 0.5 and second["actor/kl_coef"] == pytest.approx(0.5 * (1 - 0.2 * 12 / 100))


def test_val_only_validates_once_and_trains_nothing(tmp_path):
    trainer, result = runs.run(runs.arguments(tmp_path, trainer__val_only="true", trainer__val_before_train="false"))
    assert trainer.step == 0 and "val/reward_score" in result and sorted(runs.steps(tmp_path / "run")) == [0]


def test_validation_logs_the_same_rows_every_time_and_repeats_its_draws(tmp_path):
    arguments = runs.arguments(tmp_path, worker__actor__optim__lr=0.0, trainer__val_freq=1, data__val_batch_size=3)
    runs.run(arguments)
    runs.run([*arguments, "trainer.max_steps=3"])
    by_step = {}
    for row in answers(tmp_path, "val"):
        by_step.setdefault(row["step"], []).append((row["row"], row["response"]))
    assert {len(found) for step, found in by_step.items() if step != 2} == {3}
    assert len({tuple(found[:3]) for found in by_step.values()}) == 1  # lr 0: same rows, same answers


def test_an_update_with_a_broken_gradient_is_told(tmp_path):
    def break_one(trainer):
        update = trainer.actor.engine.update

        def broken(groups, lr, kl_coef=0.0):
            groups[0].samples[0].advantages[0] = float("nan")
            return update(groups, lr, kl_coef)

        trainer.actor.engine.update = broken

    runs.run(runs.arguments(tmp_path, trainer__max_steps=1), break_one)
    assert runs.steps(tmp_path / "run")[1]["actor/skipped_updates"] == 1
    assert any("not finite" in event.get("message", "") for event in runs.rows(tmp_path / "run", "events.jsonl"))


def test_the_trainer_has_no_hidden_state_beside_its_fields(tmp_path):
    trainer, _ = runs.run(runs.arguments(tmp_path, trainer__max_steps=1))
    assert set(vars(trainer)) == {field.name for field in dataclasses.fields(trainer)}


def test_truncated_answers_can_be_left_out_of_the_loss(tmp_path):
    """Every answer of these runs is cut at the limit, so nothing is left to train on and nothing breaks."""
    settings = {"algorithm__mask_truncated": "true", "data__max_response_length": 1, "trainer__max_steps": 1}
    trainer, _ = runs.run(runs.arguments(tmp_path, **settings))
    step = runs.steps(tmp_path / "run")[1]
    assert step["response_length/clip_ratio"] == 1 and "actor/pg_loss" not in step
    assert trainer.actor.engine.version == 0


def test_answers_near_the_limit_pay(tmp_path):
    settings = {"algorithm__overlong_buffer_length": 12, "algorithm__overlong_penalty_factor": 0.5}
    runs.run(runs.arguments(tmp_path, **settings, trainer__max_steps=1))
    step = runs.steps(tmp_path / "run")[1]
    assert step["reward/overlong"] == pytest.approx(-0.5 * step["response_length/mean"] / 12)


def test_old_log_probs_may_be_the_samplers(tmp_path):
    settings = {"worker__actor__old_log_probs": "sampler", "trainer__max_steps": 1}
    runs.run(runs.arguments(tmp_path, **settings))
    step = runs.steps(tmp_path / "run")[1]
    assert "timing_s/old" not in step and step["rollout/log_prob_gap_max"] == 0


@pytest.mark.parametrize("correction", ("tis", "mis", "icepop", "seq_mask"))
def test_sampler_and_trainer_agree_so_a_correction_changes_nothing(tmp_path, correction):
    settings = {"worker__actor__global_batch_size": 4, "trainer__max_steps": 1, "trainer__val_before_train": "false"}
    runs.run(runs.arguments(tmp_path, **settings))
    path = tmp_path / "corrected"
    runs.run(
        runs.arguments(
            tmp_path, **settings, worker__rollout__correction=correction, trainer__save_checkpoint_path=path
        )
    )
    plain, corrected = runs.steps(tmp_path / "run")[1], runs.steps(path)[1]
    assert corrected["actor/correction_weight"] == pytest.approx(1, abs=1e-4)
    assert corrected["actor/grad_norm"] == pytest.approx(plain["actor/grad_norm"], rel=1e-3)
    assert plain["rollout/log_prob_gap_max"] < 1e-4 and plain["rollout/effective_share"] == pytest.approx(1, abs=1e-4)


def test_an_entropy_bonus_raises_the_entropy(tmp_path):
    settings = {"algorithm__disable_kl": "true", "trainer__max_steps": 4, "trainer__val_before_train": "false"}
    found = []
    for coefficient in (0.0, 5.0):
        path = tmp_path / f"run{coefficient}"
        changes = {"worker__actor__entropy_coef": coefficient, "trainer__save_checkpoint_path": path}
        runs.run(runs.arguments(tmp_path, **settings, **changes))
        found.append(runs.steps(path)[4]["actor/entropy"])
    assert found[1] > found[0]


@pytest.mark.parametrize("in_loss", ("true", "false"))
def test_the_whole_kl_in_loss_and_reward(tmp_path, in_loss):
    settings = {"algorithm__kl_penalty": "full", "algorithm__use_kl_loss": in_loss, "worker__actor__optim__lr": 1e-2}
    runs.run(runs.arguments(tmp_path, **settings, trainer__val_before_train="false"))
    first, second = (runs.steps(tmp_path / "run")[step] for step in (1, 2))
    name = "actor/kl_loss" if in_loss == "true" else "actor/kl_penalty"
    assert second[name] > max(0.0, first[name]) and first[name] < second[name]


def test_a_finished_run_can_be_evaluated_with_fewer_rows_than_a_batch(tmp_path):
    runs.run(runs.arguments(tmp_path, trainer__val_before_train="false"))
    few = runs.arguments(tmp_path, rows=3, trainer__val_only="true", trainer__load_checkpoint_path=tmp_path / "run")
    folder = f"trainer.save_checkpoint_path={tmp_path / 'evaluation'}"
    with pytest.raises(ConfigError, match=r"data\.train_files"):  # other rows: the position means nothing there
        runs.run([*few, folder])
    _, result = runs.run(runs.arguments(tmp_path, trainer__val_only="true"))
    assert "val/reward_score" in result
    fresh = runs.arguments(tmp_path, rows=3, trainer__val_only="true", trainer__find_last_checkpoint="false")
    _, result = runs.run([*fresh, f"trainer.save_checkpoint_path={tmp_path / 'other'}"])
    assert "val/reward_score" in result


def test_a_broken_gradient_does_not_break_an_adaptive_coefficient(tmp_path):
    def break_one(trainer):
        score = trainer.reference.score

        def broken(groups, tick=None):
            found = score(groups, tick)
            found[0][0][0] = float("nan")
            return found

        trainer.reference.score = broken

    runs.run(runs.arguments(tmp_path, algorithm__kl_type="adaptive", trainer__max_steps=1), break_one)
    step = runs.steps(tmp_path / "run")[1]
    assert step["actor/skipped_updates"] > 0 and step["actor/kl_coef"] == 0.01


def test_the_price_of_long_answers_is_paid_in_training_alone(tmp_path):
    settings = {"algorithm__overlong_buffer_length": 12, "worker__rollout__val_override_config": "{max_tokens: 24}"}
    runs.run(runs.arguments(tmp_path, **settings, trainer__max_steps=1))
    steps = runs.steps(tmp_path / "run")
    assert "val/overlong_reward" not in steps[0] and "reward/overlong" in steps[1]


def test_pictures_are_logged_once(tmp_path):
    runs.run(runs.arguments(tmp_path, "qwen2_5_vl", trainer__val_freq=1))
    assert [("images" in row) for row in answers(tmp_path, "val")] == [True] * 3 + [False] * 6


def test_training_groups_are_logged_whole_with_what_was_learnt_from_each_answer(tmp_path):
    runs.run(runs.arguments(tmp_path, "qwen2_5_vl", worker__rollout__n=3, trainer__train_groups_to_log=2))
    rows = answers(tmp_path, "train")
    assert [row["step"] for row in rows] == [1] * 6 + [2] * 6
    for first in range(0, 12, 3):
        group = rows[first : first + 3]
        assert len({(row["group"], row["row"], row["prompt"]) for row in group}) == 1
        assert ["images" in row for row in group] == [True, False, False]  # once is enough
        scores, advantages = ([row[name] for row in group] for name in ("scores", "advantage"))
        assert sum(advantages) == pytest.approx(0, abs=1e-4)
        overall = [one["overall"] for one in scores]
        assert sorted(range(3), key=overall.__getitem__) == sorted(range(3), key=advantages.__getitem__)
    assert len({row["group"] for row in rows}) == 4
    assert all(row["truncated"] in (True, False) for row in rows)
    page = (tmp_path / "run" / "report.html").read_text()
    shown = json.loads(page.split('<script type="application/json" id="data">')[1].split("</script>")[0])
    assert [[answer["advantage"] for answer in group["answers"]] for group in shown["groups"]] == [
        [row["advantage"] for row in rows[first : first + 3]] for first in range(0, 12, 3)
    ]
    assert all(group["pictures"] for group in shown["groups"])


@pytest.mark.parametrize(("takes_s", "times"), ((0.0, 4), (0.2, 2)))
def test_a_report_that_takes_long_is_renewed_seldom_and_at_the_end(tmp_path, monkeypatch, takes_s, times):
    written, now = [], [50.0]

    def write(folder):
        written.append(folder)
        now[0] += takes_s

    monkeypatch.setattr("easyr1.trainer.loop.write_report", write)
    monkeypatch.setattr("easyr1.trainer.loop.time", SimpleNamespace(monotonic=lambda: now[0]))
    runs.run(runs.arguments(tmp_path, trainer__val_freq=1))  # validations at steps 0, 1 and 2
    assert len(written) == times


def test_no_training_groups_are_logged_where_none_are_wanted(tmp_path):
    runs.run(runs.arguments(tmp_path, trainer__train_groups_to_log=0, trainer__max_steps=1))
    assert answers(tmp_path, "train") == [] and answers(tmp_path, "val") != []


def test_pixels_never_go_to_the_reward(tmp_path):
    arguments = runs.arguments(tmp_path, "qwen2_5_vl", trainer__max_steps=1)
    (tmp_path / "reward.py").write_text(
        "def compute_score(inputs):\n"
        "    for one in inputs:\n"
        "        assert one['image_sizes'] and not {'images', 'videos', 'pixel_values'} & set(one), sorted(one)\n"
        "        assert len(repr(one)) < 2000 and not any(isinstance(value, bytes) for value in one.values())\n"
        "    return [{'overall': float(len(one['response']) % 3)} for one in inputs]\n"
    )
    trainer, _ = runs.run(arguments)
    assert trainer.step == 1
