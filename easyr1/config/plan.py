"""What is known before a run (Facts) and what follows for it (Plan). Records only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol


class Needs(Protocol):
    """What an advantage estimator asks for."""

    @property
    def min_n(self) -> int:
        """Fewest answers per prompt."""
        ...

    @property
    def values(self) -> bool:
        """Whether it needs a critic."""
        ...

    @property
    def greedy_baseline(self) -> bool:
        """Whether it needs the score of a greedy answer."""
        ...

    @property
    def parts(self) -> bool:
        """Whether it needs the parts of the score, among which a KL in the reward has no place."""
        ...


@dataclass(frozen=True)
class Facts:
    """What the layers above know so far about machine, data and code; None = not known yet, so not checked."""

    device: Literal["cpu", "cuda"] | None = None  # what this machine has
    num_devices: int | None = None  # visible GPUs on this machine
    cluster: bool = False  # ranks go to a cluster that is named already, whatever this machine has
    train_rows: int | None = None  # of an epoch, after the over-long filter and weights
    val_rows: int | None = None
    max_images: int | None = None  # most pictures in one row
    max_videos: int | None = None
    max_prompt_tokens: int | None = None  # longest prompt kept
    vllm_takes_model: bool = True  # whether vLLM can be given the model's pictures, if it has any
    estimators: Mapping[str, Needs] | None = None
    losses: tuple[str, ...] | None = None
    kl_penalties: tuple[str, ...] | None = None
    loggers: tuple[str, ...] | None = None
    unready_loggers: Mapping[str, str] = field(default_factory=dict)  # name -> why it could not start here
    optimizers: tuple[str, ...] | None = None
    vllm: Mapping[str, str] | None = None  # package -> version of each vLLM that is installed
    dry_run: bool = False  # only show the plan: what is missing on this machine is a note instead of an error


@dataclass(frozen=True)
class Plan:
    """Numbers and decisions of a run, worked out once. None = not known yet."""

    device: Literal["cpu", "cuda"] | None
    world_size: int  # ranks that train
    sampling_ranks: int  # others that sample; 0 = those that train do
    rollout_engine: Literal["torch", "vllm"]
    prompts_per_rollout: int
    n: int  # answers per prompt
    samples_per_rollout: int
    prompts_per_update: int  # per optimizer step
    updates_per_rollout: int  # optimizer steps per training step, all ppo_epochs
    samples_per_update_per_rank: int
    on_policy: bool  # one optimizer step per rollout
    steps_per_epoch: int | None
    leftover_rows: int | None  # rows of an epoch that join the next epoch's order
    total_steps: int | None
    kl: Literal["loss", "reward", "off"]
    needs_reference: bool
    old_log_probs: Literal["current", "recomputed", "sampler"]  # what ratios are taken against
    update_budget_tokens: int  # tokens of one pass with gradient; with dynamic_batching
    experience_budget_tokens: int  # tokens of one pass without gradient; with dynamic_batching
    update_micro_samples: int  # samples of one pass with gradient; without dynamic_batching
    experience_micro_samples: int  # samples of one pass without gradient; without dynamic_batching
    param_dtype: str  # "float32", "bfloat16" or "float16"
    compute_dtype: str | None
    reference_dtype: str | None
    warmup_steps: int | None
    run_folder: Path
    reward_name: str | None = None  # REWARD_NAME, once the reward file is read
    notes: tuple[str, ...] = ()  # what the user should know before the run starts

    @property
    def in_driver(self) -> bool:
        """Whether the process that was started is the one rank, so that there are no remote calls."""
        return self.world_size == 1 and not self.sampling_ranks
