"""Hidden states -> log-probability and entropy of chosen tokens, in chunks: the (tokens x vocabulary) matrix never
exists.

The softmax is over the tokens that may be sampled, at the sampler's temperature, so that trainer and sampler normalise
alike. Shape legend: N chosen tokens, H hidden, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

CHUNK_ELEMENTS = 1 << 25  # logits of one chunk: 128 MiB in float32


def normalised(logits: torch.Tensor, banned: torch.Tensor, temperature: float) -> torch.Tensor:
    """(N, V) -> float32 log-probabilities at `temperature`, with -inf at the `banned` ids."""
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    if len(banned):
        scaled = scaled.index_fill(-1, banned, float("-inf"))
    return scaled.log_softmax(-1)


def token_log_probs(
    hidden: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor],
    targets: torch.Tensor,
    banned: torch.Tensor,
    temperature: float,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """hidden (N, H), targets (N,) -> log-probs (N,) and entropies (N,), float32; entropies have a gradient on request.

    Where there are several chunks, each one's logits are computed again in the backward pass. A banned target has
    log-prob -inf: do not train on it.
    """

    def chunk(part: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log_probs = normalised(head(part), banned, temperature)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            probs = log_probs.exp()
            entropy = -(probs * torch.where(probs > 0, log_probs, 0.0)).sum(-1)  # 0 * -inf would be NaN
        return log_probs.gather(-1, wanted[:, None])[:, 0], entropy

    vocabulary = head(hidden[:1].detach()).shape[-1] if len(hidden) else 1
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    if len(hidden) <= size:
        return chunk(hidden, targets)
    parts = [
        checkpoint(chunk, part, wanted, use_reentrant=False, preserve_rng_state=False)
        for part, wanted in zip(hidden.split(size), targets.split(size), strict=True)
    ]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
