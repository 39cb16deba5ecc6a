#!/usr/bin/env bash
# PPO with a critic (GAE) of Qwen2.5-VL-7B on Geometry3K: 8 GPUs.
# The critic starts from the policy's weights and is trained alone for ten steps.
source "$(dirname "${BASH_SOURCE[0]}")/overrides.sh"

exec python3 -m easyr1.cli.main train \
    config=examples/config.yaml \
    data.train_files=hiyouga/geometry3k@train \
    data.val_files=hiyouga/geometry3k@test \
    worker.actor.model.model_path=Qwen/Qwen2.5-VL-7B-Instruct \
    worker.rollout.n=1 \
    worker.critic.global_batch_size="${GLOBAL_BATCH_SIZE:-128}" \
    worker.critic.micro_batch_size_per_device_for_update=1 \
    worker.critic.micro_batch_size_per_device_for_experience=2 \
    worker.critic.optim.lr=1e-5 \
    worker.critic.offload.offload_params=True \
    worker.critic.offload.offload_optimizer=True \
    algorithm.adv_estimator=gae \
    algorithm.use_kl_loss=False \
    algorithm.kl_penalty=kl \
    algorithm.kl_coef=1e-3 \
    trainer.critic_warmup=10 \
    trainer.experiment_name=qwen2_5_vl_7b_geo3k_gae \
    trainer.n_gpus_per_node=8 \
    "${OVERRIDES[@]}" "$@"
