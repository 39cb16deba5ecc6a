"""What holds for every sampling engine: log-probs, bans, ends and weights are the trainer's."""

import os
import signal
import threading

import numpy as np
import pytest
import samplers
import scenes
import tiny
import torch
from samplers import Bench, bench

from easyr1.batch import Completion, Group, Prompt, Sample
from easyr1.engines.pack import Budget
from easyr1.engines.protocols import Sampling
from easyr1.engines.train import TorchTrain
from easyr1.engines.vllm_adapters import why_merged
from easyr1.models.lora import LoraSpec, adapter_layers, add_adapters

TOLERANCE = 1e-4  # largest difference of a log-prob in float32; the steep models here amplify rounding
KINDS = ("qwen2", "qwen2_5_vl", "qwen3_vl")
engines = pytest.mark.parametrize("engine", samplers.ENGINES)
kinds = pytest.mark.parametrize("kind", KINDS)


def prompts(scene: scenes.Scene) -> list[Prompt]:
    """With one picture, none, and several."""
    return [
        scene.prompt(12, (64, 96), index=0),
        scene.prompt(25, index=1),
        scene.prompt(9, (96, 96), (64, 64), (96, 64), index=2),
        scene.prompt(40, index=3),
        scene.prompt(5, (64, 64), index=4),
    ]


def trained(one: Bench, asked: list[Prompt], answers: list[list[Completion]], temperature: float) -> list[np.ndarray]:
    """What the trainer says of each answer's tokens."""
    groups = [Group(prompt, [Sample(one) for one in group]) for prompt, group in zip(asked, answers, strict=True)]
    trainer = TorchTrain(one.scored, one.scene.media, temperature, Budget(tokens=300))
    return [log_probs for group in trainer.score(groups) for log_probs in group]


def gap(one: Bench, asked: list[Prompt], answers: list[list[Completion]], temperature: float = 1.0) -> float:
    """The largest difference between a log-prob of the sampler and the trainer's."""
    found = trained(one, asked, answers, temperature)
    flat = [answer for group in answers for answer in group]
    return max(float(np.abs(a.log_probs - b).max()) for a, b in zip(flat, found, strict=True))


@engines
@kinds
def test_log_probs_of_sampled_tokens_are_the_trainers(engine, kind):
    one = bench(engine, kind)
    asked = prompts(one.scene)
    sampling = Sampling(n=4, temperature=0.8, top_p=0.9, top_k=50, max_tokens=40, seed=3)
    answers = one.sampler.generate(asked, sampling)
    flat = [answer for group in answers for answer in group]
    assert len({len(answer.ids) for answer in flat}) > 5
    assert {answer.finish_reason for answer in flat} == {"stop", "length"}
    assert gap(one, asked, answers, sampling.temperature) < TOLERANCE


@engines
@kinds
def test_greedy_answers_are_those_of_generate(engine, kind):
    one = bench(engine, kind)
    reference = samplers.lively(kind)
    asked = prompts(one.scene)
    found = one.sampler.generate(asked, Sampling(temperature=0, max_tokens=48))
    assert len({len(group[0].ids) for group in found}) > 1
    packer = scenes.packer(scenes.padded(reference), one.scene)
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
            eos_token_id=sorted(samplers.STOPS),
            suppress_tokens=packer.banned.tolist() or None,
            pad_token_id=0,
            **media,
        )[0, ids.shape[1] :]
        assert answer.ids.tolist() == theirs.tolist()
    assert gap(one, asked, found) < TOLERANCE


def part(one: Bench, name: str) -> list[torch.nn.Parameter]:
    """The weights of a part of the model."""
    model = one.scored.model
    if name == "tied head":
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
        return [model.get_output_embeddings().weight]
    module = model.get_decoder().layers if name == "text layers" else model.get_encoder(modality="image")
    return list(module.parameters())


