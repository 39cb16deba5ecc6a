#!/usr/bin/env bash
# GRPO of Qwen2.5-VL-3B on short videos that the first line draws: which way does the square go? 1 GPU.
source "$(dirname "${BASH_SOURCE[0]}")/overrides.sh"
python3 -m easyr1.examples.videos videos || exit

exec python3 -m easyr1.cli.main train \
    config=examples/config.yaml \
    data.train_files=videos/train.jsonl \
    data.val_files=videos/val.jsonl \
    data.format_prompt=./examples/format_prompt/r1v.jinja \
    data.max_response_length=256 \
    data.rollout_batch_size=64 \
    data.video_fps=2.0 \
    data.min_pixels=12544 \
    data.max_pixels=50176 \
    worker.actor.model.model_path=Qwen/Qwen2.5-VL-3B-Instruct \
    worker.actor.global_batch_size=64 \
    worker.reward.reward_function=./examples/reward_function/r1v.py:compute_score \
    trainer.total_epochs=5 \
    trainer.experiment_name=qwen2_5_vl_3b_video_grpo \
    trainer.n_gpus_per_node=1 \
    "${OVERRIDES[@]}" "$@"
