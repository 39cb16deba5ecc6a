"""One picture through the processor of any family; tests/models/test_families.py compares them with their own."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import transformers
from tokenizers.processors import TemplateProcessing

from easyr1.data.chat import Chat
from easyr1.data.processor import FamilyReader, family_processor, image_token_id, picture_keys
from easyr1.errors import ConfigError, DataError
from tests import tiny
from tests.families import FAMILIES
from tests.family_scenes import world


def processor(name, **saved):
    family = FAMILIES[name]
    assert family.image_processor is not None
    return family_processor(
        family.config(family.tokenizer), family.processor | saved, family.image_processor(), family.tokenizer
    )


def test_text_that_a_family_writes_around_a_picture_stays_text():
    measured = FamilyReader(processor("gemma3")).measure(50, 40)
    words = FAMILIES["gemma3"].tokenizer.convert_ids_to_tokens(measured.ids.tolist())
    assert (measured.before, measured.after) == ("\n\n", "\n\n")
    assert words == ["<start_of_image>", *["<image_soft_token>"] * 4, "<end_of_image>"]


def test_rows_and_tiles_have_their_marks():
    words = FAMILIES["pixtral"].tokenizer.convert_ids_to_tokens
    row = ["[IMG]"] * 4
    ids = FamilyReader(processor("pixtral")).measure(56, 28).ids
    assert words(ids.tolist()) == [*row, "[IMG_BREAK]", *row, "[IMG_END]"]
    words = FAMILIES["idefics3"].tokenizer.convert_ids_to_tokens
    found = words(FamilyReader(processor("idefics3")).measure(90, 70).ids.tolist())
    assert [word for word in found if word.startswith("<row")] == [
        f"<row_{r}_col_{c}>" for r in (1, 2) for c in (1, 2)
    ]


def test_pixel_limits_come_before_the_familys_own_size():
    reader = FamilyReader(processor("pixtral"), min_pixels=3000, max_pixels=6400)
    assert reader.measure(400, 100).fitted == (160, 40)
    assert reader.measure(30, 30).fitted == (55, 55)
    assert reader.measure(70, 50).fitted == (70, 50)
    assert reader.resize(tiny.picture(400, 100), (160, 40)).size == (160, 40)
    with pytest.raises(ConfigError, match=r"data.min_pixels: 9 is above data.max_pixels, 8"):
        FamilyReader(processor("pixtral"), min_pixels=9, max_pixels=8)


def test_what_decides_about_a_picture_is_in_its_rule():
    rules = [
        FamilyReader(processor("internvl")).rule,
        FamilyReader(processor("internvl", image_seq_length=8)).rule,
        FamilyReader(processor("internvl"), max_pixels=100).rule,
    ]
    assert len(set(rules)) == 3
    assert FamilyReader(processor("internvl")).rule == rules[0]


def test_a_size_is_measured_once_and_by_many_threads_alike():
    reader = FamilyReader(processor("smolvlm"))
    start = threading.Barrier(4)

    def measure(_):
        start.wait()
        return reader.measure(90, 70).ids.tolist()

    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(measure, range(4))
    assert all(other == first for other in others)
    assert reader.measure(90, 70) is reader.measure(90, 70)


def test_a_family_without_a_processor_and_a_tokenizer_without_its_tokens_are_refused():
    family = FAMILIES["smolvlm"]
    assert family.image_processor is not None
    with pytest.raises(ConfigError, match=r"model_path: transformers has no processor for 'qwen2'"):
        family_processor(tiny.text_config("qwen2"), {}, family.image_processor(), family.tokenizer)
    foreign = copy.deepcopy(tiny.tokenizer())
    with pytest.raises(ConfigError, match=r"tokenizer_path: the tokenizer lacks special tokens"):
        family_processor(family.config(family.tokenizer), family.processor, family.image_processor(), foreign)


def test_a_processor_that_needs_picture_and_text_together_is_refused():
    tokenizer = tiny.tokenizer(more=("<|image|>",))
    config = transformers.MllamaConfig(image_token_index=tokenizer.convert_tokens_to_ids("<|image|>"))
    images = transformers.MllamaImageProcessorPil(size={"height": 56, "width": 56})
    with pytest.raises(ConfigError, match=r"MllamaProcessor does not process one picture after the other"):
        FamilyReader(family_processor(config, {}, images, tokenizer))


def test_tokens_that_stand_for_pictures_are_found_under_every_name():
    for name, family in FAMILIES.items():
        token = image_token_id(family.config(family.tokenizer))
        assert (token is not None) == family.sees, name
        assert not family.sees or token in picture_keys(family.config(family.tokenizer)).values()
    glm = picture_keys(FAMILIES["glm4v"].config(FAMILIES["glm4v"].tokenizer))
    assert {"image_start_token_id", "image_end_token_id", "video_start_token_id", "video_end_token_id"} < glm.keys()


def test_inputs_are_numbers_of_two_types():
    place = world("smolvlm")
    assert place.media is not None
    inputs = place.media.inputs(place.media.add(tiny.picture(90, 70)).handle)
    assert {name: array.dtype for name, array in inputs.items()} == {
        "pixel_values": np.float32,
        "pixel_attention_mask": np.int64,
    }


def test_a_picture_that_a_family_cannot_take_is_told():
    with pytest.raises(DataError, match=r"pixels: .*crop or pad"):
        FamilyReader(processor("glm4v")).measure(3000, 10)


def test_a_first_token_that_the_template_leaves_to_the_tokenizer_is_there(tmp_path):
    """As the family's own processor has it: once, whoever writes it."""
    family = FAMILIES["llava_next"]
    family.save(tmp_path)
    tokenizer, bos = copy.deepcopy(family.tokenizer), "<|endoftext|>"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, tiny.token_id(bos))]
    )
    tokenizer.bos_token = bos
    tokenizer.save_pretrained(tmp_path)
    template = tiny.CHAT_TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", family.image)
    for text in (template, bos + template):
        (tmp_path / "chat_template.jinja").write_text(text)
        chat = Chat.load(str(tmp_path))
        ids, _ = chat.encode("<image>Find x.", [chat.media_store().add(tiny.picture(90, 70))])
        assert ids[0] == tiny.token_id(bos) and ids[1] != tiny.token_id(bos)
