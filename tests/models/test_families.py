"""Every family: our layouts are what transformers computes alone, sampling is what is trained, pictures stay whole.

The reference is the family's own forward of one sequence at a time, with the attention and the positions that
transformers gives it. docs/models.md tells the results.
"""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from easyr1.batch import Group
from easyr1.data.model_files import ModelFiles
from easyr1.engines.optimizer import OptimSpec
from easyr1.engines.pack import Budget, cut
from easyr1.engines.protocols import Sampling
from easyr1.engines.rollout_torch import TorchRollout
from easyr1.engines.train import TorchTrain
from easyr1.errors import DataError
from easyr1.models.build import ModelSpec, build, wrap
from easyr1.models.log_probs import normalised
from easyr1.models.lora import LoraSpec, adapter_layers
from easyr1.models.positions import TOKEN_TYPES
from easyr1.models.scored import Scored
from tests import tiny
from tests.families import FAMILIES, PACKED
from tests.family_scenes import STOP, World, plain_inputs, world

CORE = ("qwen3_moe", "gemma3_text", "qwen2_vl", "qwen3_vl", "gemma3", "smolvlm", "llava_next")
TEMPERATURE = 0.7


def marked(names):
    """Names as parameters; those beyond the core run with the slow tests."""
    return [pytest.param(name, marks=[] if name in CORE else [pytest.mark.slow]) for name in names]


each_family = pytest.mark.parametrize("name", marked(FAMILIES))
each_vision_family = pytest.mark.parametrize("name", marked(n for n, family in FAMILIES.items() if family.sees))


def ours(place: World, scored: Scored, groups: list[Group]):
    """Log-probs by (group, sample) from one micro-batch, and the gradients of a loss that weighs each differently."""
    packer = place.packer(scored)
    (pieces,) = cut(groups, Budget(tokens=100_000))
    batch = packer.micro_batch(groups, pieces, torch.device("cpu"))
    log_probs = scored(batch.inputs, batch.targets, TEMPERATURE).log_probs
    log_probs.square().sum().backward()
    return dict(zip(batch.places, batch.split(log_probs.detach()), strict=True)), gradients(scored.model)


def theirs(place: World, scored: Scored, groups: list[Group]):
    """The same from one forward of the whole model for each sequence."""
    model, packer, found = scored.model, place.packer(scored), {}
    for number, group in enumerate(groups):
        for which, sample in enumerate(group.samples):
            answer = torch.from_numpy(sample.completion.ids)
            logits = model(**plain_inputs(packer, model, group.prompt, answer.tolist()), use_cache=False).logits[0]
            log_probs = normalised(logits[-len(answer) - 1 : -1], scored.banned, TEMPERATURE)
            chosen = log_probs.gather(-1, answer[:, None])[:, 0]
            chosen.square().sum().backward()
            found[number, which] = chosen.detach()
    return found, gradients(model)


def gradients(model) -> dict[str, torch.Tensor]:
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


@each_family
def test_one_micro_batch_is_what_transformers_computes_alone(name):
    """Ragged answers; no picture, one and two of different sizes; in float64, where rounding hides nothing."""
    place = world(name)
    groups = place.groups()
    model = place.model(torch.float64)
    reference = Scored(copy.deepcopy(model), packed=False)
    scored = wrap(model)
    reference.banned = scored.banned
    left, right = ours(place, scored, groups), theirs(place, reference, groups)
    assert left[0].keys() == right[0].keys()
    assert min(float(values.min()) for values in right[0].values()) < -3  # not a trivial scene
    for at, values in left[0].items():
        torch.testing.assert_close(values, right[0][at], rtol=0, atol=2e-6)
    largest = max(float(gradient.norm()) for gradient in right[1].values())
    for weight, gradient in right[1].items():
        gap = (left[1].get(weight, torch.zeros(())) - gradient).norm() / gradient.norm().clamp_min(1e-6 * largest)
        assert gap < 5e-5, f"{weight}: {gap:.1e}"


