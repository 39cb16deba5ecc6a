#!/usr/bin/env bash
# GRPO of Qwen3-VL-4B on Geometry3K: 2 GPUs.
source "$(dirname "${BASH_SOURCE[0]}")/overrides.sh"

exec python3 -m easyr1.cli.main train \
    config=examples/config.yaml \
    data.train_files=hiyouga/geometry3k@train \
    data.val_files=hiyouga/geometry3k@test \
    worker.actor.model.model_path=Qwen/Qwen3-VL-4B-Instruct \
    trainer.experiment_name=qwen3_vl_4b_geo3k_grpo \
    trainer.n_gpus_per_node=2 \
    "${OVERRIDES[@]}" "$@"
