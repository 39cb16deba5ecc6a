#!/usr/bin/env bash
# DAPO of Qwen2.5-VL-7B on Geometry3K: groups that teach nothing are replaced. 8 GPUs.
source "$(dirname "${BASH_SOURCE[0]}")/overrides.sh"

exec python3 -m easyr1.cli.main train \
    config=examples/config.yaml \
    data.train_files=hiyouga/geometry3k@train \
    data.val_files=hiyouga/geometry3k@test \
    data.mini_rollout_batch_size=128 \
    worker.actor.model.model_path=Qwen/Qwen2.5-VL-7B-Instruct \
    worker.actor.clip_ratio_low=0.2 \
    worker.actor.clip_ratio_high=0.28 \
    algorithm.disable_kl=True \
    algorithm.online_filtering=True \
    trainer.experiment_name=qwen2_5_vl_7b_geo3k_dapo \
    trainer.n_gpus_per_node=8 \
    "${OVERRIDES[@]}" "$@"
