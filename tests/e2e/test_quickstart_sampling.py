"""On a cold-started model, whose answers mean something: greedy sampling is `generate`, log-probs are the same."""

import numpy as np
import pytest
import torch
from rich.console import Console

from easyr1.batch import Group, Sample
from easyr1.data.chat import Chat
from easyr1.data.dataset import Limits, load_prompts
from easyr1.engines.pack import Budget
from easyr1.engines.protocols import Sampling
from easyr1.engines.rollout_torch import TorchRollout
from easyr1.engines.train import TorchTrain
from easyr1.examples.quickstart.build import build_base
from easyr1.examples.quickstart.cold_start import Lessons
from easyr1.examples.quickstart.digits import write_tasks
from easyr1.models.build import ModelSpec, build, load_model, load_model_config, stop_ids
from easyr1.tracking.progress import Progress

pytestmark = pytest.mark.slow

NUM_PROMPTS = 24


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A base after a third of its lessons, its pictures, and some validation prompts of both tasks."""
    folder = tmp_path_factory.mktemp("cold")
    base = build_base(folder / "cache", 1, Progress(Console(quiet=True)), Lessons(num_steps=40))
    chat = Chat.load(str(base), format_prompt="examples/format_prompt/quickstart.jinja")
    media = chat.media_store(3136, 3136)
    prompts = load_prompts(str(write_tasks(folder / "tasks", 1).val), chat, media, Limits(64))
    return ModelSpec(str(base)), media, [prompts[10 * number] for number in range(NUM_PROMPTS)]


def engine(spec: ModelSpec, media, **limits: int) -> TorchRollout:
    return TorchRollout(build(spec), media.inputs, stop_ids(spec, load_model_config(spec)), **limits)


def test_greedy_answers_equal_generate(started):
    spec, media, prompts = started
    ours = engine(spec, media, max_num_seqs=5)
    found = [answer.ids for (answer,) in ours.generate(prompts, Sampling(temperature=0, max_tokens=24))]
    assert sum(map(len, found)) >= 32 and len(set(np.concatenate(found).tolist())) >= 8
    assert len({len(ids) for ids in found}) > 1  # ragged ends; five rows for 24 prompts, so slots were refilled
    reference = load_model(spec).eval()
    for prompt, ids in zip(prompts, found, strict=True):
        inputs = ours.packer.prompt_media(prompt)
        given = torch.from_numpy(prompt.ids)[None]
        theirs = reference.generate(
            input_ids=given,
            attention_mask=torch.ones_like(given),
            mm_token_type_ids=ours.packer.positions.token_types(given),
            max_new_tokens=24,
            do_sample=False,
            suppress_tokens=ours.packer.banned.tolist(),
            **inputs,
        )
        assert ids.tolist() == theirs[0, given.shape[1] :].tolist()


def test_log_probs_of_sampled_answers_are_the_trainers(started):
    spec, media, prompts = started
    ours = engine(spec, media, max_num_seqs=7)
    answers = ours.generate(prompts, Sampling(n=4, temperature=1.0, max_tokens=24, seed=5))
    groups = [Group(prompt, [Sample(one) for one in group]) for prompt, group in zip(prompts, answers, strict=True)]
    trainer = TorchTrain(ours.scored, media.inputs, 1.0, Budget(tokens=512))
    for group, scores in zip(groups, trainer.score(groups), strict=True):
        for sample, log_probs in zip(group.samples, scores, strict=True):
            np.testing.assert_allclose(sample.completion.log_probs, log_probs, rtol=0, atol=1e-4)
