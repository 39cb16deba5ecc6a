#!/usr/bin/env bash
# GRPO of Qwen2.5-VL-7B on questions about several pictures (JourneyBench): 8 GPUs.
# Tries whether rows of several pictures run; its settings are chosen for nothing else.
source "$(dirname "${BASH_SOURCE[0]}")/overrides.sh"

exec python3 -m easyr1.cli.main train \
    config=examples/config.yaml \
    data.train_files=hiyouga/journeybench-multi-image-vqa@train \
    data.val_files=hiyouga/journeybench-multi-image-vqa@test \
    data.rollout_batch_size=256 \
    worker.actor.model.model_path=Qwen/Qwen2.5-VL-7B-Instruct \
    worker.rollout.limit_images=2 \
    trainer.experiment_name=qwen2_5_vl_7b_multi_image \
    trainer.n_gpus_per_node=8 \
    "${OVERRIDES[@]}" "$@"
