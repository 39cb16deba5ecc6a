"""Saving and loading a model of about 100M parameters with its optimizer, beside torch.save of the same tensors.

OMP_NUM_THREADS=1 python benchmarks/checkpoint.py [FOLDER ON THE DISK TO MEASURE]

Both sides write the same bytes and end with them on the disk (fsync); ours also hashes every file, and reading checks
the hashes first. Wall seconds, for they are what a run waits.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers
from interleaved import say

from easyr1.engines.optimizer import OptimSpec, state_tensors
from easyr1.engines.pack import Budget
from easyr1.engines.train import TorchTrain
from easyr1.manifest import check_contents, sync, write_manifest
from easyr1.models.build import wrap

ROUNDS = 5


def engine() -> TorchTrain:
    """An engine whose optimizer has taken a step."""
    config = transformers.Qwen2Config(
        vocab_size=32000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=10,
        num_attention_heads=12,
        num_key_value_heads=4,
        tie_word_embeddings=True,
    )
    made = TorchTrain(
        wrap(transformers.AutoModelForCausalLM.from_config(config)),
        lambda _: {},
        1.0,
        Budget(1024, 1, "benchmark"),
        optim=OptimSpec(),
    )
    for parameter in made.scored.parameters():
        parameter.grad = torch.randn_like(parameter)
    assert made.optimizer is not None
    made.optimizer.step()
    made.optimizer.zero_grad(set_to_none=True)
    return made


def whole(made: TorchTrain) -> dict[str, torch.Tensor]:
    assert made.optimizer is not None
    return made.scored.saved_tensors() | state_tensors(made.optimizer, made._names())


def timed(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    torch.set_num_threads(1)
    made = engine()
    count = sum(parameter.numel() for parameter in made.scored.parameters())
    seconds: dict[str, list[float]] = {name: [] for name in ("save", "load", "torch.save", "torch.load")}
    sizes = {}
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        for number in range(ROUNDS + 1):
            ours, theirs = Path(name) / f"ours{number}", Path(name) / f"theirs{number}.pt"
            ours.mkdir()

            def save(folder=ours):
                made.save(folder / "actor")
                write_manifest(folder)

            def load(folder=ours):
                check_contents(folder)
                made.load(folder / "actor")

            def save_plainly(file=theirs):
                torch.save(whole(made), file)
                sync(file)

            def load_plainly(file=theirs):
                found = torch.load(file, weights_only=True)
                for key, tensor in whole(made).items():
                    tensor.copy_(found[key])

            ways = {"save": save, "torch.save": save_plainly, "load": load, "torch.load": load_plainly}
            took = {key: timed(way) for key, way in ways.items()}
            if number:
                for key, value in took.items():
                    seconds[key].append(value)
            sizes = {
                "ours": sum(path.stat().st_size for path in ours.rglob("*") if path.is_file()),
                "torch.save": theirs.stat().st_size,
            }
            for path in (*ours.rglob("*.*"), theirs):
                if path.is_file():
                    path.unlink()
    say(f"{count / 1e6:.0f}M parameters in float32 with AdamW; medians of {ROUNDS}")
    for key, values in seconds.items():
        say(f"{key:>10}  {statistics.median(values):6.2f} s")
    for key, size in sizes.items():
        say(f"{key:>10}  {size / 1e9:6.3f} GB")


if __name__ == "__main__":
    main()
