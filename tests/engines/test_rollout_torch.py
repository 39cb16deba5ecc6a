"""The in-process sampler: its log-probs are the trainer's, greedy is `generate`, order and company change nothing."""

import numpy as np
import pytest
import scenes
import tiny
import torch
from transformers import GenerationConfig

from easyr1.batch import Group, Prompt, Sample
from easyr1.engines.pack import Budget
from easyr1.engines.protocols import Sampling
from easyr1.engines.rollout_torch import TorchRollout
from easyr1.engines.train import TorchTrain
from easyr1.models.build import ModelSpec, build
from easyr1.models.scored import Scored

KINDS = ("qwen2", "mistral_window", "qwen2_5_vl", "qwen3_vl")


def lively(kind: str):
    """A model whose answers are varied: a steep head on top of peaked attention."""
    built = scenes.model(kind)
    with torch.no_grad():
        built.lm_head.weight *= 12
    return built


def prompts(scene: scenes.Scene) -> list[Prompt]:
    return [
        scene.prompt(12, (56, 84), index=0),
        scene.prompt(25, index=1),
        scene.prompt(9, (84, 84), (56, 56), index=2),
        scene.prompt(40, index=3),
        scene.prompt(5, (56, 56), index=4),
    ]


STOPS = frozenset(range(100, 112))  # about one token in forty ends an answer, so that lengths are ragged


def engine(scored: Scored, scene: scenes.Scene, **limits: int) -> TorchRollout:
    return TorchRollout(scored, scene.media, STOPS, **limits)


@pytest.mark.parametrize("kind", KINDS)
def test_log_probs_of_the_sampled_tokens_are_the_trainers(kind):
    scene = scenes.Scene(kind)
    scored = scenes.packed(lively(kind))
    asked = prompts(scene)
    sampling = Sampling(n=4, temperature=0.8, top_p=0.9, top_k=50, max_tokens=40, seed=3)
    answers = engine(scored, scene, max_num_seqs=7, max_num_batched_tokens=64).generate(asked, sampling)
    lengths = {len(answer.ids) for group in answers for answer in group}
    assert len(lengths) > 5 and {answer.finish_reason for group in answers for answer in group} == {"stop", "length"}
    groups = [
        Group(prompt, [Sample(answer) for answer in group]) for prompt, group in zip(asked, answers, strict=True)
    ]
    trainer = TorchTrain(scored, scene.media, sampling.temperature, Budget(tokens=300))
    for group, scores in zip(groups, trainer.score(groups), strict=True):
        for sample, log_probs in zip(group.samples, scores, strict=True):
            np.testing.assert_allclose(sample.completion.log_probs, log_probs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_answers_equal_generate(kind):
    scene = scenes.Scene(kind)
    built = lively(kind)
    reference = lively(kind)
    asked = prompts(scene)
    sampling = Sampling(n=1, temperature=0, max_tokens=48)
    found = engine(scenes.packed(built), scene, max_num_seqs=2).generate(asked, sampling)
    assert len({len(group[0].ids) for group in found}) > 1  # ragged ends, so slots were refilled
    assert len(set(np.concatenate([group[0].ids for group in found]).tolist())) >= 8
    packer = scenes.packer(scenes.padded(reference), scene)
    for prompt, (answer,) in zip(asked, found, strict=True):
        ids = torch.from_numpy(prompt.ids)[None]
        media = packer.prompt_media(prompt)
        if media:
            media["mm_token_type_ids"] = packer.positions.token_types(ids)
        theirs = reference.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=48,
            do_sample=False,
            eos_token_id=sorted(STOPS),
            suppress_tokens=packer.banned.tolist() or None,
            pad_token_id=0,
            **media,
        )[0, ids.shape[1] :]
        assert answer.ids.tolist() == theirs.tolist()


@pytest.mark.parametrize("limits", ({"max_num_seqs": 3}, {"max_num_batched_tokens": 1}, {"max_num_seqs": 1}))
def test_slots_and_company_do_not_change_an_answer(limits):
    scene = scenes.Scene("qwen2_5_vl")
    scored = scenes.packed(lively("qwen2_5_vl"))
    asked = prompts(scene)
    sampling = Sampling(n=3, max_tokens=24, seed=5)
    together = engine(scored, scene).generate(asked, sampling)
    apart = engine(scored, scene, **limits).generate(asked[::-1], sampling)[::-1]
    for left, right in zip(together, apart, strict=True):
        assert [answer.ids.tolist() for answer in left] == [answer.ids.tolist() for answer in right]
    assert [answer.group_id for answer in apart[2]] == ["0-2-0"] * 3


