"""Sampling for models that need the padded layout: Hugging Face's `generate`, each token drawn by us."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from easyr1.batch import Prompt
from easyr1.engines.pack import Packer
from easyr1.engines.protocols import Sampling
from easyr1.engines.sampling import Uniforms, draw
from easyr1.models.log_probs import normalised
from easyr1.models.scored import Scored


class AnswerInProgress(Protocol):
    """What is filled in while an answer grows."""

    uniforms: Uniforms
    ids: list[int]
    log_probs: list[float]
    finish_reason: str


class _Draw(LogitsProcessor):
    """Draws each answer's next token itself and leaves greedy decoding no other choice."""

    def __init__(self, scored: Scored, answers: Sequence[Any], sampling: Sampling, stops: frozenset[int]) -> None:
        self.scored, self.answers, self.sampling, self.stops = scored, answers, sampling, stops

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.Tensor:  # type: ignore[override]
        log_probs = normalised(scores, self.scored.banned, self.sampling.temperature or 1.0)
        uniforms = [0.0 if answer.finish_reason else answer.uniforms.next() for answer in self.answers]
        ids = draw(log_probs, torch.tensor(uniforms, dtype=torch.float64, device=scores.device), self.sampling)
        taken = log_probs.gather(-1, ids[:, None])[:, 0].tolist()
        for answer, token, log_prob in zip(self.answers, ids.tolist(), taken, strict=True):
            if answer.finish_reason:
                continue
            answer.ids.append(token)
            answer.log_probs.append(log_prob)
            if token in self.stops:
                answer.finish_reason = "stop"
            elif len(answer.ids) >= self.sampling.max_tokens:
                answer.finish_reason = "length"
        forced = torch.full_like(scores, float("-inf"))
        forced.scatter_(-1, ids[:, None], 0.0)
        return forced


def generate_padded(
    scored: Scored,
    packer: Packer,
    prompt: Prompt,
    answers: Sequence[AnswerInProgress],
    sampling: Sampling,
    stops: frozenset[int],
) -> None:
    """Fill the answers of one prompt, all together in one batch without padding."""
    device = scored.device
    ids = torch.from_numpy(prompt.ids)[None].expand(len(answers), -1).to(device)
    media = {
        name: torch.cat([tensor] * len(answers)).to(device) for name, tensor in packer.prompt_media(prompt).items()
    }
    if media:
        media["mm_token_type_ids"] = packer.positions.token_types(ids)
    config = GenerationConfig(
        max_new_tokens=sampling.max_tokens,
        do_sample=False,
        eos_token_id=sorted(stops) or None,
        pad_token_id=packer.stand_in,
    )
    scored.model.generate(  # type: ignore[operator]
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        generation_config=config,
        logits_processor=LogitsProcessorList([_Draw(scored, answers, sampling, stops)]),
        **media,
    )
