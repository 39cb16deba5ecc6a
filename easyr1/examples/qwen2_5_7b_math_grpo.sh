#!/usr/bin/env bash
# GRPO of Qwen2.5-7B on competition mathematics (math12k): 8 GPUs, two for each copy of the sampler.
source "$(dirname "${BASH_SOURCE[0]}")/overrides.sh"

exec python3 -m easyr1.cli.main train \
    config=examples/config.yaml \
    worker.actor.model.model_path=Qwen/Qwen2.5-7B-Instruct \
    worker.rollout.tensor_parallel_size=2 \
    trainer.experiment_name=qwen2_5_7b_math_grpo \
    trainer.n_gpus_per_node=8 \
    "${OVERRIDES[@]}" "$@"
