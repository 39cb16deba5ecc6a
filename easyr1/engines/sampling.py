"""From log-probabilities to tokens: greedy, top-k, top-p and the inverse of the cumulative distribution.

Each answer brings its own uniform numbers, so neither the order of answers nor the company they are in changes a draw.
Shape legend: B answers, V vocabulary.
"""

from typing import Any

import numpy as np
import torch

from easyr1 import seeding
from easyr1.batch import Prompt
from easyr1.engines.protocols import Sampling


class Uniforms:
    """The random numbers of one answer, drawn from the place that it has in the run, in blocks."""

    BLOCK = 64

    def __init__(self, seed: int, prompt: Prompt, answer: int) -> None:
        self._generator = seeding.generator(seed, prompt.epoch, prompt.index, prompt.attempt, answer)
        self._block = np.empty(0)
        self._used = 0

    def next(self) -> float:
        """The next number, in [0, 1)."""
        if self._used == len(self._block):
            self._block = self._generator.random(self.BLOCK)
            self._used = 0
        self._used += 1
        return float(self._block[self._used - 1])


def draw(log_probs: torch.Tensor, uniforms: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """log_probs (B, V), -inf where banned; uniforms (B,) in [0, 1) -> ids (B,).

    Greedy where the temperature is 0. Ties at the top-k border are all kept; top-p keeps the smallest set of most
    likely tokens whose probability reaches `top_p`. A token of probability 0 is never drawn.
    """
    if sampling.temperature == 0:
        return log_probs.argmax(-1)
    probs = log_probs.exp()
    if 0 < sampling.top_k < probs.shape[-1]:
        least = probs.topk(sampling.top_k, -1).values[:, -1:]
        probs = torch.where(probs >= least, probs, 0.0)
    if sampling.top_p < 1:
        probs = _nucleus(probs, sampling.top_p)
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    wanted = uniforms.to(cumulative)[:, None] * cumulative[:, -1:]
    # The first token whose cumulative probability exceeds the wanted one; it adds something, so its own is not 0.
    found = torch.searchsorted(cumulative, wanted, right=True)[:, 0]
    last = probs.shape[-1] - 1 - (probs.flip(-1) > 0).to(torch.int8).argmax(-1)
    return torch.minimum(found, last)


def _nucleus(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Zero outside the smallest set of most likely tokens that holds `top_p` of the mass."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.where(before < top_p * ordered.sum(-1, keepdim=True), ordered, 0.0)
    return torch.zeros_like(probs).scatter(-1, order, kept)


class WholeDistribution(torch.nn.Module):
    """Draws as `inner` does; the log-probs are those before top-k and top-p cut tokens off, as the trainer's are."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        inner.logprobs_mode = "raw_logprobs"  # it need not compute what is not used

    def forward(self, logits: torch.Tensor, *how: Any) -> tuple[torch.Tensor, torch.Tensor]:
        whole = logits.log_softmax(dim=-1, dtype=torch.float32)  # first: `inner` may write to the logits
        drawn, _ = self.inner(logits, *how)
        return drawn, whole
