#!/usr/bin/env bash
# GRPO of Qwen3-4B on math12k with adapters: 1 GPU.
source "$(dirname "${BASH_SOURCE[0]}")/overrides.sh"

exec python3 -m easyr1.cli.main train \
    config=examples/config.yaml \
    data.max_response_length=2048 \
    worker.actor.model.model_path=Qwen/Qwen3-4B \
    worker.actor.model.lora.rank=64 \
    worker.actor.model.lora.alpha=64 \
    worker.actor.optim.lr=1e-5 \
    worker.rollout.tensor_parallel_size=1 \
    trainer.experiment_name=qwen3_4b_math_grpo_lora \
    trainer.n_gpus_per_node=1 \
    "${OVERRIDES[@]}" "$@"
