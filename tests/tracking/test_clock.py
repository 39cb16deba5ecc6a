"""Times of phases and the speeds made of them, on a clock that tests move by hand."""

import os
import sys

import pytest

from easyr1.tracking.clock import Clock, peak_memory_gb


class Hand:
    """A clock's hand."""

    def __init__(self):
        self.seconds = 100.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def hand():
    return Hand()


def spend(clock, hand, name, seconds):
    with clock.phase(name):
        hand.seconds += seconds


def test_phases_and_the_rest_add_up_to_the_step(hand):
    clock = Clock(hand)
    spend(clock, hand, "gen", 2)
    hand.seconds += 1
    spend(clock, hand, "update_actor", 3)
    spend(clock, hand, "gen", 4)
    metrics = clock.metrics(num_tokens=200, response_tokens=100)
    assert (metrics["timing_s/gen"], metrics["timing_s/update_actor"]) == (6, 3)
    assert metrics["timing_s/step"] == metrics["perf/time_per_step"] == 10


def test_the_inner_phase_takes_its_time_from_the_outer_one(hand):
    clock = Clock(hand)
    with clock.phase("gen"):
        hand.seconds += 1
        spend(clock, hand, "reward", 2)
        hand.seconds += 4
    assert clock.seconds == {"gen": 5, "reward": 2}


def test_validation_and_saving_slow_no_throughput(hand):
    clock = Clock(hand)
    spend(clock, hand, "update_actor", 4)
    spend(clock, hand, "validation", 30)
    spend(clock, hand, "save_checkpoint", 50)
    metrics = clock.metrics(num_tokens=800, response_tokens=100, num_ranks=2)
    assert metrics["timing_s/step"] == 4
    assert metrics["perf/throughput"] == 800 / 4 / 2
    assert (metrics["timing_s/validation"], metrics["timing_s/save_checkpoint"]) == (30, 50)


def test_time_per_token_counts_answers_for_sampling_and_all_tokens_for_training(hand):
    clock = Clock(hand)
    for name in ("gen", "ref", "validation"):
        spend(clock, hand, name, 1)
    metrics = clock.metrics(num_tokens=500, response_tokens=100)
    per_token = {name: value for name, value in metrics.items() if name.startswith("timing_per_token_ms/")}
    assert per_token == {"timing_per_token_ms/gen": 10, "timing_per_token_ms/ref": 2}


def test_a_step_without_tokens_has_no_speed_per_token(hand):
    clock = Clock(hand)
    spend(clock, hand, "gen", 1)
    metrics = clock.metrics(num_tokens=0, response_tokens=0)
    assert metrics["perf/throughput"] == 0
    assert "timing_per_token_ms/gen" not in metrics


def test_a_phase_that_fails_is_timed_and_closed(hand):
    clock = Clock(hand)
    with pytest.raises(KeyError), clock.phase("gen"):
        hand.seconds += 2
        raise KeyError
    hand.seconds += 5
    assert clock.metrics(1, 1)["timing_s/gen"] == 2


def test_memory_is_that_of_this_process_and_of_the_device_as_told(hand):
    metrics = Clock(hand).metrics(1, 1, device_memory_gb={"max_memory_allocated_gb": 11.5})
    assert metrics["perf/max_memory_allocated_gb"] == 11.5
    assert metrics["perf/cpu_memory_used_gb"] == pytest.approx(peak_memory_gb(), rel=0.1)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_peak_memory_is_at_least_what_is_in_use():
    with open("/proc/self/statm") as file:
        in_use_gb = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024**3
    assert 0.9 * in_use_gb <= peak_memory_gb() < in_use_gb + 64
