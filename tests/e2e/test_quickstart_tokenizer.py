"""The tokenizer of the quickstart's model: any text, Qwen's tokens, the tags as text."""

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from easyr1.examples.quickstart.model import model_config, save_files
from easyr1.examples.quickstart.tokenizer import SPECIAL_TOKENS, TAGS, VOCAB_SIZE, build_tokenizer

ROOT = Path(__file__).parents[2]
ANSWER = "<think>I see 3 and 8.</think><answer>8</answer>"
TEXTS = (
    ANSWER,
    " < think >  two  spaces\n\nand\ttabs\r\n",
    "Find $\\frac{\\sqrt{3}}{2} \\cdot 12^\\circ$, if ∠ABC ≅ ∠DEF and π ≈ 3.14159.",
    "naïve Größe 图像里有几个圆? الصورة 🙂👩‍🔬",
    "x" * 300 + "0123456789" * 3,
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """The tokenizer as a run sees it: saved, and loaded by transformers' own rules for Qwen2.5-VL."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = build_tokenizer()
    save_files(folder, tokenizer, model_config(tokenizer))
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_comes_back(loaded, text):
    ids = loaded.encode(text, add_special_tokens=False)
    assert loaded.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) == text
    assert ids == build_tokenizer().encode(text)
    assert max(ids) < VOCAB_SIZE == len(loaded)


def test_an_answer_is_short_and_its_tags_are_one_token_each(loaded):
    assert len(loaded.encode(ANSWER)) == 13
    for tag in (*TAGS, *SPECIAL_TOKENS):
        assert loaded.encode(tag) == [loaded.convert_tokens_to_ids(tag)]
    assert loaded.decode(loaded.encode("".join(TAGS) + "<|im_end|>"), skip_special_tokens=True) == "".join(TAGS)


def test_the_chat_template_marks_turns_and_pictures(loaded):
    content = [{"type": "image"}, {"type": "text", "text": "Which digit is this?"}]
    text = loaded.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Which digit is this?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert loaded.eos_token == "<|im_end|>"


def test_another_process_makes_the_same_tokens():
    code = (
        "from easyr1.examples.quickstart.tokenizer import build_tokenizer\n"
        "import sys; sys.stdout.write(build_tokenizer().backend_tokenizer.to_str())"
    )
    made = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert made.stdout == build_tokenizer().backend_tokenizer.to_str()
