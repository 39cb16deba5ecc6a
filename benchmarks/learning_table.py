"""Nine algorithms on the quickstart: does each one learn? Prints a table for docs/experiments.md.

    OMP_NUM_THREADS=1 python benchmarks/learning_table.py [FOLDER] [NAME ...]

Each run is `easyr1 quickstart algorithm.adv_estimator=NAME` with the settings below, for at most 60 steps. What the
quickstart's own configuration changes from a recipe is printed with the run.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from interleaved import say

from easyr1.config.load import load
from easyr1.config.recipes import RECIPES
from easyr1.config.schema import known_keys, walk

NAMES = ("grpo", "dapo", "reinforce_plus_plus", "remax", "rloo", "gspo", "cispo", "sapo", "gae")
STEPS = 60
# Two updates a rollout, so that ratios leave 1 and the losses differ; the critic learns as fast as the policy.
COMMON = [f"trainer.max_steps={STEPS}", "trainer.val_freq=-1", "worker.actor.global_batch_size=24"]
CRITIC = [
    "worker.critic.global_batch_size=24",
    "worker.critic.optim.lr=1e-3",
    "worker.critic.micro_batch_size_per_device_for_update=32",
    "worker.critic.model.enable_gradient_checkpointing=false",
]
# With dynamic sampling nearly every answer is right after 39 steps, and too few groups are left to learn from.
OWN = {"gae": CRITIC, "dapo": ["trainer.max_steps=30"]}
SETTINGS = "config=examples/quickstart/config.yaml"


def arguments(name: str) -> list[str]:
    return [f"algorithm.adv_estimator={name}", *COMMON, *OWN.get(name, [])]


def run(name: str, folder: Path) -> dict[str, float]:
    """Train one; its validation accuracy before and after."""
    command = [sys.executable, "-m", "easyr1.cli.main", "quickstart", *arguments(name)]
    with (folder.parent / f"{folder.name}.log").open("w") as log:
        subprocess.run([*command, f"trainer.save_checkpoint_path={folder}"], check=True, stdout=log, stderr=log)
    accuracy = json.loads((folder / "report.json").read_text())["validation"]["accuracy"]
    return {"first": accuracy["first"], "last": accuracy["last"]}


def overridden(name: str) -> list[str]:
    """Settings of the recipe that the quickstart's configuration or this script changes."""
    config, _ = load([SETTINGS, *arguments(name)])
    values = {key: value for key, _, value in walk(config)}
    recipe = RECIPES[name].settings if name in RECIPES else {}
    return [f"{key}={values[key]}" for key, wanted in recipe.items() if values[key] != wanted]


def changed() -> list[str]:
    """What the quickstart's configuration changes from the defaults, for every run alike."""
    config, _ = load([SETTINGS])
    defaults = {key: default for key, (_, default) in known_keys().items()}
    own = ("data.train_files", "data.val_files", "worker.actor.model.model_path", "trainer.project_name")
    return [f"{key}={value}" for key, _, value in walk(config) if value != defaults[key] and key not in own]


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    say("changed from the defaults by the quickstart: " + ", ".join(changed()))
    say("changed for this table: " + ", ".join(COMMON[1:]))
    say("; ".join(f"for {name} also {', '.join(own)}" for name, own in OWN.items()) + "\n")
    say("| algorithm | accuracy before | after | gain | of its recipe overridden |\n|---|---|---|---|---|")
    for name in sys.argv[2:] or NAMES:
        found = run(name, folder / name)
        gain = found["last"] - found["first"]
        rest = ", ".join(overridden(name)) or "nothing"
        say(f"| {name} | {found['first']:.3f} | {found['last']:.3f} | {gain:+.3f} | {rest} |")


if __name__ == "__main__":
    main()
