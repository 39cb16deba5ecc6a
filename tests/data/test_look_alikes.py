"""Small sets with the columns and forms of those that the tutorials use: prompts are made, and a step is trained."""

import json

import datasets
import numpy as np
import pytest
import runs
import tiny

from easyr1.data.dataset import Limits, load_prompts

TEXT = datasets.Value("string")
PICTURES = datasets.List(datasets.Image())
GEOQA = "如图，在平行四边形 ABCD 中，对角线 AC、BD 相交于点 O，图中阴影部分的面积是多少？（单位：cm²） <image>"


def math12k():
    """hiyouga/math12k: text with LaTeX, answers as LaTeX."""
    rows = [
        {"problem": "How many vertical asymptotes does $y=\\frac{2}{x^2+x-6}$ have?", "answer": "2"},
        {"problem": "What is the sum of\n\\[\\frac{1}{7}+\\frac{2}{7}?\\]", "answer": "\\frac{3}{7}"},
        {"problem": "Find the interval in which $x < 0$.", "answer": "(-\\infty,0)"},
        {"problem": "Evaluate $1 < 2 > 0$ & 5\\%.", "answer": "\\text{true}"},
    ]
    return rows, {"problem": TEXT, "answer": TEXT}


def geometry3k():
    """hiyouga/geometry3k: a list of one picture, its mark in front of a short question."""
    rows = [
        {"images": [tiny.picture(84 + 14 * n, 56, seed=n)], "problem": f"<image>Find $x_{n}$.", "answer": answer}
        for n, answer in enumerate(["40", "5 \\sqrt { 3 }", "12.5", "\\frac { 9 } { 2 }"])
    ]
    return rows, {"images": PICTURES, "problem": TEXT, "answer": TEXT}


def journeybench():
    """hiyouga/journeybench-multi-image-vqa: several pictures, their number differs, marks inside the text."""
    rows = [
        {
            "images": [tiny.picture(56, 56 + 28 * place, seed=10 * n + place) for place in range(count)],
            "problem": " ".join(f"Image #{place + 1}: <image>" for place in range(count)) + " Which ones are alike?",
            "answer": answer,
        }
        for n, (count, answer) in enumerate([(2, "the two cats"), (3, "1 and 3"), (5, "none"), (2, "Both.")])
    ]
    return rows, {"images": PICTURES, "problem": TEXT, "answer": TEXT}


def mixed():
    """hiyouga/rl-mixed-dataset: rows with and without pictures in one table."""
    (text, _), (pictures, features) = math12k(), geometry3k()
    rows = [pictures[0], {"images": [], **text[0]}, pictures[1], {"images": None, **text[1]}]
    return rows, features


def geoqa():
    """leonardPKU/GEOQA_8K_R1V: Chinese, the mark behind the question, a unit in it, numbers as answers."""
    answers = ["12", "12cm²", "110°", "√3"]
    rows = [
        {"images": [tiny.picture(70, 70, seed=n)], "problem": GEOQA, "answer": answer}
        for n, answer in enumerate(answers)
    ]
    return rows, {"images": PICTURES, "problem": TEXT, "answer": TEXT}


SHAPES = {"math12k": math12k, "geometry3k": geometry3k, "journeybench": journeybench, "mixed": mixed, "geoqa": geoqa}
NUM_PICTURES = {
    "math12k": [0, 0, 0, 0],
    "geometry3k": [1, 1, 1, 1],
    "journeybench": [2, 3, 5, 2],
    "mixed": [1, 0, 1, 0],
    "geoqa": [1, 1, 1, 1],
}


def write(folder, name):
    """The set as the hub has it: a parquet file for the split test, with pictures as bytes in an Image feature."""
    rows, features = SHAPES[name]()
    (folder / "data").mkdir(exist_ok=True)
    table = datasets.Dataset.from_list(rows, features=datasets.Features(features))
    table.to_parquet(str(folder / "data/test-00000-of-00001.parquet"))
    return rows, f"{folder}@test"


@pytest.mark.parametrize("name", SHAPES)
def test_the_rows_become_prompts(tmp_path, vision_chat, name):
    rows, spec = write(tmp_path, name)
    media = vision_chat.media_store(tiny.MIN_PIXELS, tiny.MAX_PIXELS)
    prompts = load_prompts(spec, vision_chat, media, Limits(512))
    assert [len(prompt.media) for prompt in prompts] == NUM_PICTURES[name]
    for prompt, row in zip(prompts, rows, strict=True):
        assert prompt.ground_truth == row["answer"]
        expected = row["problem"].replace("<image>", "<|vision_start|><|image_pad|><|vision_end|>")
        assert prompt.text == f"<|im_start|>user\n{expected}<|im_end|>\n<|im_start|>assistant\n"
        shown = vision_chat.tokenizer.decode(prompt.ids[prompt.ids != tiny.token_id("<|image_pad|>")])
        assert shown == prompt.text.replace("<|image_pad|>", "")
        tokens = sum(media.num_tokens(handle) for handle in prompt.media)
        assert np.sum(prompt.ids == tiny.token_id("<|image_pad|>")) == tokens
        sizes = [picture.size for picture in row.get("images") or []]
        assert prompt.columns.get("image_sizes", []) == sizes


@pytest.mark.parametrize("name", SHAPES)
def test_a_step_is_trained_on_them(tmp_path, name):
    rows, spec = write(tmp_path, name)
    arguments = runs.arguments(
        tmp_path,
        "qwen2_5_vl" if name != "math12k" else "qwen2",
        data__train_files=spec,
        data__val_files=spec,
        data__max_prompt_length=512,
        worker__actor__global_batch_size=4,
        trainer__max_steps=1,
    )
    (tmp_path / "reward.py").write_text(
        "import json\n"
        "def compute_score(inputs):\n"
        f"    with open({str(tmp_path / 'seen.json')!r}, 'w') as file:\n"
        "        json.dump([one['ground_truth'] for one in inputs], file)\n"
        "    return [{'overall': len(one['response']) % 7 / 7} for one in inputs]\n"
    )
    before = {}
    trainer, found = runs.run(arguments, lambda trainer: before.update(weights_of(trainer)))
    after = weights_of(trainer)
    assert np.isfinite(found["val/reward_score"])
    assert json.loads((tmp_path / "seen.json").read_text()) == [row["answer"] for row in rows]
    moved = {key for key in before if not np.array_equal(before[key], after[key])}
    assert "text" in moved and ("vision" in moved) == (name != "math12k")


def weights_of(trainer):
    """A weight of the text model, and one of the vision tower if there is one."""
    named = dict(runs.engine(trainer).scored.model.named_parameters())
    text = next(name for name in named if name.endswith("mlp.up_proj.weight") and "visual" not in name)
    vision = next((name for name in named if "visual" in name), None)
    found = {"text": text} | ({} if vision is None else {"vision": vision})
    return {key: named[name].detach().numpy().copy() for key, name in found.items()}