def test_answers_differ_by_seed_draw_and_number_and_repeat_otherwise():
    scene = scenes.Scene("qwen2")
    sampler = engine(scenes.packed(tiny.build("qwen2")), scene)
    prompt = scene.prompt(9)

    def sample(**changes):
        place = {name: changes.pop(name) for name in ("epoch", "index", "attempt") if name in changes}
        asked = Prompt(row=0, ids=prompt.ids, **place)
        (answers,) = sampler.generate([asked], Sampling(n=2, max_tokens=12, **{"seed": 1, **changes}))
        return [tuple(answer.ids.tolist()) for answer in answers]

    assert sample() == sample()
    drawn = sample() + sample(seed=2) + sample(epoch=1) + sample(index=1) + sample(attempt=1) + sample(epoch=-1)
    assert len(set(drawn)) == len(drawn)


def test_picture_ids_are_never_sampled():
    scene = scenes.Scene("qwen2_5_vl")
    built = tiny.build("qwen2_5_vl")
    scored = scenes.packed(built)
    with torch.no_grad():  # a model that wants nothing but picture ids
        built.lm_head.weight[scored.banned] = built.lm_head.weight.abs().max() * 50
    (answers,) = engine(scored, scene).generate([scene.prompt(6, (56, 56))], Sampling(n=8, max_tokens=16))
    assert not set(np.concatenate([answer.ids for answer in answers]).tolist()) & set(scored.banned.tolist())


def test_ignoring_the_end_goes_on_to_the_limit():
    scene = scenes.Scene("qwen2")
    sampler = TorchRollout(scenes.packed(tiny.build("qwen2")), scene.media, frozenset(range(300)))
    (answers,) = sampler.generate([scene.prompt(6)], Sampling(n=4, max_tokens=9, ignore_eos=True))
    assert [len(answer.ids) for answer in answers] == [9] * 4
    (answers,) = sampler.generate([scene.prompt(6)], Sampling(n=4, max_tokens=9))
    assert min(len(answer.ids) for answer in answers) < 9
    assert all(answer.ids[-1] < 300 for answer in answers if answer.finish_reason == "stop")


def test_progress_counts_every_answer_once():
    scene = scenes.Scene("qwen2")
    ticks = []
    sampler = engine(scenes.packed(lively("qwen2")), scene, max_num_seqs=4)
    asked, sampling = prompts(scene), Sampling(n=3, max_tokens=8)
    groups = sampler.generate(asked, sampling, lambda *tick: ticks.append(tick))
    assert [tick[:2] for tick in ticks] == [(count, 15) for count in range(1, 16)]
    tokens = [tick[2] for tick in ticks]  # also those of answers that go on
    assert tokens == sorted(tokens) and tokens[-1] == sum(len(answer.ids) for group in groups for answer in group)


@pytest.mark.parametrize("kind", ("qwen2", "mistral_window", "qwen3_vl"))
def test_the_padded_layout_samples_the_same_answers(kind):
    scene = scenes.Scene(kind)
    sampling = Sampling(n=3, temperature=0.8, max_tokens=20, seed=3)
    asked = prompts(scene)
    ours = engine(scenes.packed(lively(kind)), scene).generate(asked, sampling)
    theirs = engine(scenes.padded(lively(kind)), scene).generate(asked, sampling)
    for left, right in zip(ours, theirs, strict=True):
        for one, other in zip(left, right, strict=True):
            assert one.ids.tolist() == other.ids.tolist() and one.finish_reason == other.finish_reason
            np.testing.assert_allclose(one.log_probs, other.log_probs, rtol=0, atol=1e-4)


def test_loaded_weights_are_the_ones_that_sample():
    scene = scenes.Scene("qwen2")
    first, second = tiny.build("qwen2", seed=0), tiny.build("qwen2", seed=1)
    wanted = engine(scenes.packed(tiny.build("qwen2", seed=1)), scene).generate(
        [scene.prompt(9)], Sampling(max_tokens=9)
    )
    scene = scenes.Scene("qwen2")
    sampler = engine(scenes.packed(first), scene)
    sampler.load(second.state_dict().items(), version=7)
    ((answer,),) = sampler.generate([scene.prompt(9)], Sampling(max_tokens=9))
    assert answer.ids.tolist() == wanted[0][0].ids.tolist() and answer.weights_version == 7


def test_the_models_own_generation_settings_do_not_reach_into_sampling(tmp_path):
    """Penalties, limits and other ends of answers, as published models ship them."""
    scene = scenes.Scene("qwen2")
    asked, sampling = prompts(scene), Sampling(n=2, temperature=0.8, max_tokens=20, seed=3, ignore_eos=True)
    found = []
    for settings in (
        {},
        {"repetition_penalty": 1.3, "min_length": 30, "no_repeat_ngram_size": 2, "eos_token_id": [5, 9]},
    ):
        built = lively("qwen2")
        built.generation_config = GenerationConfig(**settings)
        built.save_pretrained(tmp_path)
        root = build(ModelSpec(str(tmp_path), packed=False))
        found.append(engine(root, scene).generate(asked, sampling))
    for plain, penalised in zip(*found, strict=True):
        for one, other in zip(plain, penalised, strict=True):
            assert one.ids.tolist() == other.ids.tolist() and len(one.ids) == 20