@each_family
def test_the_layout_is_the_expected_one_and_a_slower_one_is_said(name, caplog):
    family = FAMILIES[name]
    assert wrap(family.build()).packed == (family.layout == PACKED)
    assert family.reason in caplog.text


@each_family
def test_sampled_log_probs_are_those_of_training(name):
    place = world(name)
    scored = place.lively()
    rollout = TorchRollout(scored, place.inputs, frozenset({STOP}))
    prompts = place.prompts()
    answers = rollout.generate(prompts, Sampling(n=2, max_tokens=10, seed=1))
    groups = [
        Group(prompt, [dataclasses.replace(place.groups()[0].samples[0], completion=one) for one in group])
        for prompt, group in zip(prompts, answers, strict=True)
    ]
    scores = TorchTrain(scored, place.inputs, 1.0, Budget(tokens=100_000)).score(groups)
    for group, values in zip(groups, scores, strict=True):
        for sample, log_probs in zip(group.samples, values, strict=True):
            np.testing.assert_allclose(sample.completion.log_probs, log_probs, rtol=0, atol=2e-4)


@each_family
def test_greedy_answers_equal_generate(name):
    place = world(name)
    reference, scored = place.lively().model, place.lively()
    reference.set_attn_implementation("sdpa")
    prompts = place.prompts()
    rollout = TorchRollout(scored, place.inputs, frozenset({STOP}))
    found = rollout.generate(prompts, Sampling(n=1, temperature=0, max_tokens=12))
    packer = place.packer(scored)
    for prompt, (answer,) in zip(prompts, found, strict=True):
        expected = reference.generate(  # type: ignore[operator]
            **plain_inputs(packer, reference, prompt),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=STOP,
            pad_token_id=0,
            suppress_tokens=scored.banned.tolist() or None,
        )[0, len(prompt.ids) :]
        assert answer.ids.tolist() == expected.tolist()


@each_family
def test_by_default_adapters_sit_in_the_text_model_alone_and_learn(name):
    place = world(name)
    spec = ModelSpec(str(place.folder), lora=LoraSpec(rank=4, alpha=8))
    scored = build(spec)
    text = "model.language_model.layers." if place.family.sees else "model.layers."
    text = "model.text_model.layers." if name in ("idefics3", "smolvlm") else text
    layers = adapter_layers(scored.model)
    assert layers and all(layer.startswith(text) for layer in layers)
    trained = {weight for weight, one in scored.model.named_parameters() if one.requires_grad}
    assert trained == {f"{layer}.lora_{part}.default.weight" for layer in layers for part in "AB"}
    engine = TorchTrain(scored, place.inputs, 1.0, Budget(tokens=100_000), optim=OptimSpec(lr=1e-2))
    groups = place.groups()
    engine.update(_scored(groups, engine), lr=1e-2)
    still = {weight for weight in trained if ".lora_B." in weight and not _of(scored, weight).any()}
    assert still == set()


def _scored(groups: list[Group], engine: TorchTrain) -> list[Group]:
    for group, values in zip(groups, engine.score(groups), strict=True):
        for sample, log_probs in zip(group.samples, values, strict=True):
            sample.old_log_probs = log_probs
    return groups


def _of(scored: Scored, weight: str) -> torch.Tensor:
    return dict(scored.model.named_parameters())[weight].detach()


@each_vision_family
def test_a_frozen_tower_is_all_that_is_frozen(name):
    place = world(name)
    scored = build(ModelSpec(str(place.folder), freeze_vision_tower=True))
    weights = {weight for weight, _ in scored.model.named_parameters()}
    trained = {weight for weight, one in scored.model.named_parameters() if one.requires_grad}
    assert weights - trained == {weight for weight in weights if weight.startswith(place.family.tower)}
    assert weights - trained and trained
    before = {weight: _of(scored, weight).clone() for weight in weights}
    engine = TorchTrain(scored, place.inputs, 1.0, Budget(tokens=100_000), optim=OptimSpec(lr=1e-2))
    engine.update(_scored(place.groups(), engine), lr=1e-2)
    changed = {weight for weight in weights if not torch.equal(before[weight], _of(scored, weight))}
    assert changed <= trained and len(changed) > len(trained) / 2


