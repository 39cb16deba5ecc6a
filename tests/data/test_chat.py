"""Prompts become the ids that the model's own files say, pictures at their full length; files are copied unchanged."""

import json

import numpy as np
import pytest
import transformers

from easyr1.data.chat import Chat
from easyr1.errors import ConfigError, DataError
from tests import tiny

PAD = "<|vision_start|>{}<|vision_end|>"


def ids_of(text):
    return tiny.tokenizer().encode(text, add_special_tokens=False)


def picture_of(chat, width=56, height=56, seed=0):
    return chat.media_store().add(tiny.picture(width, height, seed))


def test_a_prompt_is_the_rendered_text_with_every_picture_expanded(vision_chat):
    wide, small = picture_of(vision_chat, 84, 56), picture_of(vision_chat)
    ids, text = vision_chat.encode("<image> and <image>?", [wide, small])
    pad = PAD.format("<|image_pad|>")
    assert text == f"<|im_start|>user\n{pad} and {pad}?<|im_end|>\n<|im_start|>assistant\n"
    expanded = text
    for count in (6, 4):
        expanded = expanded.replace(pad, PAD.format("<|X|>" * count), 1)
    assert ids.tolist() == ids_of(expanded.replace("<|X|>", "<|image_pad|>"))
    assert ids.dtype == np.int64


@pytest.mark.parametrize("fixture", ["text_chat", "vision_chat"])
def test_a_text_prompt_is_the_same_for_text_and_vision_models(request, fixture):
    ids, text = request.getfixturevalue(fixture).encode("What is 3?")
    assert text == "<|im_start|>user\nWhat is 3?<|im_end|>\n<|im_start|>assistant\n"
    assert ids.tolist() == ids_of(text)


def test_a_conversation_keeps_its_turns_and_counts_pictures_in_all_of_them(vision_chat):
    turns = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "<image>What?"},
        {"role": "assistant", "content": "A square."},
        {"role": "user", "content": "And <image>?"},
    ]
    picture = picture_of(vision_chat)
    ids, text = vision_chat.encode(turns, [picture, picture])
    assert text.startswith("<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\n<|vision_start|>")
    assert (ids == tiny.token_id("<|image_pad|>")).sum() == 8
    with pytest.raises(DataError, match="placeholders: 2, pictures: 1"):
        vision_chat.encode(turns, [picture])


def test_texts_around_placeholders_are_kept_to_the_letter(vision_chat):
    (turn,) = vision_chat.messages(" a <image>\n\n<image><image> b ")
    image = {"type": "image"}
    assert turn["content"] == [
        {"type": "text", "text": " a "},
        image,
        {"type": "text", "text": "\n\n"},
        image,
        image,
        {"type": "text", "text": " b "},
    ]


@pytest.mark.parametrize("content", ["<image>", "no placeholder", "<image><image>"])
def test_placeholders_and_pictures_must_be_equally_many(vision_chat, content):
    count = 1 if content == "no placeholder" else 0
    with pytest.raises(DataError, match=r"placeholders: .*, pictures: .*Write one <image>"):
        vision_chat.encode(content, [picture_of(vision_chat)] * count)


@pytest.mark.parametrize("word", ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"])
def test_vision_tokens_written_out_are_refused(vision_chat, text_chat, word):
    with pytest.raises(DataError, match=r"the text contains '<\|v|the text contains '<\|i"):
        vision_chat.encode(f"What is {word}?")
    assert text_chat.encode(f"What is {word}?")  # means nothing to a text model


@pytest.mark.parametrize(
    "content",
    [
        None,
        7,
        "",
        " \n",
        [],
        ["a"],
        [{"role": "user"}],
        [{"role": "robot", "content": "a"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    ],
)
def test_a_prompt_of_another_shape_is_told(text_chat, content):
    with pytest.raises(DataError, match=r"prompt|turn|question"):
        text_chat.encode(content)


def test_decode_reverses_encode_with_and_without_special_tokens(text_chat):
    ids, text = text_chat.encode("3 é 字 times")
    assert text_chat.decode(ids, skip_special_tokens=False) == text
    assert text_chat.decode(ids.tolist()) == "user\n3 é 字 times\nassistant\n"


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_format_prompt_wraps_the_question(vision_folder, tmp_path):
    path = write(tmp_path / "r1.jinja", "\n{{ content | trim }}\nThink first: {<think>}.\n\n")
    chat = Chat.load(str(vision_folder), format_prompt=path)
    assert chat.render(" What? ").startswith("<|im_start|>user\nWhat?\nThink first: {<think>}.<|im_end|>")
    turns = [{"role": "system", "content": "S"}, {"role": "user", "content": "<image>What?"}]
    _, text = chat.encode(turns, [picture_of(chat)])
    assert "system\nS<|im_end|>" in text
    assert "<|vision_end|>What?\nThink first" in text


def test_a_question_with_braces_is_not_a_template(text_folder, tmp_path):
    chat = Chat.load(str(text_folder), format_prompt=write(tmp_path / "f.jinja", "Q: {{ content }}"))
    assert "Q: {{ 7 * 7 }}<|im_end|>" in chat.render("{{ 7 * 7 }}")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ content }} {{ question }}", "uses question, but only `content`"),
        ("Answer!", "never uses"),
        ("{{ content", "no Jinja template"),
        ("{{ content.__class__.__mro__ }}", "unsafe"),
        ("{{ content + 1 }}", "cannot be rendered"),
    ],
)
def test_a_format_prompt_of_no_use_is_told(text_folder, tmp_path, source, expected):
    path = write(tmp_path / "bad.jinja", source)
    with pytest.raises(ConfigError, match=f"data.format_prompt: .*bad.jinja.*{expected}"):
        Chat.load(str(text_folder), format_prompt=path).render("a")


