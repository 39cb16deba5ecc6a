#!/usr/bin/env bash
# GRPO of Qwen2.5-VL-3B on counting objects (CLEVR): 2 GPUs.
source "$(dirname "${BASH_SOURCE[0]}")/../overrides.sh"

exec python3 -m easyr1.cli.main train \
    config=examples/config.yaml \
    data.train_files=BUAADreamer/clevr_count_70k@train \
    data.val_files=BUAADreamer/clevr_count_70k@test \
    data.format_prompt=./examples/format_prompt/r1v.jinja \
    worker.actor.model.model_path=Qwen/Qwen2.5-VL-3B-Instruct \
    worker.rollout.tensor_parallel_size=1 \
    worker.reward.reward_function=./examples/reward_function/r1v.py:compute_score \
    trainer.experiment_name=qwen2_5_vl_3b_clevr \
    trainer.n_gpus_per_node=2 \
    "${OVERRIDES[@]}" "$@"
