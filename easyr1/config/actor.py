"""Keys of the trained models: `worker.actor`, `worker.ref`, `worker.critic` and the parts they share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from easyr1.config.ranges import AboveOne, Count, CountOrZero, NotNegative, Positive, Share, ShareBelowOne

Dtype = Literal["fp16", "float16", "fp32", "float32", "bf16", "bfloat16"]


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters."""

    rank: CountOrZero = 0
    """Rank of the adapters; 0 = train all weights."""

    alpha: Count = 64
    """Adapters are scaled by alpha / rank."""

    target_modules: str = "all-linear"
    """Layers that get an adapter: all-linear (the output head is none of them), or names or their ends separated by
    commas."""

    exclude_modules: str | None = ".*visual.*"
    """Regular expression of the full names of layers that get none; .*visual.* leaves out the vision tower and its
    projector whatever they are called; null = leave out none."""

    dropout: ShareBelowOne = 0.0
    """Share of an adapter's inputs that are set to 0 in updates. Our own key."""


@dataclass(frozen=True)
class ModelConfig:
    """Which model, and how it is built."""

    model_path: str | None = "Qwen/Qwen2.5-7B-Instruct"
    """Hugging Face name or folder of the model; the critic's null = the actor's."""

    tokenizer_path: str | None = None
    """Hugging Face name or folder of tokenizer and processor; null = model_path."""

    override_config: Mapping[str, Any] = field(default_factory=dict)
    """Any keys of the model's own configuration to change."""

    enable_gradient_checkpointing: bool = True
    """Recompute activations in the backward pass: less memory, about a third more time."""

    trust_remote_code: bool = False
    """Run Python code that comes with the model."""

    freeze_vision_tower: bool = False
    """Leave the vision encoder untrained."""

    lora: LoraConfig = field(default_factory=LoraConfig)


@dataclass(frozen=True)
class OptimConfig:
    """Optimizer and learning rate."""

    lr: NotNegative = 1e-6
    """Peak learning rate."""

    betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.999)
    """Decay of the two moment averages of Adam."""

    weight_decay: NotNegative = 1e-2
    """Decoupled weight decay of matrices; norms and biases have none."""

    strategy: Literal["adamw", "adamw_bf16"] = "adamw"
    """adamw, or adamw_bf16 for bfloat16 weights (set fsdp.torch_dtype=bf16 with it): what rounding takes off an update
    is kept for the next ones. A weight, its gradient and its state take 12 bytes, with float32 weights 16."""

    lr_warmup_ratio: Share = 0.0
    """Share of all steps over which the learning rate rises."""

    lr_warmup_steps: CountOrZero | None = None
    """Steps over which the learning rate rises; wins over lr_warmup_ratio."""

    min_lr_ratio: Share | None = None
    """Learning rate at the end of cosine and linear, as a share of lr; null = 0."""

    lr_scheduler_type: Literal["constant", "cosine", "linear"] = "constant"
    """Course of the learning rate after the warm-up: constant, or a fall to min_lr_ratio x lr at the end, as half a
    cosine or in a straight line."""


@dataclass(frozen=True)
class FsdpConfig:
    """Sharding and precision of one model."""

    enable_full_shard: bool = True
    """Let go of whole weights after each layer and gather them again for its gradients; false = keep them through a
    pass: less traffic, more memory. Shards are what lies in memory between passes in both cases."""

    enable_cpu_offload: bool = False
    """Keep shards in host memory and bring them in layer by layer; on a CPU it means nothing."""

    enable_rank0_init: bool = True
    """Read the weights on the first rank alone and hand them to the others tensor by tensor; false = every rank reads
    them all."""

    use_orig_params: bool = False
    """Accepted for compatibility; parameters always keep their own shape."""

    torch_dtype: Dtype | None = None
    """Precision of the stored weights; null = float32 for trained models, the compute precision for the reference."""

    fsdp_size: int = -1
    """Ranks that share one copy of the weights, which the others repeat; -1 = all."""

    reduce_each_micro_batch: bool = False
    """Add gradients over ranks after each micro-batch instead of once an update: more traffic, less memory. If false,
    every rank of several holds the gradients of all trained weights whole in mp_reduce_dtype, from the first
    micro-batch on: 4 bytes a weight in float32, 128 GB for 32 billion. Our own key."""

    mp_param_dtype: Dtype | None = None
    """Precision of the computation; null = bfloat16 on GPUs, and on a CPU torch_dtype or else float32."""

    mp_reduce_dtype: Dtype = "fp32"
    """Precision in which gradients are added over ranks."""

    mp_buffer_dtype: Dtype = "fp32"
    """Accepted for compatibility; buffers keep the precision that the model's class gives them."""


