"""Which curves stand together, and what is left of long ones."""

import pytest

from easyr1.tracking.panels import MAX_CURVES, PANELS, drawn_panels, label, thin


def titles(series):
    return [panel["title"] for panel in drawn_panels(series)]


def test_every_number_that_a_reader_looks_for_has_its_panel():
    names = """
        reward/overall val/accuracy_reward actor/kl_loss actor/pg_clipfrac_higher response_length/mean
        response_length/clip_ratio actor/entropy actor/grad_norm rollout/kl perf/throughput timing_s/gen
        rollout/flat_groups actor/lr actor/ppo_kl
    """
    assert titles({name: [(1, 1.0)] for name in names.split()}) == [panel.title for panel in PANELS]
    assert titles({"timing_s/step": [(1, 1.0)], "unknown/name": [(1, 1.0)]}) == []


def test_curves_share_their_steps_and_show_gaps():
    series = {"response_length/mean": [(1, 5.0), (2, 1 / 3)], "val_response_length/mean": [(0, 4.0), (2, 6.0)]}
    (panel,) = drawn_panels(series)
    assert panel["x"] == [0, 1, 2]
    assert panel["curves"] == [
        {"label": "mean", "y": [None, 5.0, 0.333333]},
        {"label": "validation mean", "y": [4.0, None, 6.0]},
    ]


def test_two_names_of_one_thing_are_one_curve_and_too_many_are_cut():
    series = {name: [(1, 1.0)] for name in ("val/reward_score", "val/overall_reward", "val/accuracy_reward")}
    (panel,) = drawn_panels(series)
    assert [curve["label"] for curve in panel["curves"]] == ["accuracy", "overall"]
    (many,) = drawn_panels({f"reward/r{index:02}": [(1, 1.0)] for index in range(30)})
    assert [curve["label"] for curve in many["curves"]] == [f"r{index:02}" for index in range(MAX_CURVES)]


def test_a_legend_tells_sources_from_the_whole():
    names = ("val/reward_score", "val/accuracy_reward", "val/geo/accuracy_reward", "actor/kl_loss")
    assert [label(name) for name in names] == ["overall", "accuracy", "geo accuracy", "kl_loss"]


def test_long_curves_are_thinned_to_means_and_keep_their_last_point():
    points = [(step, float(step % 2)) for step in range(100_000)]
    thinned = thin(points, 300)
    assert len(thinned) <= 300 and thinned[-1] == points[-1]
    assert [step for step, _ in thinned] == sorted({step for step, _ in thinned})
    assert all(value == pytest.approx(0.5, abs=0.01) for _, value in thinned[:-1])
    assert thin(points[:300], 300) == points[:300]
