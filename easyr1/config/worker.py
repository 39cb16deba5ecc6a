"""Keys of `worker`: the models, the sampler and the reward function."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from easyr1.config.actor import ActorConfig, CriticConfig, Dtype, RefConfig
from easyr1.config.ranges import AboveOne, Count, CountOrOff, CountOrZero, NotNegative, Positive, PositiveShare


def _validation_sampling() -> dict[str, Any]:
    return {"temperature": 0.6, "top_p": 0.95, "n": 1}


@dataclass(frozen=True)
class RolloutConfig:
    """How answers are sampled."""

    name: Literal["auto", "torch", "vllm"] = "auto"
    """Sampler: torch = with the trained module itself, on CPU or GPU; vllm = the vLLM engine (docs/vllm.md); auto =
    vllm where there are a GPU, a vLLM of the right version and a model that it takes, and no videos."""

    n: Count = 5
    """Answers per prompt; together they form a group."""

    temperature: NotNegative = 1.0
    """Sampling temperature. Must be above 0 in training."""

    top_p: PositiveShare = 1.0
    """Sample from the most probable tokens that together reach this probability; 1 = from all."""

    top_k: CountOrOff = -1
    """Sample from this many most probable tokens; -1 = from all."""

    seed: int = 1
    """Seed of sampling. Every answer has its own stream of random numbers, given by seed, prompt, draw and answer;
    with vllm every batch has, unless seed_answers is true."""

    seed_answers: bool = False
    """With vllm: give every answer its own random numbers, so that they depend on seed, prompt, draw and answer
    alone; slower. The torch sampler always does. Our own key."""

    probe_freq: CountOrZero = 20
    """With vllm: sampler and trainer score one answer to one prompt before the first step and after every so many
    updates of the sampler's weights, and the run stops where they part; 0 = before the first step only. Our own
    key."""

    limit_images: CountOrZero = 0
    """Most pictures in a row; 0 = no limit."""

    dtype: Dtype | None = None
    """Precision of the sampler; null = the policy's compute precision."""

    gpu_memory_utilization: PositiveShare = 0.6
    """Share of GPU memory that the vLLM engine takes."""

    ignore_eos: bool = False
    """Go on to max_response_length instead of stopping at the end-of-sequence token."""

    enforce_eager: bool = False
    """Run vLLM without CUDA graphs."""

    enable_chunked_prefill: bool = False
    """Let vLLM prefill long prompts in pieces."""

    tensor_parallel_size: Count = 1
    """GPUs that share one copy of the sampler's model; with vllm."""

    n_gpus: Count | None = None
    """With worker.hybrid_engine=false: how many ranks sample, on a GPU each (processes on a CPU), beside the
    trainer.nnodes x trainer.n_gpus_per_node ranks that train. Our own key."""

    max_model_len: Count | None = None
    """Longest prompt and answer together, in tokens; null = max_prompt_length + max_response_length."""

    max_num_batched_tokens: Count = 8192
    """Most prompt tokens that the sampler computes in one pass."""

    disable_log_stats: bool = True
    """Keep vLLM from printing statistics."""

    disable_tqdm: bool = False
    """Show no progress while sampling."""

    val_override_config: Mapping[str, Any] = field(default_factory=_validation_sampling)
    """Sampling settings of validation: n, temperature, top_p, top_k, max_tokens. What is not listed is as in
    training, except n, which is then 1. An empty mapping takes all defaults of this key away."""

    correction: Literal["none", "tis", "mis", "icepop", "seq_mask"] = "none"
    """Importance weights where sampler and trainer differ in how likely a token was: tis truncates them, mis and
    icepop mask tokens, seq_mask masks samples (docs/algorithms.md). none, as a sampler that shares the trainer's
    weights and code does not differ. Our own key."""

    correction_cap: AboveOne = 2.0
    """Largest ratio that the correction lets pass; icepop and seq_mask also mask below its inverse. Our own key."""

    engine_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments for the sampling engine: max_num_seqs, the answers decoded together; with vllm all that
    vllm.LLM takes, but for what the trainer sets itself (docs/vllm.md). Our own key."""


@dataclass(frozen=True)
class RewardConfig:
    """How answers are scored."""

    reward_function: str | None = "./examples/reward_function/math.py:compute_score"
    """Python file and function, file.py:function; without a function name, `main`."""

    reward_function_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments passed to the reward function in every call."""

    skip_special_tokens: bool = True
    """Leave special tokens out of the text that the reward function sees."""

    num_cpus: Count = 1
    """Accepted for compatibility; one process scores all answers."""

    timeout_s: Positive = 300.0
    """Seconds that one call of the reward function may take: a call with the whole batch, or with one sample if
    sequential. Our own key."""


@dataclass(frozen=True)
class WorkerConfig:
    """Models, sampler and reward."""

    hybrid_engine: bool = True
    """Training and sampling share the same devices; false = worker.rollout.n_gpus other ones sample, which are sent
    the weights after every update (docs/distributed.md)."""

    actor: ActorConfig = field(default_factory=ActorConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    ref: RefConfig = field(default_factory=RefConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
