"""`easyr1 check`: what a run would meet is told before it starts, without weights and without a trace."""

import io
import json
import subprocess
import sys

import pytest
import runs
import tiny
from commands import ROOT, run
from rich.console import Console

from easyr1.cli.check import Findings, check, known_facts, tell
from easyr1.config.load import load
from easyr1.tracking.progress import Progress

MATCH = "def compute_score(inputs):\n    return [{'overall': float(%s)} for one in inputs]\n"
RIGHT = "one['ground_truth'] in one['response']"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("check")


def checked(arguments, deep=False):
    """Exit status and output of a check of these arguments."""
    out = io.StringIO()
    console = Console(file=out, width=200, highlight=False)
    config, given = load(arguments)
    found = Findings()
    facts = known_facts(config, given, found)
    check(config, given, facts, deep, found, Progress(Console(quiet=True)), console)
    return tell(found, console), out.getvalue()


def arguments_with(folder, reward, kind="qwen2", template=None, **settings):
    """Arguments of a run with this reward file and this text of a format prompt."""
    arguments = runs.arguments(folder, kind, **settings)
    (folder / "reward.py").write_text(reward)
    if template is not None:
        (folder / "format.jinja").write_text(template)
        arguments.append(f"data.format_prompt={folder / 'format.jinja'}")
    return arguments


def table(shown, title):
    """The cells of the rows of a table, without its head."""
    lines = shown.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(title)) + 2
    return [line.split() for line in lines[start : lines.index("", start)]]


def test_a_sound_command_line_passes_and_leaves_nothing(tmp_path):
    arguments = arguments_with(tmp_path, MATCH % RIGHT, template="{{ content }} Answer in \\boxed{}.")
    (tmp_path / "qwen2/model.safetensors").write_bytes(b"no weights are loaded")
    before = sorted(tmp_path.rglob("*"))
    shown = run("easyr1.cli.main", "check", *arguments, folder=tmp_path)
    assert "checked: it would run" in shown and "look at this" not in shown
    assert shown.count("prompt: row ") == 3 and "Answer in \\boxed{}.<|im_end|>" in shown
    assert "12 (4 prompts x 3 answers)" in shown  # the batch table
    assert "8     8     0" in shown  # rows, kept, dropped
    left = [path for path in sorted(tmp_path.rglob("*")) if path not in before and "__pycache__" not in str(path)]
    assert left == []


def test_the_result_for_programs_is_one_object(tmp_path):
    arguments = arguments_with(tmp_path, MATCH % "1 / 0", trainer__console="json")
    command = [sys.executable, "-m", "easyr1.cli.main", "check", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["kind"], found["would_run"], found["configuration"]) == ("check", False, [])
    assert "ZeroDivisionError" in found["failures"][0] and "would fail" not in done.stdout


def test_what_is_dropped_is_told_by_source_and_what_would_keep_it(folder):
    rows = tiny.text_rows(6)
    for number in (1, 4):
        rows[number]["problem"] += " and more" * 40
    data = tiny.write_rows(folder / "long.jsonl", rows)
    files = f"[{folder / 'rows8.jsonl'},{data}]"
    status, shown = checked(
        arguments_with(folder, MATCH % RIGHT, data__train_files=files, data__max_prompt_length=100)
    )
    assert status == 0
    (first, second, _) = table(shown, "rows")
    assert first[2:5] == ["8", "8", "0"] and second[2:5] == ["6", "4", "2"]
    assert " ".join(second[5:]) == "over data.max_prompt_length=100"
    changes = {int(cells[1]): int(cells[-2]) for cells in table(shown, "what max_prompt_length would change")[:4]}
    assert changes[100] == 12 and max(changes.values()) == 14  # and at which length


def test_pictures_are_counted_apart_and_under_other_limits(folder):
    status, shown = checked(arguments_with(folder, MATCH % RIGHT, "qwen2_5_vl", rows=9, data__max_pixels=12544))
    assert status == 0
    text, pictures, whole = (cells for cells in table(shown, "lengths of all rows")[:3])
    assert [cells[1] for cells in (text, pictures, whole)] == ["text", "pictures", "whole"]
    assert int(whole[-1]) <= int(text[-1]) + int(pictures[-1]) and int(pictures[-1]) == 8
    now, half, double, *_ = table(shown, "what min_pixels and max_pixels would change")
    assert [cells[2] for cells in (now, half, double)] == ["12544", "6272", "25088"]
    for cells, pixels in ((half, 6272), (double, 25088)):
        _, other = checked(arguments_with(folder, MATCH % RIGHT, "qwen2_5_vl", rows=9, data__max_pixels=pixels))
        (longest,) = (row[-1] for row in table(other, "lengths of all rows")[2:3])
        assert longest == cells[4]  # what a run with that limit finds


def test_a_reward_that_never_finds_the_answer_fails_the_check(folder):
    reward = MATCH % "'<final>' + one['ground_truth'] + '</final>' in one['response']"
    status, shown = checked(arguments_with(folder, reward, template="{{ content }} Use <answer> </answer>."))
    assert status == 1 and "would fail because" in shown and "do not fit together" in shown
    assert "<answer>…</answer>" in shown and "(empty)" in shown  # the table that shows why
    status, shown = checked(arguments_with(folder, reward, template="{{ content }} Use <final> </final>."))
    assert status == 0 and "<final>…</final>" in shown and "look at this" not in shown


@pytest.mark.parametrize(
    ("reward", "doubt"),
    [
        (MATCH % "len(one['response']) > 0", "a wrong answer scores as much as the right one"),
        (MATCH % "'\\\\boxed{' + one['ground_truth'] in one['response']", "is not what the prompt asks for"),
    ],
)
def test_what_looks_wrong_is_told_but_does_not_fail(folder, reward, doubt):
    status, shown = checked(arguments_with(folder, reward))
    assert status == 0 and "look at this" in shown and doubt in shown


