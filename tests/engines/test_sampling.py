"""Drawing one token: cuts, greedy, and frequencies that follow the distribution."""

import numpy as np
import pytest
import torch

from easyr1.batch import Prompt
from easyr1.engines.protocols import Sampling
from easyr1.engines.sampling import Uniforms, draw

PROBS = torch.tensor([0.0, 0.1, 0.5, 0.0, 0.25, 0.15])


def drawn(sampling: Sampling, uniforms: torch.Tensor, probs: torch.Tensor = PROBS) -> torch.Tensor:
    return draw(probs.log()[None].expand(len(uniforms), -1), uniforms, sampling)


def shares(sampling: Sampling) -> list[float]:
    uniforms = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    return (drawn(sampling, uniforms).bincount(minlength=6) / 20_000).tolist()


@pytest.mark.parametrize(
    "sampling, wanted",
    (
        (Sampling(), [0, 0.1, 0.5, 0, 0.25, 0.15]),
        (Sampling(top_k=2), [0, 0, 2 / 3, 0, 1 / 3, 0]),
        (Sampling(top_p=0.5), [0, 0, 1, 0, 0, 0]),
        (Sampling(top_p=0.76), [0, 0, 0.5 / 0.9, 0, 0.25 / 0.9, 0.15 / 0.9]),
        (Sampling(top_k=3, top_p=0.6), [0, 0, 2 / 3, 0, 1 / 3, 0]),
        (Sampling(top_k=100), [0, 0.1, 0.5, 0, 0.25, 0.15]),
        (Sampling(temperature=0), [0, 0, 1, 0, 0, 0]),
    ),
)
def test_shares_follow_the_cut_distribution(sampling, wanted):
    assert shares(sampling) == pytest.approx(wanted, abs=1e-3)


def test_impossible_tokens_are_never_drawn_even_at_the_ends():
    ends = torch.tensor([0.0, 1e-300, 1 - 2**-53], dtype=torch.float64)
    assert drawn(Sampling(), ends).tolist() == [1, 1, 5]
    assert drawn(Sampling(), ends, PROBS.flip(0)).tolist() == [0, 0, 4]


def test_the_stream_of_an_answer_is_uniform_and_its_own():
    prompt = Prompt(row=0, ids=np.arange(3), epoch=2, index=5)
    first, again, other = Uniforms(1, prompt, 0), Uniforms(1, prompt, 0), Uniforms(1, prompt, 1)
    numbers = [first.next() for _ in range(1000)]
    assert numbers == [again.next() for _ in range(1000)]
    assert numbers[:5] != [other.next() for _ in range(5)]
    assert 0.45 < np.mean(numbers) < 0.55 and min(numbers) >= 0 and max(numbers) < 1 and len(set(numbers)) == 1000
