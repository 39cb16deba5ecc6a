"""B12: which groups are kept, what happens to those that are over, and how it ends when there are never enough."""

import json

import numpy as np
import pytest
import runs
from rich.console import Console

from easyr1.batch import Completion, Prompt
from easyr1.engines.protocols import Sampling
from easyr1.errors import ConfigError
from easyr1.tracking.clock import Clock
from easyr1.tracking.progress import Progress
from easyr1.trainer.carried import from_records, to_records
from easyr1.trainer.collect import Collector, DynamicSampler, Filter

SCORES = {1: [1, 0], 2: [1, 1], 3: [0, 0], 4: [0.5, 0.5], 5: [0, 1], 6: [1, 0]}  # by row


class ScriptedRollout:
    """Answers whose first token names the answer; counts what it was asked."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def generate(self, prompts, sampling, progress=None):
        self.rows += [prompt.row for prompt in prompts]
        return [
            [
                Completion(np.array([number]), np.zeros(1, np.float32), "stop", prompt.group_id, 3)
                for number in range(2)
            ]
            for prompt in prompts
        ]


def sampler(scores=SCORES, draw_size=3, max_tries=20, key="overall"):
    def score(groups, tick):
        for group in groups:
            for sample in group.samples:
                sample.scores = {"overall": scores[group.prompt.row][int(sample.completion.ids[0])]}

    collector = Collector(ScriptedRollout(), score, Progress(Console(quiet=True)))
    return DynamicSampler(collector, Filter(key, 0.01, 0.99, draw_size, max_tries))


class Rows:
    """Rows 1 to 6, again and again."""

    def __init__(self) -> None:
        self.drawn = 0

    def __call__(self, count: int) -> list[Prompt]:
        first, self.drawn = self.drawn, self.drawn + count
        return [Prompt(row=1 + place % 6, ids=np.arange(3), index=place) for place in range(first, first + count)]


def rows(groups) -> list[int]:
    return [group.prompt.row for group in groups]


def test_groups_without_spread_or_out_of_range_are_dropped_and_surplus_comes_first_next_time():
    dynamic, draw = sampler(), Rows()
    first = dynamic.gather(draw, 2, Sampling(n=2), Clock())
    assert rows(first.groups) == [1, 5] and rows(first.sampled) == [1, 2, 3, 4, 5, 6]
    assert first.metrics() == {"rollout/sampled_groups": 6, "rollout/kept_groups": 2, "rollout/tries": 2}
    assert rows(dynamic.waiting) == [6]
    second = dynamic.gather(draw, 2, Sampling(n=2), Clock())
    assert rows(second.groups) == [6, 1] and rows(second.sampled) == [1, 2, 3]
    assert second.groups[0].samples[0].completion.weights_version == 3 and dynamic.waiting == []


def test_surplus_alone_can_serve_a_step_without_sampling():
    dynamic, draw = sampler({row: [0, 1] for row in SCORES}, draw_size=6), Rows()
    dynamic.gather(draw, 3, Sampling(n=2), Clock())
    again = dynamic.gather(draw, 3, Sampling(n=2), Clock())
    assert again.tries == 0 and again.sampled == [] and rows(again.groups) == [4, 5, 6]


def test_too_few_useful_groups_end_with_counts_and_advice():
    dynamic = sampler({row: [row % 2, row % 2] for row in SCORES} | {1: [0, 1]}, max_tries=3)
    with pytest.raises(
        ConfigError, match=r"trainer\.max_try_make_batch: after 3 tries 2 of 4 groups.* 9 sampled ones 4 have"
    ):
        dynamic.gather(Rows(), 4, Sampling(n=2), Clock())
    assert len(dynamic.collector.rollout.rows) == 9


def test_a_score_that_is_not_there_is_told():
    with pytest.raises(ConfigError, match=r"algorithm\.filter_key.*'accuracy'.*returns overall"):
        sampler(key="accuracy").gather(Rows(), 2, Sampling(n=2), Clock())


def test_waiting_groups_survive_a_checkpoint_bit_by_bit():
    dynamic, draw = sampler(), Rows()
    dynamic.gather(draw, 2, Sampling(n=2), Clock())
    dynamic.waiting[0].samples[1].completion.log_probs[0] = np.float32(-1 / 3)
    saved = json.loads(json.dumps(to_records(dynamic.waiting)))
    (group,) = from_records(saved, lambda epoch, index: Rows()(index + 1)[index])
    before = dynamic.waiting[0]
    assert group.prompt.group_id == before.prompt.group_id and group.prompt.row == 6
    for left, right in zip(group.samples, before.samples, strict=True):
        assert left.scores == right.scores and left.completion.weights_version == 3
        assert left.completion.log_probs.tobytes() == right.completion.log_probs.tobytes()
        assert left.completion.ids.tobytes() == right.completion.ids.tobytes()


def test_a_filtered_run_resumes_as_if_it_had_not_stopped(tmp_path):
    settings = {"algorithm__online_filtering": "true", "algorithm__filter_low": 0.2, "algorithm__filter_high": 0.6}
    settings |= {"data__mini_rollout_batch_size": 3, "trainer__save_freq": 2, "rows": 10}
    settings |= {"trainer__val_before_train": "false", "trainer__val_freq": -1}
    for name, stops in (("straight", [4]), ("broken", [2, 4])):
        for stop in stops:
            path = tmp_path / name
            runs.run(runs.arguments(tmp_path, **settings, trainer__max_steps=stop, trainer__save_checkpoint_path=path))
    left, right = (runs.steps(tmp_path / name) for name in ("straight", "broken"))
    assert any(
        json.loads((tmp_path / "broken" / f"global_step_{step}" / "trainer_state.json").read_text())["waiting_groups"]
        for step in (2, 4)
    )
    for step in range(1, 5):
        assert left[step]["rollout/kept_groups"] == 4
        for name in ("actor/pg_loss", "actor/grad_norm", "critic/score/mean", "reward/overall", "rollout/tries"):
            assert left[step][name] == right[step][name], (step, name)


def test_groups_that_waited_are_trained_with_the_log_probs_of_their_sampler(tmp_path):
    """Strictly on-policy groups have a ratio of 1; one that waited is from before the update, so its ratio is not."""
    settings = {"algorithm__online_filtering": "true", "algorithm__filter_low": -9, "algorithm__filter_high": 9}
    settings |= {"data__mini_rollout_batch_size": 6, "worker__actor__global_batch_size": 4, "rows": 12}
    runs.run(runs.arguments(tmp_path, **settings, worker__actor__optim__lr=1e-2, trainer__val_before_train="false"))
    steps = runs.steps(tmp_path / "run")
    assert steps[1]["actor/ppo_kl"] == 0 and abs(steps[2]["actor/ppo_kl"]) > 1e-4
