#!/usr/bin/env bash
# GRPO of Qwen2.5-VL-7B on Geometry3K: 8 GPUs.
source "$(dirname "${BASH_SOURCE[0]}")/overrides.sh"

exec python3 -m easyr1.cli.main train \
    config=examples/config.yaml \
    data.train_files=hiyouga/geometry3k@train \
    data.val_files=hiyouga/geometry3k@test \
    worker.actor.model.model_path=Qwen/Qwen2.5-VL-7B-Instruct \
    trainer.experiment_name=qwen2_5_vl_7b_geo3k_grpo \
    trainer.n_gpus_per_node=8 \
    "${OVERRIDES[@]}" "$@"