@pytest.mark.parametrize("key", ["format_prompt", "override_chat_template"])
def test_a_missing_template_stops_the_run(text_folder, tmp_path, key):
    with pytest.raises(ConfigError, match=f"data.{key}: .*does not exist"):
        Chat.load(str(text_folder), **{key: str(tmp_path / "nosuch.jinja")})
    with pytest.raises(ConfigError, match=f"data.{key}: .*not a text file"):
        Chat.load(str(text_folder), **{key: str(tmp_path)})


PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}\n"


def test_an_overriding_chat_template_is_used_and_saved_with_the_model(text_folder, tmp_path):
    chat = Chat.load(str(text_folder), override_chat_template=write(tmp_path / "plain.jinja", PLAIN))
    assert chat.encode("What?")[1] == "What?"
    chat.copy_files(tmp_path / "saved")
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert saved.chat_template == PLAIN


def test_a_template_that_cannot_show_pictures_is_told(vision_folder, tmp_path):
    for number, source in enumerate(["{{ messages[0]['content'] + '!' }}", "no placeholder"]):
        path = write(tmp_path / f"{number}.jinja", source)
        chat = Chat.load(str(vision_folder), override_chat_template=path)
        with pytest.raises(DataError, match="chat template"):
            chat.encode("<image>a", [picture_of(chat)])


ITEMS_ONLY = (
    "{% for m in messages %}{% for c in m['content'] | selectattr('type', 'equalto', 'image') %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% endfor %}{% for c in m['content'] | selectattr('type', 'equalto', "
    "'text') %}{{ c['text'] }}{% endfor %}{% endfor %}"
)


def test_a_template_that_takes_items_alone_gets_them_for_text_too(vision_folder, tmp_path):
    """LLaVA's and SmolVLM's kind: plain text would vanish without a word."""
    chat = Chat.load(str(vision_folder), override_chat_template=write(tmp_path / "items.jinja", ITEMS_ONLY))
    assert chat.render("What is 3?") == "What is 3?"
    assert chat.encode("a<image>b", [picture_of(chat)])[1] == PAD.format("<|image_pad|>") + "ab"


def test_a_template_that_leaves_the_question_out_is_told(text_folder, tmp_path):
    path = write(tmp_path / "deaf.jinja", "{% if messages | length == 1 %}Which digit is shown?{% endif %}")
    chat = Chat.load(str(text_folder), override_chat_template=path)
    with pytest.raises(DataError, match=r"the chat template leaves 'What is 3\?' out"):
        chat.encode("What is 3?")


def test_copied_files_are_the_models_own_and_load_the_same(vision_folder, vision_chat, tmp_path):
    (vision_folder / "modeling_own.py").write_text("raise RuntimeError")
    written = vision_chat.copy_files(tmp_path / "saved")
    (vision_folder / "modeling_own.py").unlink()
    names = {path.name for path in written}
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= names
    assert {"preprocessor_config.json", "generation_config.json"} <= names
    assert not names & {"config.json", "model.safetensors", "modeling_own.py"}
    for path in written:
        assert path.read_bytes() == (vision_folder / path.name).read_bytes()
    (tmp_path / "saved" / "config.json").write_bytes((vision_folder / "config.json").read_bytes())
    picture = picture_of(vision_chat)
    assert Chat.load(str(tmp_path / "saved")).encode("<image>a", [picture])[1] == vision_chat.render("<image>a")


def test_tokenizer_path_decides_for_ids_template_and_saved_files(vision_folder, tmp_path):
    other = tmp_path / "other"
    tiny.tokenizer().save_pretrained(other)
    (other / "chat_template.jinja").write_text("other:" + tiny.CHAT_TEMPLATE)
    settings = json.loads((other / "tokenizer_config.json").read_text()) | {"model_max_length": 77}
    (other / "tokenizer_config.json").write_text(json.dumps(settings))
    chat = Chat.load(str(vision_folder), tokenizer_path=str(other))
    assert chat.render("a").startswith("other:")
    assert chat.sees  # the image processor still comes from the model
    chat.copy_files(tmp_path / "saved")
    assert (tmp_path / "saved" / "chat_template.jinja").read_text().startswith("other:")
    assert (tmp_path / "saved" / "preprocessor_config.json").is_file()
    assert json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text()) == settings


def test_a_tokenizer_of_another_model_is_told(vision_folder, tmp_path):
    tiny.tokenizer(vocab_size=300).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"tokenizer_path: .* no special token \d+, the model's image_token_id"):
        Chat.load(str(vision_folder), tokenizer_path=str(tmp_path))


def test_the_template_of_an_older_processor_file_is_found(text_folder, tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((text_folder / name).read_bytes())
    with pytest.raises(ConfigError, match=r"override_chat_template: .*has no chat template"):
        Chat.load(str(tmp_path))
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": PLAIN}))
    assert Chat.load(str(tmp_path)).render("What?") == "What?"


@pytest.mark.parametrize("path", ["/nosuch", "./nosuch", "nosuch-org/nosuch-name"])
def test_a_missing_model_is_told(path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"worker.actor.model.model_path: .*nosuch"):
        Chat.load(path)


def test_loading_a_vision_model_is_quiet_without_torchvision(vision_folder, caplog):
    transformers.logging.enable_propagation()
    try:
        chat = Chat.load(str(vision_folder))
    finally:
        transformers.logging.disable_propagation()
    assert type(chat.image_processor).__name__ == "Qwen2VLImageProcessorPil"
    assert not caplog.records
