#!/usr/bin/env bash
# GRPO of Qwen2.5-VL-3B on a number game on the screen of a telephone: 2 GPUs.
source "$(dirname "${BASH_SOURCE[0]}")/overrides.sh"

exec python3 -m easyr1.cli.main train \
    config=examples/config.yaml \
    data.train_files=yuehua-s/numbergame@train \
    data.val_files=yuehua-s/numbergame@test \
    data.format_prompt=./examples/format_prompt/android_gui.jinja \
    data.max_prompt_length=3072 \
    data.max_response_length=64 \
    data.rollout_batch_size=32 \
    data.filter_overlong_prompts=False \
    worker.actor.model.model_path=Qwen/Qwen2.5-VL-3B-Instruct \
    worker.actor.global_batch_size=32 \
    worker.actor.max_grad_norm=0.1 \
    worker.actor.optim.lr=1e-5 \
    worker.actor.optim.weight_decay=0.1 \
    worker.actor.optim.lr_warmup_ratio=0.05 \
    worker.rollout.n=8 \
    worker.rollout.temperature=0.9 \
    worker.rollout.top_p=0.95 \
    worker.rollout.gpu_memory_utilization=0.75 \
    worker.rollout.tensor_parallel_size=1 \
    worker.reward.reward_function=./examples/reward_function/android_gui.py:compute_score \
    algorithm.kl_coef=0.04 \
    trainer.total_epochs=3 \
    trainer.val_freq=2 \
    trainer.experiment_name=qwen2_5_vl_3b_android_gui_grpo \
    trainer.n_gpus_per_node=2 \
    "${OVERRIDES[@]}" "$@"
