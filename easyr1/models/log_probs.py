"""Hidden states -> log-probability and entropy of chosen tokens, in chunks: the (tokens x vocabulary) matrix never
exists.

The softmax is over the tokens that may be sampled, at the sampler's temperature, so that trainer and sampler normalise
alike. Shape legend: N chosen tokens, H hidden, V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

from easyr1.algorithms.kl import full

CHUNK_ELEMENTS = 1 << 25  # logits of one chunk: 128 MiB in float32


def normalised(logits: torch.Tensor, banned: torch.Tensor, temperature: float) -> torch.Tensor:
    """(N, V) -> float32 log-probabilities at `temperature`, with -inf at the `banned` ids."""
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    if len(banned):
        scaled = scaled.index_fill(-1, banned, float("-inf"))
    return scaled.log_softmax(-1)


class TokenScores(NamedTuple):
    """What a root module says of N chosen tokens, float32."""

    log_probs: torch.Tensor  # (N,), or a critic's values
    entropy: torch.Tensor  # (N,) of the distribution each token was drawn from
    kl: torch.Tensor  # (N,) its KL divergence to a reference distribution; 0 where none was given


def token_log_probs(
    hidden: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor],
    targets: torch.Tensor,
    banned: torch.Tensor,
    temperature: float,
    entropy_gradient: bool = False,
    against: torch.Tensor | None = None,
) -> TokenScores:
    """hidden (N, H), targets (N,), reference log-probs `against` (N, V) -> scores of the N tokens.

    Log-probs and KL have a gradient, entropies only on request. Where there are several chunks, each one's logits are
    computed again in the backward pass. A banned target has log-prob -inf: do not train on it.
    """

    def chunk(part: torch.Tensor, wanted: torch.Tensor, other: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        log_probs = normalised(head(part), banned, temperature)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy = -full(log_probs, torch.zeros_like(log_probs))
        kl = torch.zeros_like(entropy) if other is None else full(log_probs, other)
        return log_probs.gather(-1, wanted[:, None])[:, 0], entropy, kl

    vocabulary = head(hidden[:1].detach()).shape[-1] if len(hidden) else 1
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    if len(hidden) <= size:
        return TokenScores(*chunk(hidden, targets, against))
    others = against.split(size) if against is not None else [None] * -(-len(hidden) // size)
    parts = [
        checkpoint(chunk, *part, use_reentrant=False)  # with its random state: an adapter on the head may drop
        for part in zip(hidden.split(size), targets.split(size), others, strict=True)
    ]
    return TokenScores(*(torch.cat(column) for column in zip(*parts, strict=True)))
