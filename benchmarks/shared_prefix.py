"""Forward and backward of groups of answers: what computing a prompt once per group gains.

    OMP_NUM_THREADS=1 python benchmarks/shared_prefix.py

Sides: `shared` (this project's way), `packed` (one packed row in which every answer has its prompt before it, the best
that is possible without sharing), `padded` (transformers' own attention on padded rows). Equal log-probs are checked
first.
"""

import numpy as np
import torch
import transformers
from interleaved import medians, say

from easyr1.batch import Completion, Group, Prompt, Sample
from easyr1.engines.pack import Packer, Piece
from easyr1.models.build import wrap
from easyr1.models.positions import Positions
from easyr1.models.scored import Scored

CASES = ((64, 256, 8), (256, 64, 8), (1024, 64, 8), (1024, 256, 8), (2048, 64, 16))  # prompt, answer tokens, answers
VOCABULARY = 4096


def model() -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    return transformers.AutoModelForCausalLM.from_config(config)


def sides(prompt_length: int, answer_length: int, answers: int):
    """Functions that do one forward and backward, and return the log-probs."""
    random = np.random.default_rng(0)
    prompt = Prompt(row=0, ids=random.integers(0, VOCABULARY, prompt_length))
    samples = [
        Sample(Completion(random.integers(0, VOCABULARY, answer_length), np.zeros(answer_length), "stop", "0", 0))
        for _ in range(answers)
    ]
    groups = [Group(prompt, samples)]
    together = [Piece(0, tuple(range(answers)), 0)]
    apart = [Piece(0, (number,), 0) for number in range(answers)]
    ours, theirs = wrap(model()), Scored(model(), packed=False)

    def step(scored: Scored, pieces: list[Piece]):
        packer = Packer(Positions(scored.model), lambda _: {}, scored.packed, scored.banned)

        def run() -> torch.Tensor:
            batch = packer.micro_batch(groups, pieces, scored.device)
            log_probs = scored(batch.inputs, batch.targets).log_probs
            log_probs.sum().backward()
            return log_probs.detach()

        return run

    return {"shared": step(ours, together), "packed": step(ours, apart), "padded": step(theirs, together)}


def main() -> None:
    torch.set_num_threads(1)
    say("prompt answer answers | shared s  packed s  padded s | packed/shared padded/shared")
    for case in CASES:
        ways = sides(*case)
        shared, packed, padded = (way() for way in ways.values())
        torch.testing.assert_close(shared, packed, rtol=0, atol=1e-4)
        torch.testing.assert_close(shared, padded, rtol=0, atol=1e-4)
        times = medians(ways)
        say(
            "{:6d} {:6d} {:7d} | ".format(*case)
            + "{shared:8.3f}  {packed:8.3f}  {padded:8.3f} | ".format(**times)
            + f"{times['packed'] / times['shared']:13.2f} {times['padded'] / times['shared']:13.2f}"
        )


if __name__ == "__main__":
    main()
