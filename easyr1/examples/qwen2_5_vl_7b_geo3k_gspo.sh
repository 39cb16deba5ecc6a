#!/usr/bin/env bash
# GSPO (token variant) of Qwen2.5-VL-7B on Geometry3K: one ratio an answer, within narrow bounds. 8 GPUs.
source "$(dirname "${BASH_SOURCE[0]}")/overrides.sh"

exec python3 -m easyr1.cli.main train \
    config=examples/config.yaml \
    data.train_files=hiyouga/geometry3k@train \
    data.val_files=hiyouga/geometry3k@test \
    worker.actor.model.model_path=Qwen/Qwen2.5-VL-7B-Instruct \
    worker.actor.loss_type=gspo_token \
    worker.actor.loss_avg_mode=seq \
    worker.actor.clip_ratio_low=3e-4 \
    worker.actor.clip_ratio_high=4e-4 \
    algorithm.disable_kl=True \
    trainer.experiment_name=qwen2_5_vl_7b_geo3k_gspo \
    trainer.n_gpus_per_node=8 \
    "${OVERRIDES[@]}" "$@"
