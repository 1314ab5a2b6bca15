#!/usr/bin/env bash
# GRPO with LoRA on one GPU of 24 GB: Qwen2.5-VL-3B. (7B does not fit: its weights alone are 16.6 GB.)
#
#   JUDGE_URL=... JUDGE_MODEL=... ./train_lora_24gb.sh [--dry-run] [key=value ...]
#
# The GPU is used by turns: vLLM's weights and cache are dropped before an update, the trainer's weights wait on the CPU during
# a rollout. Computed, not measured:
#
#   rollout   0.6 * 24 GB                                                            14.4 GB
#             of it weights 3.75e9 * 2 B                                              7.5 GB
#             and KV cache, 36 layers * 2 * 256 * 2 B = 37 KB a token            about 170,000 tokens
#   update    frozen weights in bf16                                                  7.5 GB
#             LoRA, rank 32: 36 layers * 32 * 51,968 = 60e6 parameters * 16 B         1.0 GB
#             activations kept at the layers' borders, 7,168 tokens * 2048 * 2 B * 36  1.1 GB
#             one layer computed again                                                0.6 GB
#             log-probabilities by chunks (fused kernel) instead of logits, which
#             would be 7,168 * 151,936 * 2 B = 2.2 GB, and as much again in fp32       0.5 GB
#             together                                                          about 11 GB
#
# There is no reference model: without the adapters the policy is its own. The variables are those of
# train_grpo_qwen2_5_vl_7b.sh (../scripts/lib/launcher.sh), but for GPUS: it is 1.
set -euo pipefail
cd "$(dirname "$0")"
export NAME=${NAME:-lora_24gb} MODEL=${MODEL:-Qwen/Qwen2.5-VL-3B-Instruct} GPUS=1

settings=(
  actor_rollout_ref.model.lora_rank=32
  actor_rollout_ref.model.lora_alpha=64
  # Adapters on the language model; the vision tower stays as it is.
  actor_rollout_ref.model.target_modules=all-linear
  "actor_rollout_ref.model.exclude_modules='.*visual.*'"
  # Adapters want a larger step than full weights.
  actor_rollout_ref.actor.optim.lr=1e-5
  # Weights in bf16: they are frozen, and fp32 would be twice as large.
  actor_rollout_ref.actor.fsdp_config.model_dtype=bf16
  # Shorter trajectories: at most 5 turns, pages of at most 640 tokens.
  vrag.episode.options.max_steps=5
  "+vrag.episode.options.max_pixels=$((640 * 28 * 28))"
  vrag.limits.turn_tokens=512
  data.max_prompt_length=1024
  data.max_response_length=6144
  actor_rollout_ref.rollout.max_model_len=7168
  actor_rollout_ref.rollout.max_num_batched_tokens=7168
  actor_rollout_ref.rollout.max_num_seqs=32
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  # vLLM reads the frozen weights itself; then only adapters travel.
  actor_rollout_ref.rollout.load_format=safetensors
  actor_rollout_ref.rollout.layered_summon=true
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6
  # Fewer questions per step: one GPU rolls out 40 trajectories.
  data.train_batch_size=8
  actor_rollout_ref.actor.ppo_mini_batch_size=8
)
exec ./train_grpo_qwen2_5_vl_7b.sh "${settings[@]}" "$@"
