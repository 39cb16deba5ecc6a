#!/usr/bin/env bash
# ReMax of Qwen2.5-VL-7B on Geometry3K: an answer counts by its lead over the greedy one. 8 GPUs.
source "$(dirname "${BASH_SOURCE[0]}")/overrides.sh"

exec python3 -m easyr1.cli.main train \
    config=examples/config.yaml \
    data.train_files=hiyouga/geometry3k@train \
    data.val_files=hiyouga/geometry3k@test \
    worker.actor.model.model_path=Qwen/Qwen2.5-VL-7B-Instruct \
    worker.rollout.n=1 \
    algorithm.adv_estimator=remax \
    algorithm.use_kl_loss=False \
    algorithm.kl_penalty=kl \
    algorithm.kl_coef=1e-3 \
    trainer.experiment_name=qwen2_5_vl_7b_geo3k_remax \
    trainer.n_gpus_per_node=8 \
    "${OVERRIDES[@]}" "$@"
