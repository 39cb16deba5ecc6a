"""Does it matter to learning who samples? The first ten steps of the quickstart with each sampler, over three seeds.

    export PYTHONPATH=tests/torchvision_on_cpu TORCHDYNAMO_DISABLE=1
    python benchmarks/quickstart_samplers.py FOLDER [key=value ...]

In an environment with vLLM (docs/vllm.md). Prints a Markdown table of the mean reward of steps 6 to 10 and ends with
status 1 where the samplers' means over the seeds differ by 0.05 or more. All runs start from one base model.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from easyr1.cli.main import calm_threads

SAMPLERS, SEEDS = ("torch", "vllm"), (1, 2, 3)
STEPS, LAST = 10, 5
ALLOWED = 0.05


def main(arguments: Sequence[str]) -> int:
    calm_threads()
    from easyr1.cli.quickstart import SETTINGS, make_inputs
    from easyr1.config.load import load

    folder, settings = Path(arguments[0]).absolute(), arguments[1:]
    base, rows = make_inputs(load([SETTINGS, *settings])[0], folder, Console(stderr=True))
    paths = [f"data.train_files={rows.train}", f"data.val_files={rows.val}", f"worker.actor.model.model_path={base}"]
    found = {
        (sampler, seed): reward([SETTINGS, *paths, *settings], folder, sampler, seed)
        for seed in SEEDS
        for sampler in SAMPLERS
    }
    means = {sampler: sum(found[sampler, seed] for seed in SEEDS) / len(SEEDS) for sampler in SAMPLERS}
    lines = ["| seed | torch | vllm |", "|---|---|---|"]
    lines += [f"| {seed} | {found['torch', seed]:.3f} | {found['vllm', seed]:.3f} |" for seed in SEEDS]
    lines += [f"| mean | {means['torch']:.3f} | {means['vllm']:.3f} |"]
    sys.stdout.write("\n".join(lines) + "\n")
    return int(abs(means["torch"] - means["vllm"]) >= ALLOWED)


def reward(settings: Sequence[str], folder: Path, sampler: str, seed: int) -> float:
    """The mean reward of the last steps of one run."""
    from easyr1.cli.train import train
    from easyr1.config.load import load

    run = folder / f"{sampler}-{seed}"
    config, given = load(
        [
            *settings,
            f"worker.rollout.name={sampler}",
            "worker.rollout.enforce_eager=true",
            f"data.seed={seed}",
            f"worker.rollout.seed={seed}",
            f"trainer.max_steps={STEPS}",
            "trainer.val_before_train=false",
            "trainer.val_freq=-1",
            f"trainer.save_checkpoint_path={run}",
        ]
    )
    train(config, given, Console(stderr=True))
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = {row["step"]: row["reward/overall"] for row in logged if "reward/overall" in row}
    return sum(steps[step] for step in range(STEPS - LAST + 1, STEPS + 1)) / LAST


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