@dataclass(frozen=True)
class OffloadConfig:
    """What waits in host memory while the sampler has the GPU."""

    offload_params: bool = False
    """Move weights to host memory between uses: less GPU memory, more host memory and time."""

    offload_optimizer: bool = False
    """Move optimizer state to host memory between uses."""


@dataclass(frozen=True)
class ActorConfig:
    """The policy."""

    strategy: Literal["fsdp"] = "fsdp"
    """Accepted for compatibility; there is one strategy."""

    global_batch_size: Count = 128
    """Prompts (with all their answers) per optimizer step. Equal to data.rollout_batch_size = strictly on-policy."""

    micro_batch_size_per_device_for_update: Count = 1
    """Samples per forward and backward pass on one device; with dynamic_batching, the token budget of a pass in
    units of max_prompt_length + max_response_length."""

    micro_batch_size_per_device_for_experience: Count = 2
    """The same for passes without gradient (log-probabilities of policy and reference)."""

    max_grad_norm: Positive = 1.0
    """Gradients with a larger norm are scaled down to it."""

    clip_ratio_low: ShareBelowOne = 0.2
    """Probability ratios below 1 - clip_ratio_low are clipped."""

    clip_ratio_high: NotNegative = 0.3
    """Probability ratios above 1 + clip_ratio_high are clipped."""

    clip_ratio_dual: AboveOne = 3.0
    """Dual clip: the loss of a sample with negative advantage is at most this times the size of its advantage."""

    loss_avg_mode: Literal["token", "seq", "seq_sum_const"] = "token"
    """token = mean over all tokens of the mini-batch; seq = mean over samples of their means; seq_sum_const = sum over
    tokens, divided by samples x data.max_response_length (Dr. GRPO)."""

    loss_type: str = "default"
    """Policy loss; docs/algorithms.md lists the names."""

    entropy_coef: NotNegative = 0.0
    """Weight of an entropy bonus in the loss. Our own key."""

    old_log_probs: Literal["auto", "recompute", "sampler"] = "auto"
    """Log-probabilities that probability ratios are taken against: auto = the current ones where a rollout is trained
    in one optimizer step, else computed once before the update; recompute = computed in any case; sampler = those of
    the sampler, without a pass of their own. Our own key."""

    ppo_epochs: Count = 1
    """Passes over each rollout."""

    padding_free: bool = True
    """Compute real tokens only; false = padded batches."""

    dynamic_batching: bool = True
    """Cut micro-batches by tokens instead of by samples."""

    ulysses_size: Count = 1
    """Ranks that share one sequence."""

    use_torch_compile: bool = True
    """Accepted for compatibility; log-probabilities are computed in chunks without a compiler."""

    tau_positive: Positive = 1.0
    """Temperature for positive advantages (loss sapo)."""

    tau_negative: Positive = 1.05
    """Temperature for negative advantages (loss sapo)."""

    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    fsdp: FsdpConfig = field(default_factory=FsdpConfig)
    offload: OffloadConfig = field(default_factory=lambda: OffloadConfig(offload_params=True, offload_optimizer=True))


@dataclass(frozen=True)
class RefConfig:
    """The reference model. Its weights and batch sizes are the actor's."""

    strategy: Literal["fsdp"] = "fsdp"
    """Accepted for compatibility; there is one strategy."""

    fsdp: FsdpConfig = field(default_factory=lambda: FsdpConfig(enable_cpu_offload=True))
    offload: OffloadConfig = field(default_factory=OffloadConfig)


def _critic_model() -> ModelConfig:
    return ModelConfig(model_path=None, lora=LoraConfig(exclude_modules=None))


@dataclass(frozen=True)
class CriticConfig:
    """The value model; only estimators that need values have one."""

    strategy: Literal["fsdp"] = "fsdp"
    """Accepted for compatibility; there is one strategy."""

    global_batch_size: Count = 256
    """Prompts (with all their answers) per optimizer step."""

    micro_batch_size_per_device_for_update: Count = 4
    """As the actor's."""

    micro_batch_size_per_device_for_experience: Count = 16
    """As the actor's."""

    max_grad_norm: Positive = 1.0
    """Gradients with a larger norm are scaled down to it."""

    cliprange_value: Positive = 0.5
    """Values may move this far from the old ones."""

    loss_avg_mode: Literal["token", "seq"] = "token"
    """As the actor's."""

    ppo_epochs: Count = 1
    """Passes over each rollout."""

    padding_free: bool = True
    """Compute real tokens only; false = padded batches."""

    dynamic_batching: bool = True
    """Cut micro-batches by tokens instead of by samples."""

    ulysses_size: Count = 1
    """Ranks that share one sequence."""

    model: ModelConfig = field(default_factory=_critic_model)
    optim: OptimConfig = field(default_factory=OptimConfig)
    fsdp: FsdpConfig = field(default_factory=FsdpConfig)
    offload: OffloadConfig = field(default_factory=OffloadConfig)
