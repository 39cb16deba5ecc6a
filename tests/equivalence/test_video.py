"""Videos and pictures in one prompt: golden positions, packed = padded = the model's own forward = sampling."""

import copy

import numpy as np
import pytest
import runs
import scenes
import tiny
import torch
import torch.distributed as dist
from ranks import on_ranks

from easyr1.batch import Completion, Group, Prompt, Sample, merge_sums
from easyr1.data.chat import Chat
from easyr1.data.media import MediaStore
from easyr1.engines.optimizer import OptimSpec
from easyr1.engines.pack import Budget, Packer, cut
from easyr1.engines.protocols import Sampling
from easyr1.engines.rollout_torch import TorchRollout
from easyr1.engines.train import TorchTrain
from easyr1.models.build import ModelSpec, build
from easyr1.models.positions import Positions
from easyr1.models.ranks import ALONE, join

KINDS = tiny.VISION_KINDS
QUESTION = "A<video>b<image>c<video>Which?"
STOPS = frozenset(range(100, 112))


def frames(count: int, width: int, height: int, seed: int) -> dict:
    return {"frames": [tiny.picture(width, height, seed=seed + number) for number in range(count)], "fps": 4.0}


@pytest.fixture(scope="module", params=KINDS)
def scene(request, tmp_path_factory) -> tuple[str, MediaStore, list[Prompt]]:
    """Kind, store, and prompts: two videos and a picture, a picture, text alone, a video."""
    chat = Chat.load(str(tiny.save(request.param, tmp_path_factory.mktemp(request.param))))
    media = chat.media_store(tiny.MIN_PIXELS, tiny.MAX_PIXELS, fps=2.0)
    assert media is not None
    picture = media.add(tiny.picture(84, 56, seed=50))
    short = media.add_video(frames(8, 56, 84, seed=0))
    long = media.add_video(frames(13, 56, 56, seed=20))
    rows = [
        (QUESTION, [picture], [short, long]),
        ("<image>What?", [picture], []),
        ("Only words", [], []),
        ("<video>", [], [long]),
    ]
    prompts = []
    for index, (text, pictures, videos) in enumerate(rows):
        ids, _, placed = chat.prepare(text, pictures, videos)
        prompts.append(Prompt(row=index, ids=ids, media=tuple(one.handle for one in placed), index=index))
    return request.param, media, prompts


def groups(prompts: list[Prompt]) -> list[Group]:
    random = np.random.default_rng(0)
    found = []
    for prompt, lengths in zip(prompts, ((7, 3), (5,), (4, 6), (9, 2, 5)), strict=True):
        answers = [random.integers(100, 300, length) for length in lengths]
        samples = [Sample(Completion(ids, np.zeros(len(ids), np.float32), "stop", "", 0)) for ids in answers]
        found.append(Group(prompt, samples))
    return found


def passes(scored, media: MediaStore, budget: Budget, batch: list[Group]):
    packer = Packer(Positions(scored.model), media.inputs, scored.packed, scored.banned)
    found = {}
    for pieces in cut(batch, budget):
        made = packer.micro_batch(batch, pieces, torch.device("cpu"))
        log_probs = scored(made.inputs, made.targets, 0.7).log_probs
        log_probs.square().sum().backward()
        found.update(zip(made.places, made.split(log_probs.detach()), strict=True))
    grads = {name: one.grad for name, one in scored.model.named_parameters() if one.grad is not None}
    return found, grads


def test_packed_rows_equal_padded_rows(scene):
    kind, media, prompts = scene
    batch = groups(prompts)
    built = scenes.model(kind, torch.float64)
    ours, own = passes(scenes.packed(copy.deepcopy(built)), media, Budget(tokens=100_000), batch)
    theirs, others = passes(scenes.padded(built), media, Budget(samples=100), batch)
    for place, values in ours.items():
        torch.testing.assert_close(values, theirs[place], rtol=0, atol=1e-6)
    assert own.keys() == others.keys() and any("visual" in name for name in own)
    norm = torch.stack([grad.norm() for grad in others.values()]).max()
    for name, grad in own.items():
        assert (grad - others[name]).norm() / others[name].norm().clamp_min(1e-6 * norm) < 1e-5, name


