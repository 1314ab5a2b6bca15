#!/usr/bin/env bash
# GRPO with LoRA on one GPU of 80 GB: Qwen2.5-VL-7B at the published lengths.
#
#   JUDGE_URL=... JUDGE_MODEL=... ./train_lora_80gb.sh [--dry-run] [key=value ...]
#
# Computed, not measured:
#
#   rollout   0.6 * 80 GB                                                            48.0 GB
#             of it weights 8.3e9 * 2 B                                              16.6 GB
#             and KV cache, 28 layers * 2 * 512 * 2 B = 57 KB a token            about 530,000 tokens
#   update    frozen weights in bf16                                                 16.6 GB
#             LoRA, rank 64: 28 layers * 64 * 90,112 = 161e6 parameters * 16 B        2.6 GB
#             activations kept at the layers' borders, 24,576 * 3584 * 2 B * 28       4.9 GB
#             one layer computed again                                                3.5 GB
#             log-probabilities by chunks (fused kernel)                              1.0 GB
#             together                                                          about 29 GB
#
# There is no reference model: without the adapters the policy is its own. The variables are those of
# train_grpo_qwen2_5_vl_7b.sh (../scripts/lib/launcher.sh), but for GPUS: it is 1.
set -euo pipefail
cd "$(dirname "$0")"
export NAME=${NAME:-lora_80gb} GPUS=1

settings=(
  actor_rollout_ref.model.lora_rank=64
  actor_rollout_ref.model.lora_alpha=128
  actor_rollout_ref.model.target_modules=all-linear
  "actor_rollout_ref.model.exclude_modules='.*visual.*'"
  actor_rollout_ref.actor.optim.lr=1e-5
  actor_rollout_ref.actor.fsdp_config.model_dtype=bf16
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.load_format=safetensors
  actor_rollout_ref.rollout.layered_summon=true
  # One GPU: 16 questions a step, 80 trajectories.
  data.train_batch_size=16
  actor_rollout_ref.actor.ppo_mini_batch_size=16
)
exec ./train_grpo_qwen2_5_vl_7b.sh "${settings[@]}" "$@"