@engines
@pytest.mark.parametrize("kind", ("qwen2_5_vl", "qwen3_vl"))
@pytest.mark.parametrize("name", ("text layers", "tied head", "vision tower"))
def test_each_of_five_updates_reaches_the_sampler(engine, kind, name):
    one = bench(engine, kind, tie_word_embeddings=True)
    asked = [prompts(one.scene)[2]]
    generator = torch.Generator().manual_seed(1)
    before = one.sampler.generate(asked, Sampling(n=2, max_tokens=16, ignore_eos=True))
    assert gap(one, asked, before) < TOLERANCE
    for version in range(1, 6):
        with torch.no_grad():
            for weight in part(one, name):
                weight += torch.randn(weight.shape, generator=generator) * weight.std() * 0.02
        stale = one.sampler.generate(asked, Sampling(n=2, max_tokens=16, ignore_eos=True, seed=version))
        assert gap(one, asked, stale) > 100 * TOLERANCE  # the sampler's weights are its own until they are loaded
        one.sync(version)
        fresh = one.sampler.generate(asked, Sampling(n=2, max_tokens=16, ignore_eos=True, seed=version))
        assert gap(one, asked, fresh) < TOLERANCE
        assert {answer.weights_version for answer in fresh[0]} == {version}


def move_adapters(one: Bench, number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for layer in adapter_layers(one.scored.model).values():
            layer.lora_B["default"].weight.normal_(generator=generator).mul_(0.05)


@engines
def test_merged_adapters_reach_the_sampler(engine):
    """Those of the vision tower among them, which vLLM would not take by themselves."""
    one = bench(engine, "qwen2_5_vl")
    asked = prompts(one.scene)
    add_adapters(one.scored.model, LoraSpec(4, 8, exclude_modules=None), torch.float32)
    assert why_merged(adapter_layers(one.scored.model), 4, {}) is not None
    move_adapters(one, 0)
    sampling = Sampling(n=2, max_tokens=16)
    assert gap(one, asked, one.sampler.generate(asked, sampling)) > 100 * TOLERANCE
    one.sync()
    assert gap(one, asked, one.sampler.generate(asked, sampling)) < TOLERANCE


@engines
@pytest.mark.parametrize("kind", ("qwen2", "qwen2_5_vl", "qwen3_vl"))
def test_adapters_reach_the_sampler_in_each_of_five_updates(engine, kind, monkeypatch):
    """One and the same prompt each time, so that a cache of what older adapters made of it would show."""
    one = bench(engine, kind, lora=LoraSpec(4, 8))
    assert why_merged(adapter_layers(one.scored.model), 4, {}) is None
    asked = [one.scene.prompt(40, *(((64, 96),) if kind in tiny.VISION_KINDS else ()))]
    assert gap(one, asked, one.sampler.generate(asked, Sampling(n=2, max_tokens=16))) < TOLERANCE
    monkeypatch.setattr(one.source, "base_weights", lambda: pytest.fail("the base is there"))
    if engine == "vllm":
        monkeypatch.setattr(one.source, "weights", one.source.base_weights)
    for version in range(1, 6):
        move_adapters(one, version)
        sampling = Sampling(n=2, max_tokens=16, ignore_eos=True, seed=version)
        assert gap(one, asked, one.sampler.generate(asked, sampling)) > 100 * TOLERANCE
        one.sync(version)
        fresh = one.sampler.generate(asked, sampling)
        assert gap(one, asked, fresh) < TOLERANCE
        assert {answer.weights_version for answer in fresh[0]} == {version}


@engines
def test_picture_ids_are_never_sampled(engine):
    one = bench(engine, "qwen2_5_vl")
    head = one.scored.model.get_output_embeddings()
    with torch.no_grad():  # a model that wants nothing but picture ids
        head.weight[one.scored.banned] = head.weight.abs().max() * 50
    one.sync()
    asked = [one.scene.prompt(6, (64, 64))]
    for sampling in (Sampling(n=8, max_tokens=16, ignore_eos=True), Sampling(temperature=0, max_tokens=16)):
        answers = one.sampler.generate(asked, sampling)
        taken = set(np.concatenate([answer.ids for answer in answers[0]]).tolist())
        assert not taken & set(one.scored.banned.tolist())
        assert gap(one, asked, answers) < TOLERANCE


@engines
def test_ends_of_answers(engine):
    one = bench(engine, "qwen2", stops=frozenset(range(300)))
    asked = [one.scene.prompt(6)]
    (answers,) = one.sampler.generate(asked, Sampling(n=4, max_tokens=9, ignore_eos=True))
    assert [(len(answer.ids), answer.finish_reason) for answer in answers] == [(9, "length")] * 4
    (answers,) = one.sampler.generate(asked, Sampling(n=8, max_tokens=9))
    assert min(len(answer.ids) for answer in answers) < 9
    for answer in answers:
        is_end = [token < 300 for token in answer.ids]
        assert not any(is_end[:-1]) and is_end[-1] == (answer.finish_reason == "stop")
    one = bench(engine, "qwen2", stops=frozenset())  # the tokenizer's own end is none
    head = one.scored.model.get_output_embeddings()
    with torch.no_grad():
        head.weight[tiny.token_id("<|im_end|>")] = head.weight.abs().max() * 50
    one.sync()
    (answers,) = one.sampler.generate(asked, Sampling(n=4, max_tokens=9))
    assert [len(answer.ids) for answer in answers] == [9] * 4


@engines
def test_every_prompt_gets_its_answers_in_order(engine):
    one = bench(engine, "qwen2_5_vl")
    asked = prompts(one.scene)
    ticks = []
    groups = one.sampler.generate(asked, Sampling(n=3, max_tokens=8), lambda *tick: ticks.append(tick))
    assert [[answer.group_id for answer in group] for group in groups] == [[f"0-{i}-0"] * 3 for i in range(5)]
    assert [tick[:2] for tick in ticks] == [(count, 15) for count in range(1, 16)]
    assert ticks[-1][2] == sum(len(answer.ids) for group in groups for answer in group)  # what tokens/s come from
    assert all(len({tuple(answer.ids) for answer in group}) == 3 for group in groups)
    greedy = Sampling(n=2, temperature=0, max_tokens=12)
    backwards = one.sampler.generate(asked[::-1], greedy)[::-1]
    for group, other in zip(one.sampler.generate(asked, greedy), backwards, strict=True):
        assert len({tuple(answer.ids) for answer in (*group, *other)}) == 1


@engines
def test_no_prompts_no_answers(engine):
    assert bench(engine, "qwen2").sampler.generate([], Sampling(n=3)) == []


@engines
def test_draws_repeat_with_the_seed_and_differ_with_seed_and_draw(engine):
    one = bench(engine, "qwen2")
    ids = one.scene.ids(9)

    def drawn(seed: int = 1, **place: int) -> list[list[int]]:
        (answers,) = one.sampler.generate([Prompt(row=0, ids=ids, **place)], Sampling(n=2, max_tokens=12, seed=seed))
        return [answer.ids.tolist() for answer in answers]

    state = torch.get_rng_state()
    assert drawn() == drawn()
    other = [drawn(), drawn(seed=2), drawn(epoch=1), drawn(index=1), drawn(attempt=1), drawn(epoch=-1)]
    assert len({str(answer) for answers in other for answer in answers}) == 12
    assert torch.equal(state, torch.get_rng_state())  # the trainer's random numbers are its own


class Torn(BaseException):
    """As the trainer's Stopped: nobody may handle it away."""


def tear(*_: object) -> None:
    raise Torn


def give_up_by_signal(one: Bench, asked: list[Prompt], after_s: float) -> bool:
    """Whether a long call was ended by a signal that came after so many seconds."""
    before = signal.signal(signal.SIGTERM, tear)
    timer = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGTERM))
    try:
        timer.start()
        one.sampler.generate(asked, Sampling(n=16, max_tokens=400, ignore_eos=True))
    except Torn:
        return True
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, before)
    return False


@engines
def test_after_a_call_was_given_up_the_next_one_is_right(engine):
    one = bench(engine, "qwen2_5_vl")
    asked = prompts(one.scene)
    greedy = Sampling(temperature=0, max_tokens=12)
    wanted = [group[0].ids.tolist() for group in one.sampler.generate(asked, greedy)]
    with pytest.raises(Torn):
        one.sampler.generate(asked, Sampling(n=3, max_tokens=8), tear)
    for after_s in np.linspace(0.02, 0.3, 12):
        assert give_up_by_signal(one, asked, after_s)
        answers = one.sampler.generate(asked, greedy)
        assert [group[0].ids.tolist() for group in answers] == wanted
        assert gap(one, asked, answers) < TOLERANCE
    one.sync(3)
    assert gap(one, asked, one.sampler.generate(asked, Sampling(n=2, max_tokens=8))) < TOLERANCE
