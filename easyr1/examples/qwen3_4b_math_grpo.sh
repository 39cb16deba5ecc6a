#!/usr/bin/env bash
# GRPO of Qwen3-4B on math12k, with room to think: 8 GPUs.
source "$(dirname "${BASH_SOURCE[0]}")/overrides.sh"

exec python3 -m easyr1.cli.main train \
    config=examples/config.yaml \
    data.max_response_length=4096 \
    worker.actor.model.model_path=Qwen/Qwen3-4B \
    trainer.experiment_name=qwen3_4b_math_grpo \
    trainer.n_gpus_per_node=8 \
    "${OVERRIDES[@]}" "$@"