def shared(kind: str, media: MediaStore, batch: list[Group]) -> None:
    scored = scenes.packed(scenes.model(kind, torch.float64))
    alone, own = passes(scored, media, Budget(tokens=100_000), batch)
    scored.zero_grad()
    scored.ranks = join(torch.device("cpu"), sequence=dist.get_world_size())
    found, parts = passes(scored, media, Budget(tokens=100_000), batch)
    for place, values in alone.items():
        torch.testing.assert_close(found[place], values, rtol=0, atol=1e-9)
    norm = torch.stack([grad.norm() for grad in own.values()]).max()
    for name, grad in own.items():
        dist.all_reduce(parts[name])
        assert (grad - parts[name]).norm() / grad.norm().clamp_min(1e-6 * norm) < 1e-5, name


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_that_share_rows_share_out_pictures_and_videos(scene, world):
    kind, media, prompts = scene
    on_ranks(world, shared, kind, media, groups(prompts))


def test_log_probs_are_those_of_the_models_own_forward(scene):
    """Positions, placeholders and the order of pictures and videos are left to transformers on one side."""
    kind, media, prompts = scene
    built = scenes.model(kind)
    (group,) = [one for one in groups(prompts) if one.prompt.index == 0]
    ours, _ = passes(scenes.packed(copy.deepcopy(built)), media, Budget(tokens=100_000), [group])
    packer = Packer(Positions(built), media.inputs, True, scenes.packed(copy.deepcopy(built)).banned)
    answer = torch.from_numpy(group.samples[0].completion.ids)
    ids = torch.cat((torch.from_numpy(group.prompt.ids), answer))[None]
    with torch.no_grad():
        logits = built(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=packer.positions.token_types(ids),
            **packer.prompt_media(group.prompt),
        ).logits[0]
    logits[:, packer.banned] = float("-inf")
    log_probs = (logits / 0.7).log_softmax(-1)[len(group.prompt.ids) - 1 : -1]
    expected = log_probs.gather(-1, answer[:, None])[:, 0]
    torch.testing.assert_close(ours[0, 0], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("packed", [True, False])
def test_log_probs_of_the_sampled_tokens_are_the_trainers(scene, packed):
    kind, media, prompts = scene
    built = scenes.model(kind)
    with torch.no_grad():
        built.lm_head.weight *= 12
    scored = scenes.packed(built) if packed else scenes.padded(built)
    sampling = Sampling(n=3, temperature=0.8, max_tokens=20, seed=3)
    answers = TorchRollout(scored, media.inputs, STOPS, max_num_seqs=5).generate(prompts, sampling)
    sampled = [Group(prompt, [Sample(one) for one in own]) for prompt, own in zip(prompts, answers, strict=True)]
    trainer = TorchTrain(scored, media.inputs, 0.8, Budget(tokens=400) if packed else Budget(samples=2))
    for group, scores in zip(sampled, trainer.score(sampled), strict=True):
        for sample, log_probs in zip(group.samples, scores, strict=True):
            np.testing.assert_allclose(sample.completion.log_probs, log_probs, rtol=0, atol=1e-4)


def test_the_frames_matter(scene):
    """Another video, or the same one backwards, gives other log-probs."""
    kind, media, prompts = scene
    prompt = prompts[3]
    batch = groups(prompts)[3:]
    scored = scenes.packed(scenes.model(kind))
    values = passes(scored, media, Budget(tokens=100_000), batch)[0][0, 0]
    inputs = dict(media.inputs(prompt.media[0]))
    times = int(inputs["video_grid_thw"][0, 0])
    backwards = np.concatenate(np.split(inputs["pixel_values_videos"], times)[::-1])
    changed = {"pixel_values_videos": backwards}

    class Backwards:
        @staticmethod
        def inputs(handle):
            return media.inputs(handle) | changed

    others, _ = passes(scored, Backwards, Budget(tokens=100_000), batch)
    assert (others[0, 0] - values).abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_trains_on_rows_with_videos_pictures_and_neither(tmp_path, kind):
    for seed in range(5):
        tiny.picture(56, 56, seed=seed).save(tmp_path / f"{seed}.png")
    clip = [f"{seed}.png" for seed in range(5)]
    rows = [
        {"problem": "<video>What?", "answer": "1", "images": [], "videos": [clip]},
        {"problem": "<image><video>What?", "answer": "1", "images": ["0.png"], "videos": [clip[:2]]},
        {"problem": "<image>What?", "answer": "1", "images": ["1.png"], "videos": []},
        {"problem": "What?", "answer": "1", "images": [], "videos": []},
    ]
    data = tiny.write_rows(tmp_path / "rows.jsonl", rows)
    given = {"data__train_files": data, "data__val_files": data, "trainer__max_steps": 1}
    _, found = runs.run(runs.arguments(tmp_path, kind, **given))
    assert "val/reward_score" in found
    steps = runs.steps(tmp_path / "run")
    assert np.isfinite(steps[1]["actor/grad_norm"]) and steps[1]["actor/grad_norm"] > 0


def asked(kind: str, ids: list[int], **media: list) -> list[list[int]]:
    known = {name: torch.tensor(value) for name, value in media.items()}
    return Positions(tiny.build(kind)).of_prompt(torch.tensor(ids), known).tolist()


IMAGE, VIDEO, START, END = (
    tiny.token_id(f"<|{word}|>") for word in ("image_pad", "video_pad", "vision_start", "vision_end")
)


def test_golden_positions_of_qwen2_vl():
    """A video of 2 moments of 1x2 tokens, then a picture of 2x2: a block begins behind the largest side before it."""
    ids = [9, START, *[VIDEO] * 4, END, 9, START, *[IMAGE] * 4, END, 9]
    found = asked("qwen2_vl", ids, video_grid_thw=[[2, 2, 4]], image_grid_thw=[[1, 4, 4]])
    assert found == [
        [0, 1, 2, 2, 3, 3, 4, 5, 6, 7, 7, 7, 7, 9, 10],
        [0, 1, 2, 2, 2, 2, 4, 5, 6, 7, 7, 8, 8, 9, 10],
        [0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 8, 7, 8, 9, 10],
    ]


@pytest.mark.parametrize(("seconds", "times"), [(1.0, (2, 4, 6)), (0.5, (2, 3, 4)), (0.75, (2, 3, 5))])
def test_golden_positions_of_qwen2_5_vl_follow_the_seconds(seconds, times):
    """Two positions a second, cut to whole ones; 3 moments of 1x3 tokens."""
    ids = [9, START, *[VIDEO] * 9, END]
    found = asked("qwen2_5_vl", ids, video_grid_thw=[[3, 2, 6]], second_per_grid_ts=[seconds])
    assert found[0][:11] == [0, 1, *[time for time in times for _ in range(3)]]
    assert [row[2:11] for row in found[1:]] == [[2] * 9, [2, 3, 4] * 3]


def test_golden_positions_of_qwen3_vl_take_each_moment_as_a_picture():
    """Two moments of 1x2 tokens with a word of time before each, then a picture."""
    ids = [START, 9, START, VIDEO, VIDEO, END, 9, START, VIDEO, VIDEO, END, END, START, IMAGE, END]
    found = asked("qwen3_vl", ids, video_grid_thw=[[2, 2, 4]], image_grid_thw=[[1, 2, 2]])
    assert found == [
        [0, 1, 2, 3, 3, 5, 6, 7, 8, 8, 10, 11, 12, 13, 14],
        [0, 1, 2, 3, 3, 5, 6, 7, 8, 8, 10, 11, 12, 13, 14],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("split", (((1,), (3,)), ((1, 2), (3, 0)), ((3,), (2, 1, 0))))
def test_videos_on_one_rank_and_pictures_on_another_train_like_one(scene, split, tmp_path):
    kind, media, prompts = scene
    folder = tiny.save(kind, tmp_path / "model")
    batch, random = groups(prompts), np.random.default_rng(1)
    for sample in (sample for group in batch for sample in group.samples):
        sample.advantages = np.full(len(sample), random.normal(), np.float32)
    chosen = [batch[number] for number in sorted(number for part in split for number in part)]
    alone, steps = trained(folder, media, chosen, ALONE)
    shares = [[batch[number] for number in part] for part in split]
    (first, told), (second, others) = on_ranks(2, train_on_rank, folder, media, shares)
    for name, tensor in alone.items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], tensor, rtol=0, atol=1e-5, msg=lambda m, n=name: f"{n} {m}")
    for number, own in enumerate(steps):
        found = merge_sums([told[number], others[number]]).means()
        for name, value in own.means().items():
            assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


def train_on_rank(folder, media, shares):
    ranks = join(torch.device("cpu"))
    return trained(folder, media, shares[ranks.rank], ranks)


def trained(folder, media, share, ranks):
    """The weights after some updates, and what each of them told."""
    scored = build(ModelSpec(str(folder)), ranks=ranks)
    budget, optim = Budget(samples=2), OptimSpec(lr=1e-4, max_grad_norm=0.1)
    engine = TorchTrain(scored, media.inputs, 1.0, budget, budget, optim=optim, ranks=ranks)
    engine.score(share)
    steps = [engine.update(share, 1e-4) for _ in range(2)]
    return {name: tensor.clone() for name, tensor in engine.weights()}, steps
