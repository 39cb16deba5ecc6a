#!/usr/bin/env bash
# GRPO of Qwen3-VL-4B on Geometry3K with adapters: 2 GPUs.
source "$(dirname "${BASH_SOURCE[0]}")/overrides.sh"

exec python3 -m easyr1.cli.main train \
    config=examples/config.yaml \
    data.train_files=hiyouga/geometry3k@train \
    data.val_files=hiyouga/geometry3k@test \
    worker.actor.model.model_path=Qwen/Qwen3-VL-4B-Instruct \
    worker.actor.model.lora.rank=64 \
    worker.actor.model.lora.alpha=64 \
    worker.actor.optim.lr=1e-5 \
    trainer.experiment_name=qwen3_vl_4b_geo3k_grpo_lora \
    trainer.n_gpus_per_node=2 \
    "${OVERRIDES[@]}" "$@"
