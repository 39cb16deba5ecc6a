#!/usr/bin/env bash
# GRPO of Qwen2.5-VL-3B on geometry questions (GeoQA-8K): 8 GPUs.
source "$(dirname "${BASH_SOURCE[0]}")/../overrides.sh"

exec python3 -m easyr1.cli.main train \
    config=examples/config.yaml \
    data.train_files=leonardPKU/GEOQA_8K_R1V@train \
    data.val_files=leonardPKU/GEOQA_8K_R1V@test \
    data.format_prompt=./examples/format_prompt/r1v.jinja \
    worker.actor.model.model_path=Qwen/Qwen2.5-VL-3B-Instruct \
    worker.rollout.tensor_parallel_size=1 \
    worker.reward.reward_function=./examples/reward_function/r1v.py:compute_score \
    trainer.experiment_name=qwen2_5_vl_3b_geoqa8k \
    trainer.n_gpus_per_node=8 \
    "${OVERRIDES[@]}" "$@"
