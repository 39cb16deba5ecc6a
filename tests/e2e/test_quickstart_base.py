"""The base model of the quickstart: its shape, its careless teacher, its cold start, and its cache."""

import re

import numpy as np
import pytest
import torch
from rich.console import Console

from easyr1.batch import Prompt
from easyr1.data.chat import Chat
from easyr1.data.dataset import Limits, load_prompts
from easyr1.engines.pack import Packer
from easyr1.examples.quickstart import build
from easyr1.examples.quickstart.build import build_base, cache_folder, content_key
from easyr1.examples.quickstart.cold_start import LOOK_ALIKE, Lessons, Teacher, cold_start, negative_log_likelihood
from easyr1.examples.quickstart.digits import ONE, TWO, write_tasks
from easyr1.examples.quickstart.model import build_model, model_config, save_files
from easyr1.examples.quickstart.tokenizer import build_tokenizer
from easyr1.examples.reward_function.r1v import compute_score
from easyr1.models.build import ModelSpec, load_model, wrap
from easyr1.models.positions import Positions
from easyr1.tracking.progress import Progress

SHORT = Lessons(num_steps=2, rows_per_step=4)
FAULTLESS = Lessons(misread=0.0, mistaken=0.0, broken=0.0)
QUIET = Progress(Console(quiet=True))


@pytest.fixture(scope="module")
def few_rows(tmp_path_factory):
    """The files of rows, with the validation rows in the place of the training rows: a tenth of them, same kind."""
    tasks = write_tasks(tmp_path_factory.mktemp("tasks"), seed=1)
    return type(tasks)(train=tasks.val, val=tasks.val)


@pytest.fixture
def cache(tmp_path, few_rows, monkeypatch):
    monkeypatch.setattr(build, "write_tasks", lambda folder, seed: few_rows)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    tokenizer = build_tokenizer()
    save_files(folder, tokenizer, model_config(tokenizer))
    return Chat.load(str(folder), format_prompt="examples/format_prompt/quickstart.jinja")


def weights_of(folder) -> dict[str, torch.Tensor]:
    return load_model(ModelSpec(str(folder))).state_dict()


def prompt(task: str, digits: list[int]) -> Prompt:
    return Prompt(0, np.array([1]), columns={"task": task, "digits": digits})


def test_the_model_is_tiny_and_has_the_heads_that_servers_need():
    config = model_config(build_tokenizer())
    text = config.text_config
    model = build_model(config, seed=1)
    assert 1e6 < sum(parameter.numel() for parameter in model.parameters()) < 4e6
    assert text.hidden_size // text.num_attention_heads == 32
    assert text.num_attention_heads >= 4
    assert 2 * sum(text.rope_parameters["mrope_section"]) == 32


def test_a_faultless_teacher_earns_the_whole_reward(chat):
    teacher = Teacher(chat, FAULTLESS, np.random.default_rng(0))
    for task, digits, truth in ((ONE, [7], "7"), (TWO, [3, 8], "8"), (TWO, [9, 0], "9")):
        (group,) = teacher.answers([prompt(task, digits)])
        ids = group.samples[0].completion.ids
        assert ids[-1] == chat.tokenizer.eos_token_id
        assert compute_score({"response": chat.decode(ids), "ground_truth": truth})["overall"] == 1.0


def test_the_prompt_asks_for_what_the_reward_looks_for(chat):
    text = chat.render("<image>Which digit is this?")
    assert "<|image_pad|><|vision_end|>Which digit is this? Reply" in text
    (asked,) = re.findall(r"<think>.*</answer>", text)
    answer = asked.replace("digit", "7")
    assert compute_score({"response": answer, "ground_truth": "7"})["overall"] == 1.0


