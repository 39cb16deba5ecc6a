#!/usr/bin/env bash
# GRPO of Qwen3-VL-30B, of which 3B are active, on Geometry3K in bfloat16: 8 GPUs, all for one copy of the sampler.
source "$(dirname "${BASH_SOURCE[0]}")/overrides.sh"

exec python3 -m easyr1.cli.main train \
    config=examples/config.yaml \
    data.train_files=hiyouga/geometry3k@train \
    data.val_files=hiyouga/geometry3k@test \
    worker.actor.model.model_path=Qwen/Qwen3-VL-30B-A3B-Instruct \
    worker.actor.fsdp.torch_dtype=bf16 \
    worker.actor.optim.strategy=adamw_bf16 \
    worker.rollout.tensor_parallel_size=8 \
    trainer.experiment_name=qwen3_vl_30b_geo3k_grpo \
    trainer.n_gpus_per_node=8 \
    "${OVERRIDES[@]}" "$@"