@each_vision_family
def test_prompts_and_pixels_are_those_of_the_familys_own_processor(name):
    place, files = world(name), ModelFiles.find(str(world(name).folder))
    assert place.media is not None
    own = files.load_family_processor(files.load_config(), files.load_image_processor(), place.chat.tokenizer)
    packer = place.packer(wrap(place.family.build()))
    for sizes in ((90, 70),), ((300, 200),), ((60, 120), (90, 70)), ((56, 56), (90, 70)):
        if name == "llava_onevision" and len(sizes) > 1:
            continue  # its own processor shows pictures coarser where there are several: docs/models.md
        pictures = [tiny.picture(*size, seed=3 + n) for n, size in enumerate(sizes)]
        question = "<image>" * len(sizes) + " Find x."
        expected = own(text=[place.chat.render(question)], images=[pictures], return_tensors="np")
        added = [place.media.add(one) for one in pictures]
        ids, _ = place.chat.encode(question, added)
        prompt = dataclasses.replace(place.prompt("x"), ids=ids, media=tuple(one.handle for one in added))
        assert ids.tolist() == np.asarray(expected.pop("input_ids"))[0].tolist()
        media = packer.prompt_media(prompt)
        assert media.keys() == expected.keys() - {"attention_mask", *TOKEN_TYPES}
        for key, tensor in media.items():
            np.testing.assert_array_equal(_filled(key, tensor.numpy()), _filled(key, np.asarray(expected[key])))


def _filled(key: str, array: np.ndarray) -> np.ndarray:
    """Idefics lays tiles by picture, or by row, and leaves out what is all zero: the tiles that its model sees."""
    if array.ndim < 4:
        return array
    tiles = array.reshape(-1, *array.shape[-3 if key == "pixel_values" else -2 :])
    return tiles[tiles.any(axis=tuple(range(1, tiles.ndim)))]


@each_vision_family
def test_picture_tokens_in_text_are_refused(name):
    place = world(name)
    words = set(place.chat.tokenizer.convert_ids_to_tokens(sorted(wrap(place.family.build()).banned.tolist())))
    assert words - {"<image>"} <= set(place.chat._vision_words)
    for word in words - {"<image>"}:
        with pytest.raises(DataError, match="mark pictures by"):
            place.chat.encode(f"What is {word}?")
    with pytest.raises(DataError, match="placeholders: 1, pictures: 0"):
        place.chat.encode("What is <image>?")


@each_vision_family
def test_a_picture_token_is_never_sampled_however_likely(name):
    place = world(name)
    model = place.family.build()
    token = place.chat.image_token_id
    assert token is not None
    scored = wrap(model)
    with torch.no_grad():
        head = model.get_output_embeddings()
        head.weight.zero_()  # type: ignore[union-attr, operator]
    assert token in scored.banned.tolist()
    rollout = TorchRollout(scored, place.inputs, frozenset({STOP}))
    answers = rollout.generate(place.prompts(), Sampling(n=8, max_tokens=40, seed=2))
    drawn = set(np.concatenate([one.ids for group in answers for one in group]).tolist())
    assert len(drawn) > 200 and not drawn & set(scored.banned.tolist())


@each_vision_family
def test_pictures_that_do_not_fit_their_tokens_are_one_clear_error(name):
    place = world(name)
    scored = wrap(place.family.build())
    group = place.groups()[0]
    ids = group.prompt.ids.tolist()
    ids.pop(ids.index(place.chat.image_token_id))
    broken = [Group(dataclasses.replace(group.prompt, ids=np.array(ids)), group.samples)]
    engine = TorchTrain(scored, place.inputs, 1.0, Budget(tokens=100_000))
    with pytest.raises(DataError, match="pictures"):
        engine.score(broken)