def test_a_careless_teacher_errs_as_often_as_it_should(chat):
    lessons = Lessons(misread=0.4, mistaken=0.5, broken=0.3)
    teacher = Teacher(chat, lessons, np.random.default_rng(0))
    answers = [teacher.answer(ONE, [3]) for _ in range(2000)]
    scores = [compute_score({"response": answer, "ground_truth": "3"}) for answer in answers]
    assert np.mean([score["format"] for score in scores]) == pytest.approx(0.7, abs=0.05)
    assert np.mean(["8" in answer for answer in answers]) == pytest.approx(0.4, abs=0.05)
    seeing = Teacher(chat, Lessons(misread=0.0, mistaken=0.5, broken=0.0), np.random.default_rng(0))
    pairs = [seeing.answer(TWO, [4, 7]) for _ in range(1000)]
    assert np.mean(["<answer>4</answer>" in answer for answer in pairs]) == pytest.approx(0.5, abs=0.06)


def test_look_alikes_are_mutual_and_cover_all_digits():
    assert sorted(LOOK_ALIKE) == list(range(10))
    assert all(LOOK_ALIKE[LOOK_ALIKE[digit]] == digit != LOOK_ALIKE[digit] for digit in LOOK_ALIKE)


def test_the_cold_start_teaches_answers(chat, few_rows):
    media = chat.media_store(3136, 3136)
    prompts = load_prompts(str(few_rows.val), chat, media, Limits(64))
    assert {media.num_tokens(handle) for handle in prompts[0].media} == {4}
    scored = wrap(build_model(model_config(build_tokenizer()), seed=1))
    packer = Packer(Positions(scored.model), media.inputs, scored.packed, scored.banned)
    groups = Teacher(chat, FAULTLESS, np.random.default_rng(0)).answers(prompts[:8] + prompts[120:128])
    with torch.no_grad():
        before = float(negative_log_likelihood(scored, packer, groups))
    ticks = []
    lessons = Lessons(num_steps=12, rows_per_step=16)
    cold_start(scored, chat, prompts, media.inputs, lessons, 1, lambda done, total: ticks.append((done, total)))
    with torch.no_grad():
        after = float(negative_log_likelihood(scored, packer, groups))
    assert before > 4.0
    assert after < before / 2
    assert ticks == [(step, 12) for step in range(1, 13)]


def test_a_base_depends_on_its_seed_alone(cache):
    base = build_base(cache, 1, QUIET, SHORT)
    first = weights_of(base)
    again = weights_of(build_base(cache.with_name("elsewhere"), 1, QUIET, SHORT))
    other = weights_of(build_base(cache, 2, QUIET, SHORT))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
    assert Chat.load(str(base)).sees


def test_untrained_weights_depend_on_the_seed_too(cache):
    one, two = (weights_of(build_base(cache, seed, QUIET, Lessons(num_steps=0))) for seed in (1, 2))
    name = "model.language_model.embed_tokens.weight"
    assert not torch.equal(one[name], two[name])


def test_a_base_is_built_once(cache, monkeypatch):
    base = build_base(cache, 1, QUIET, SHORT)
    monkeypatch.setattr(build, "_build", None)  # would fail if it were called
    assert build_base(cache, 1, QUIET, SHORT) == base
    with pytest.raises(TypeError):
        build_base(cache, 1, QUIET, Lessons(num_steps=3))


def test_an_interrupted_build_leaves_nothing_behind(cache, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "cold_start", stop)
    with pytest.raises(KeyboardInterrupt):
        build_base(cache, 1, QUIET, SHORT)
    assert list(cache.iterdir()) == []


def test_another_process_may_be_first(cache, monkeypatch):
    def rival(folder, *_):
        folder.mkdir()
        (cache / f"base-1-{content_key(SHORT)}").mkdir()
        (cache / f"base-1-{content_key(SHORT)}" / "theirs").touch()

    monkeypatch.setattr(build, "_build", rival)
    assert (build_base(cache, 1, QUIET, SHORT) / "theirs").exists()


def test_the_cache_can_be_moved(monkeypatch, tmp_path):
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path))
    assert cache_folder() == tmp_path / "quickstart"
    monkeypatch.delenv(build.CACHE_VARIABLE)
    assert cache_folder().parts[-3:] == (".cache", "easyr1", "quickstart")
