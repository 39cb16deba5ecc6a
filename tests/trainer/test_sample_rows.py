"""Answers as records for people: which training steps are logged, how large pictures are, what the answer is."""

import base64
import io
import time

import pytest
from PIL import Image

from easyr1.rewards.parsed import final_answer
from easyr1.trainer.sample_rows import MAX_SIDE, is_logged_step, png


@pytest.mark.parametrize("total", (1, 2, 49, 50, 51, 99, 100, 101, 1000, 100_000))
def test_about_fifty_steps_are_logged_however_long_a_run_is(total):
    logged = [step for step in range(1, total + 1) if is_logged_step(step, total)]
    assert logged[0] == 1 and logged[-1] == total
    assert min(total, 26) <= len(logged) <= 52


def test_pictures_are_made_smaller_and_the_one_that_the_model_sees_stays():
    large, small = Image.new("RGB", (1000, 500), "red"), Image.new("RGB", (8, 9), "red")
    sizes = [Image.open(io.BytesIO(base64.b64decode(png(picture)))).size for picture in (large, small)]
    assert sizes == [(MAX_SIDE, MAX_SIDE // 2), (8, 9)]
    assert large.size == (1000, 500)


@pytest.mark.parametrize(
    ("response", "parsed"),
    [
        (r"<think>\boxed{1}</think><answer> \boxed{2} </answer>", "2"),
        ("<answer>1</answer> no, <answer> 3 cm </answer>", "3 cm"),
        (r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("Answer: 1\n**Answer:** 7 apples\nBye", "7 apples"),
        ("<answer></answer>", ""),
        ("<answer>never closed", None),
        ("no form at all", None),
        ("", None),
    ],
)
def test_the_answer_is_read_where_reward_files_look_for_it(response, parsed):
    assert final_answer(response) == parsed


@pytest.mark.parametrize("part", ("<answer>", "</answer>", r"\boxed{", "answer:", "<answer></answer>"))
def test_a_degenerate_answer_is_read_at_once(part):
    start = time.perf_counter()
    final_answer(part * 50_000)
    assert time.perf_counter() - start < 2
