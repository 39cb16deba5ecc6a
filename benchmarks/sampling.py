"""Sampling groups of answers: our sampler against transformers' `generate`, both greedy: the same tokens.

OMP_NUM_THREADS=1 python benchmarks/sampling.py
"""

import numpy as np
import torch
from interleaved import medians, say
from shared_prefix import VOCABULARY, model

from easyr1.batch import Prompt
from easyr1.engines.protocols import Sampling
from easyr1.engines.rollout_torch import TorchRollout
from easyr1.models.build import wrap

CASES = ((97, 64, 8, 8), (512, 64, 4, 8), (1024, 64, 2, 16))  # prompt tokens, answer tokens, prompts, answers each


def sides(prompt_length: int, answer_length: int, num_prompts: int, answers: int):
    """Functions that sample all answers and return their ids, (prompts * answers, answer_length)."""
    random = np.random.default_rng(0)
    prompts = [
        Prompt(row=row, ids=random.integers(0, VOCABULARY, prompt_length), index=row) for row in range(num_prompts)
    ]
    engine = TorchRollout(wrap(model()), lambda _: {}, frozenset(), max_num_batched_tokens=1 << 20)
    reference = model().eval()
    sampling = Sampling(n=answers, temperature=0, max_tokens=answer_length)
    ids = torch.from_numpy(np.stack([prompt.ids for prompt in prompts])).repeat_interleave(answers, 0)

    def ours() -> np.ndarray:
        return np.concatenate([[answer.ids for answer in group] for group in engine.generate(prompts, sampling)])

    def theirs() -> np.ndarray:
        with torch.no_grad():
            found = reference.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=answer_length,
                min_new_tokens=answer_length,
                do_sample=False,
                pad_token_id=0,
            )
        return found[:, prompt_length:].numpy()

    return {"ours": ours, "generate": theirs}


def main() -> None:
    torch.set_num_threads(1)
    say("prompt answer prompts answers | ours tokens/s  generate tokens/s | ours/generate")
    for case in CASES:
        ways = sides(*case)
        ours, theirs = (way() for way in ways.values())
        if not np.array_equal(ours, theirs):
            raise SystemExit(f"{case}: the two sides sample different tokens")
        times = medians(ways)
        speed = {name: case[1] * case[2] * case[3] / seconds for name, seconds in times.items()}
        say(
            "{:6d} {:6d} {:7d} {:7d} | ".format(*case)
            + "{ours:13,.0f}  {generate:17,.0f} | ".format(**speed)
            + f"{speed['ours'] / speed['generate']:.2f}"
        )


if __name__ == "__main__":
    main()