def test_a_reward_that_breaks_fails_the_check(folder):
    status, shown = checked(arguments_with(folder, MATCH % "one['response'][0] == '8'"))  # an empty answer has none
    assert status == 1 and "would fail because" in shown and "IndexError" in shown and "row 0" in shown
    assert "what would run" in shown  # the rest is told all the same
    slow = "import time\ndef compute_score(inputs):\n    time.sleep(60)\n"
    status, shown = checked(arguments_with(folder, slow, worker__reward__timeout_s=0.5))
    assert status == 1 and "worker.reward.timeout_s" in shown


@pytest.mark.parametrize("name", ["math", "r1v", "dapo"])
def test_the_shipped_templates_and_rewards_fit(folder, name):
    settings = {
        "data__format_prompt": f"./examples/format_prompt/{name}.jinja",
        "data__max_prompt_length": 512,
        "worker__reward__reward_function": f"./examples/reward_function/{name}.py:compute_score",
    }
    if name == "dapo":
        lengths = "{max_response_length: 12, overlong_buffer_length: 4, overlong_penalty_factor: 1.0}"
        settings["worker__reward__reward_function_kwargs"] = lengths
    status, shown = checked(runs.arguments(folder, **settings))
    assert status == 0 and "look at this" not in shown, shown


def test_too_few_rows_and_a_missing_machine_are_told_with_all_else(folder):
    sizes = {"data__rollout_batch_size": 16, "worker__actor__global_batch_size": 16}
    status, shown = checked(arguments_with(folder, MATCH % RIGHT, **sizes))
    assert status == 2 and "would fail because data.rollout_batch_size: 16 prompts per step" in shown
    assert "reward on row 0" in shown and "what would run" in shown
    many = {"trainer__n_gpus_per_node": 2, "trainer__device": "cuda"}
    status, shown = checked(arguments_with(folder, MATCH % RIGHT, **many))
    assert status == 2 and "would fail because" in shown and "reward on row 0" in shown


def test_mistakes_end_as_in_training(tmp_path):
    shown = run("easyr1.cli.main", "check", "data.max_prompt_lenght=10", folder=tmp_path, status=2)
    assert "data.max_prompt_length" in shown and "Traceback" not in shown
    assert "--deep" in run("easyr1.cli.main", "check", "--help", folder=tmp_path)


def test_deep_decodes_every_picture(folder, tmp_path):
    data = tiny.write_rows(tmp_path / "rows.jsonl", tiny.vision_rows(6))
    broken = tmp_path / "rows_images/3-0.png"
    data_bytes = bytearray(broken.read_bytes())
    data_bytes[len(data_bytes) // 2 :: 7] = bytes(len(data_bytes[len(data_bytes) // 2 :: 7]))
    broken.write_bytes(data_bytes[:-12] + broken.read_bytes()[-12:])  # head and end are sound
    arguments = arguments_with(folder, MATCH % RIGHT, "qwen2_5_vl", rows=9, data__train_files=data)
    status, shown = checked(arguments)
    assert status == 0
    status, shown = checked(arguments, deep=True)
    assert status == 1 and "broken: 1" in shown and "row 3" in shown and "3-0.png" in shown


@pytest.mark.parametrize(
    ("settings", "told"),
    (
        (
            {"algorithm__online_filtering": "true", "algorithm__filter_key": "accurate"},
            "algorithm.filter_key: 'accurate'",
        ),
        ({"trainer__save_checkpoint_path": "rows8.jsonl/run"}, "trainer.save_checkpoint_path"),
    ),
    ids=("filter key", "run folder"),
)
def test_what_would_stop_the_first_step_is_told(folder, settings, told):
    settings = {key: folder / value if "path" in key else value for key, value in settings.items()}
    status, shown = checked(arguments_with(folder, MATCH % RIGHT, **settings))
    assert status == 2 and told in shown


def test_a_model_without_weights_is_told(tmp_path):
    arguments = arguments_with(tmp_path, MATCH % RIGHT)
    (tmp_path / "qwen2/model.safetensors").unlink()
    status, shown = checked(arguments)
    assert status == 2 and "holds no weights" in shown


def test_a_reward_that_fails_on_validation_rows_fails_the_check(folder):
    rows = tiny.text_rows(4)
    for row in rows:
        row["answer"] = "north"
    data = tiny.write_rows(folder / "words.jsonl", rows)
    status, shown = checked(arguments_with(folder, MATCH % "float(one['ground_truth'])", data__val_files=data))
    assert status == 1 and "words.jsonl" in shown


def test_broken_pictures_that_a_run_would_leave_out_are_told_only(tmp_path):
    arguments = arguments_with(tmp_path, MATCH % RIGHT, "qwen2_5_vl")
    picture = tmp_path / "rows8_images" / "0-0.png"
    data = picture.read_bytes()
    place = data.index(b"IDAT") + 20
    picture.write_bytes(data[:place] + bytes(40) + data[place + 40 :])
    status, shown = checked(arguments, deep=True)
    assert status == 1 and "cannot be decoded" in shown
    status, shown = checked([*arguments, "data.on_bad_media=skip"], deep=True)
    assert status == 0 and "look at this" in shown and "cannot be decoded" in shown


def test_limits_that_are_only_tried_fail_no_good_run(tmp_path):
    """Half of data.max_pixels is below what the processor itself asks for, which stops nobody's run."""
    arguments = arguments_with(tmp_path, MATCH % RIGHT, "qwen2_5_vl", data__min_pixels="null", data__max_pixels=4000)
    status, shown = checked(arguments)
    assert status == 0 and "what min_pixels and max_pixels would change" in shown
