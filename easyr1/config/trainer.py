"""Keys of `trainer`: how long, on which devices, what is validated, saved and logged."""

from dataclasses import dataclass
from typing import Literal

from easyr1.config.ranges import Count, CountOrOff, CountOrZero, Positive


@dataclass(frozen=True)
class TrainerConfig:
    """Length of the run, devices, validation, checkpoints, logs."""

    total_epochs: Count = 15
    """Passes over the training rows. An epoch has floor(rows / data.rollout_batch_size) steps."""

    max_steps: Count | None = None
    """Training steps, in place of total_epochs; null = total_epochs decides."""

    project_name: str = "easy_r1"
    """Name of the project in trackers and in the default run folder."""

    experiment_name: str = "qwen2_5_7b_math_grpo"
    """Name of the run in trackers and in the default run folder."""

    logger: tuple[str, ...] = ("console", "file")
    """Where metrics go: console, file, wandb, swanlab, mlflow, tensorboard, trackio, several at a time."""

    console: Literal["full", "quiet", "json"] = "full"
    """What a run says: full = the plan, progress of all that lasts, a line a step and a validation; quiet = the lines
    and warnings alone; json = one JSON object a line, and nothing else, on the standard output. Our own key."""

    nnodes: Count = 1
    """Machines of a Ray cluster, which more than one needs."""

    n_gpus_per_node: Count | None = None
    """Ranks on each machine, each on a GPU of its own or, with trainer.device=cpu, on the CPU; null = one for each GPU
    that this machine has, one on the CPU."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train: auto = GPUs if there are any. Our own key."""

    max_try_make_batch: int = 20
    """Draws per step before online filtering gives up; 0 or less = no limit."""

    critic_warmup: CountOrZero = 0
    """Steps in which only the critic is trained."""

    val_freq: CountOrOff = 5
    """Steps between validations; -1 = only after the last step."""

    val_before_train: bool = True
    """Validate before the first step; a resumed run validates first only what it still owes."""

    val_only: bool = False
    """Validate once and stop."""

    val_generations_to_log: CountOrZero = 3
    """Validation answers written out each time, always for the same rows."""

    save_freq: CountOrOff = 5
    """Steps between checkpoints; -1 = only after the last step."""

    save_limit: CountOrOff = 3
    """Checkpoints kept, counted over restarts; best and last always stay; -1 = all."""

    save_model_only: bool = False
    """Save weights without the optimizer: a resumed run starts its optimizer anew."""

    save_checkpoint_path: str | None = None
    """Run folder; null = checkpoints/<project_name>/<experiment_name>."""

    load_checkpoint_path: str | None = None
    """Checkpoint to resume from: global_step_<number>, its actor folder, a run folder (its last one), best or last."""

    ray_timeline: str | None = None
    """File for a timeline of the remote calls."""

    hang_timeout_s: Positive = 1800
    """Seconds without progress after which the run ends; with more than one rank. Progress is an answer that ends, a
    micro-batch scored or trained, weights or optimizer state saved, or the end of any other call; so it bounds the
    longest of these, not a whole step. Our own key."""

    find_last_checkpoint: bool = True
    """Resume from the last complete checkpoint in the run folder if there is one and what is learnt was set alike."""
