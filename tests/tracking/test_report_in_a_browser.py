"""The report in a real headless Chromium: curves are drawn, filters work, nothing is fetched, nothing fails."""

import json
import math
import os

import pytest
from browser import Chromium, find_chromium
from test_report import hostile, png, put

from easyr1.tracking.report import write_report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium here; `apt-get install chromium` brings one"),
]

SIZES = [(390, False), (390, True), (900, False), (1600, True)]
CARDS = "[...document.querySelectorAll('.card')]"
CHIPS = "[...document.querySelectorAll('.answer')].map((one) => one.querySelector('.chip')?.textContent)"
# of each curve's canvas, the share of pixels that are painted
PAINTED = """[...document.querySelectorAll('.plot canvas')].map((canvas) => {
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let painted = 0;
  for (let at = 3; at < pixels.length; at += 4) painted += pixels[at] > 0;
  return painted / (pixels.length / 4);
})"""


@pytest.fixture(scope="module")
def browser():
    program = find_chromium()
    assert program is not None
    tab = Chromium(program)
    yield tab
    tab.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A run of 60 steps with validations of three questions and training groups of four answers."""
    folder = tmp_path_factory.mktemp("run")
    metrics = [
        {
            "step": step,
            "reward/overall": 1 - math.exp(-step / 20),
            "reward/format": 1 - math.exp(-step / 5),
            "actor/grad_norm": 1 + step % 3,
            "timing_s/gen": 1.0,
            "timing_s/step": 2.0,
        }
        for step in range(1, 61)
    ]
    metrics += [
        {"step": step, "val/accuracy_reward": step / 100, "val/format_reward": min(1, 0.5 + step / 40)}
        for step in range(0, 61, 10)
    ]
    put(folder, "metrics.jsonl", *metrics)
    rows = [
        {
            "step": step,
            "split": "val",
            "row": row,
            "source": "val.parquet",
            "prompt": f"Question {row}",
            "response": f"At {step} to {row}",
            "ground_truth": "4",
            "parsed": str(row),
            "scores": {"overall": float(row * 20 <= step), "accuracy": float(row * 20 <= step)},
            "truncated": row == 4 and step > 0,
            **({"images": [png(row + 8, 8)]} if step == 0 else {}),
        }
        for step in (0, 20, 60)
        for row in (1, 2, 4)
    ]
    rows += [
        {
            "step": step,
            "split": "train",
            "row": 7,
            "group": f"0-{step}-0",
            "prompt": "Trained",
            "response": f"answer {answer}",
            "ground_truth": "5",
            "scores": {"overall": float(answer == 0)},
            "advantage": 1.5 if answer == 0 else -0.5,
            "truncated": answer == 3 and step > 1,
        }
        for step in (1, 30, 60)
        for answer in range(4)
    ]
    put(folder, "generations.jsonl", *rows)
    return write_report(folder)


def texts(browser, selector):
    return browser.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.innerText)")


def legend(browser, panel):
    """Names and values under a curve."""
    rows = f"[...document.querySelectorAll('.plot')[{panel}].querySelectorAll('.u-legend tr')]"
    return dict(browser.run(f"{rows}.map((row) => [...row.children].map((cell) => cell.innerText))"))


def click(browser, value):
    browser.run(f"document.querySelector('.controls [data-value=\"{value}\"]').click()")


def choose(browser, label, step):
    box = f"document.querySelector('.controls select[data-value={label}]')"
    browser.run(f"{box}.value = {json.dumps(str(step))}; {box}.dispatchEvent(new Event('change'))")


def is_quiet(browser, path):
    assert browser.errors == []
    assert browser.requests == [path.as_uri()]
    return True


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_curves_are_drawn_at_every_width_light_and_dark(browser, page, width, dark):
    browser.open(page, width, dark=dark)
    painted = browser.run(PAINTED)
    assert len(painted) == 4
    assert all(0.005 < share < 0.5 for share in painted)
    assert browser.run("document.documentElement.scrollWidth") <= width  # nothing to scroll sideways
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(21, 24, 27)") is dark
    assert legend(browser, 0) == {"step": "60", "accuracy": "0.6", "format": "1"}
    if shots := os.environ.get("EASYR1_SCREENSHOTS"):  # a folder, for those who want to look
        browser.screenshot(f"{shots}/{width}-{'dark' if dark else 'light'}.png")
    assert is_quiet(browser, page)


def test_a_page_turns_dark_with_its_reader_and_draws_its_curves_anew(browser, page):
    colour = "getComputedStyle(document.querySelector('.u-legend .u-series:nth-child(2) .u-marker')).backgroundColor"
    browser.open(page)
    assert browser.run(colour) == "rgb(47, 102, 176)"
    browser.look(dark=True)
    browser.wait(f"{colour} === 'rgb(116, 174, 242)'")
    assert len(browser.run(PAINTED)) == 4


def test_arrow_keys_read_the_values_of_all_curves_at_a_step(browser, page):
    browser.open(page)
    browser.run("document.querySelectorAll('.plot')[1].focus()")
    browser.press("Home")
    browser.press("ArrowRight")
    assert legend(browser, 1) == {"step": "2", "format": "0.33", "overall": "0.0952"}
    assert legend(browser, 2)["step"] == "2"
    browser.press("End")
    assert legend(browser, 1)["step"] == "60"


def test_validation_answers_stand_beside_each_other_and_filters_go_by_the_later_one(browser, page):
    browser.open(page)
    assert texts(browser, ".answer b")[:2] == ["Step 0", "Step 60"]
    assert texts(browser, ".answer pre")[:2] == ["At 0 to 1", "At 60 to 1"]
    assert texts(browser, ".count") == ["3 of 3 questions"]
    click(browser, "right")
    assert texts(browser, ".count") == ["2 of 3 questions"]
    assert browser.run(CHIPS) == ["wrong", "right"] * 2
    click(browser, "truncated")
    assert texts(browser, ".card .truth + *, .asked pre") == ["Question 4"]
    choose(browser, "beside", 20)
    click(browser, "wrong")
    assert texts(browser, ".asked pre") == ["Question 2", "Question 4"]
    assert texts(browser, ".answer b")[:2] == ["Step 0", "Step 20"]
    assert is_quiet(browser, page)


def test_training_groups_show_all_answers_with_rewards_and_advantages(browser, page):
    browser.open(page)
    click(browser, "train")
    assert texts(browser, ".card > p") == ["Step 60 · row 7 · group 0-60-0 · all 4 answers"]
    chips = texts(browser, ".answer:first-child .chip")
    assert chips == ["right", "overall 1", "advantage +1.5"]
    assert browser.run(CHIPS) == ["right", "wrong", "wrong", "wrong"]
    choose(browser, "step", "all")
    assert texts(browser, ".count") == ["3 of 3 groups"]
    click(browser, "truncated")
    assert texts(browser, ".count") == ["2 of 3 groups"]
    assert texts(browser, ".answer b") == ["#4"] * 2
    assert texts(browser, ".card > p")[0].endswith("1 of 4 answers")
    click(browser, "val")
    assert texts(browser, ".count") == ["1 of 3 questions"]


def test_pictures_are_shown(browser, page):
    browser.open(page)
    browser.run("document.getElementById('answers').scrollIntoView()")
    browser.wait("[...document.images].length === 3 && [...document.images].every((one) => one.naturalWidth > 0)")
    assert browser.run("[...document.images].map((one) => one.naturalWidth)") == [9, 10, 12]
    assert browser.run("document.images[0].alt") == "9 x 8 pixels"


def test_hostile_texts_are_shown_and_never_run(browser, tmp_path):
    hostile(tmp_path)
    path = write_report(tmp_path)
    browser.open(path)
    assert browser.run("window.alert.toString().includes('native')")
    assert browser.run("document.documentElement.dataset.ready") == "yes"
    assert "<script>alert(1)</script>" in browser.run("document.getElementById('answers').innerText")
    assert browser.run("document.querySelectorAll('[onerror], main script').length") == 0
    assert is_quiet(browser, path)


def test_a_script_that_is_not_the_pages_own_does_not_run(browser, page, tmp_path):
    changed = tmp_path / "report.html"
    changed.write_text(page.read_text().replace("</main>", "<script>window.ran = true</script></main>"))
    browser.open(changed)
    assert browser.run("window.ran === undefined && document.documentElement.dataset.ready === 'yes'")
    assert len(browser.errors) == 1  # the policy says so on the console


@pytest.mark.parametrize("rows", ([], [{"step": 0, "val/reward_score": 0.5}], [{"step": 1, "actor/loss": 1.0}]))
def test_a_run_with_next_to_nothing_makes_a_page_without_errors(browser, tmp_path, rows):
    put(tmp_path, "metrics.jsonl", *rows)
    path = write_report(tmp_path)
    browser.open(path)
    assert browser.run("document.documentElement.dataset.ready") == "yes"
    assert is_quiet(browser, path)
