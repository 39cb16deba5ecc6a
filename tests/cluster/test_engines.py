"""Engines over several replicas, with scripted ranks: who gets what, what crosses, and that order comes back."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from easyr1.batch import Completion, Group, Prompt, Sample, Sums
from easyr1.cluster.engines import Balance, SharedRollout, SharedTrain
from easyr1.cluster.group import LocalGroup
from easyr1.engines.protocols import Sampling


@dataclass
class ScriptedGroup:
    """Replicas of one object, called one after the other; what they were given is kept."""

    engine: Any
    num_replicas: int
    shares: list[Any] = field(default_factory=list)

    def call_sharded(self, method: str, shares, *arguments, progress=None) -> list[Any]:
        assert len(shares) == self.num_replicas
        self.shares = list(shares)
        return [getattr(self.engine, method.partition(".")[2])(share, *arguments) for share in shares]


class Scripted:
    """Says of each token its id, so that a result shows which sample it belongs to."""

    def score(self, groups):
        return [[sample.completion.ids.astype(np.float32) for sample in group.samples] for group in groups]

    def update(self, groups, lr, kl_coef):
        sums = Sums()
        for group in groups:
            for sample in group.samples:
                sums.add("actor/loss", float(sample.completion.ids[0]), 0.0)
        sums.add("actor/skipped_updates", 0.0, 0.5)
        return sums

    def generate(self, prompts, sampling):
        return [
            [Completion(prompt.ids, np.zeros(1, np.float32), "stop", prompt.group_id, 0)] * sampling.n
            for prompt in prompts
        ]


def prompt(number: int, length: int = 4, media: tuple[str, ...] = ()) -> Prompt:
    ids = np.full(length, number)
    return Prompt(number, ids, media, text="a text", ground_truth="1", columns={"big": "x" * 999}, index=number)


def group(number: int, *lengths: int, media: tuple[str, ...] = ()) -> Group:
    def sample(place: int, length: int) -> Sample:
        ids = np.full(length, 100 * number + place)
        return Sample(Completion(ids, np.zeros(length, np.float32), "stop", "", 0), text="long", scores={"overall": 1})

    return Group(prompt(number, media=media), [sample(place, length) for place, length in enumerate(lengths)])


def shared(engine: Any, replicas: int, media_tokens=lambda handle: 0) -> tuple[SharedTrain, Any, Balance]:
    ranks, balance = ScriptedGroup(engine, replicas), Balance()
    return SharedTrain(ranks, "actor", media_tokens, balance), ranks, balance  # type: ignore[arg-type]


@pytest.mark.parametrize("replicas", (1, 2, 3, 8))
def test_results_come_back_in_the_callers_order(replicas):
    groups = [group(number, *([3, 50, 7][: number % 3 + 1])) for number in range(7)]
    train, ranks, _ = shared(Scripted(), replicas)
    found = train.score(groups)
    for own, results in zip(groups, found, strict=True):
        for sample, values in zip(own.samples, results, strict=True):
            assert np.array_equal(values, sample.completion.ids)
    assert sum(len(one.samples) for share in ranks.shares for one in share) == sum(len(one.samples) for one in groups)


def test_a_lone_group_is_split_over_replicas_and_put_together_again():
    train, ranks, _ = shared(Scripted(), 2)
    lone = group(1, 50, 60, 70, 80)
    (found,) = train.score([lone])
    assert [[len(one.samples) for one in share] for share in ranks.shares] == [[2], [2]]
    assert [int(values[0]) for values in found] == [100, 101, 102, 103]


def test_what_crosses_is_light_and_the_callers_groups_stay_as_they_are():
    train, ranks, _ = shared(Scripted(), 2)
    groups = [group(number, 5, 5) for number in range(4)]
    train.update(groups, 0.1)
    for share in ranks.shares:
        for one in share:
            assert (one.prompt.text, one.prompt.ground_truth, one.prompt.columns) == ("", None, {})
            assert all((sample.text, sample.scores) == ("", {}) for sample in one.samples)
    assert groups[0].prompt.columns and groups[0].samples[0].text == "long" and groups[0].samples[0].scores


def test_sums_of_replicas_are_merged_and_steps_counted():
    train, _, balance = shared(Scripted(), 2)
    sums = train.update([group(number, 5) for number in range(4)], 0.1)
    assert sums.totals["actor/loss"][0] == sum(100 * number for number in range(4))
    assert sums.totals["actor/skipped_updates"] == (0.0, 1.0) and train.version == 1
    assert balance.take() == {"balance/actor_update": 1.0} and balance.take() == {}


def test_without_samples_no_rank_is_called():
    train, ranks, _ = shared(Scripted(), 2)
    assert not train.update([Group(prompt(0), [])], 0.1).totals
    assert not ranks.shares and train.version == 0


def test_pictures_count_and_imbalance_is_told():
    train, ranks, balance = shared(Scripted(), 2, lambda handle: 1000)
    train.score([group(0, 100, media=("a",)), group(1, 100), group(2, 100), group(3, 100)])
    assert sorted(len(share) for share in ranks.shares) == [1, 3]
    assert balance.take()["balance/actor_score"] > 1.2


def test_one_replica_has_no_balance_to_tell():
    train, _, balance = shared(Scripted(), 1)
    train.score([group(0, 5), group(1, 500)])
    assert balance.take() == {}


@pytest.mark.parametrize("replicas", (1, 2, 5))
def test_every_replica_answers_its_share_of_prompts(replicas):
    ranks = ScriptedGroup(Scripted(), replicas)
    rollout = SharedRollout(ranks, Balance())  # type: ignore[arg-type]
    prompts = [prompt(number, length) for number, length in enumerate((30, 4, 4, 90, 8))]
    answers = rollout.generate(prompts, Sampling(n=2, max_tokens=1000))
    assert [[int(one.ids[0]) for one in own] for own in answers] == [[number] * 2 for number in range(5)]
    assert all(not one.columns and not one.text for share in ranks.shares for one in share)
    assert max(map(len, ranks.shares)) - min(map(len, ranks.shares)) <= (replicas > 1)


def test_the_local_group_is_called_alike():
    class Counting(Scripted):
        version = 3

        def generate(self, prompts, sampling, progress):
            progress(1, 1)
            return super().generate(prompts, sampling)

        def push(self):
            return self.version

    told = []
    ranks = LocalGroup({"rollout": Counting(), "sync": Counting()})
    rollout = SharedRollout(ranks, Balance())
    assert len(rollout.generate([prompt(1)], Sampling(n=3), lambda *numbers: told.append(numbers))[0]) == 3
    assert told == [(1, 1)]
    rollout.load((), 3)
    with pytest.raises(AssertionError, match="not at 4"):
        rollout.load((), 4)
