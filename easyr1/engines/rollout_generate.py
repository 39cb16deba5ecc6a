"""Sampling for models that need the padded layout: one prompt at a time through the model's own generation."""

from collections.abc import Sequence
from typing import Protocol

import torch

from easyr1.batch import Prompt
from easyr1.engines.pack import Packer
from easyr1.engines.protocols import Sampling
from easyr1.engines.sampling import Uniforms, draw
from easyr1.models.generation import generate
from easyr1.models.log_probs import normalised
from easyr1.models.positions import token_types
from easyr1.models.scored import Scored


class AnswerInProgress(Protocol):
    """What is filled in while an answer grows."""

    uniforms: Uniforms
    finish_reason: str

    def take(self, token: int, log_prob: float, sampling: Sampling, stop_ids: frozenset[int]) -> None: ...


def generate_padded(
    scored: Scored,
    packer: Packer,
    prompt: Prompt,
    answers: Sequence[AnswerInProgress],
    sampling: Sampling,
    stop_ids: frozenset[int],
) -> None:
    """Fill the answers of one prompt, all together in one batch without padding."""
    device = scored.device
    ids = torch.from_numpy(prompt.ids)[None].expand(len(answers), -1).to(device)
    media = {
        name: scored.taken(torch.cat([tensor] * len(answers)).to(device))
        for name, tensor in packer.prompt_media(prompt).items()
    }
    if media:
        media |= dict.fromkeys(scored.type_names, token_types(ids, scored.model.config))

    def choose(logits: torch.Tensor) -> torch.Tensor:
        log_probs = normalised(logits, scored.banned, sampling.temperature or 1.0)
        uniforms = [0.0 if answer.finish_reason else answer.uniforms.next() for answer in answers]
        drawn = draw(log_probs, torch.tensor(uniforms, dtype=torch.float64, device=device), sampling)
        taken = log_probs.gather(-1, drawn[:, None])[:, 0].tolist()
        for answer, token, log_prob in zip(answers, drawn.tolist(), taken, strict=True):
            if not answer.finish_reason:
                answer.take(token, log_prob, sampling, stop_ids)
        return drawn

    with scored.precision():
        generate(scored.model, ids, media, choose, sampling.max_tokens, stop_ids, packer.stand_in)
