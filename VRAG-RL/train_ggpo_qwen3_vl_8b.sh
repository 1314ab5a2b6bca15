#!/usr/bin/env bash
# GGPO of Qwen3-VL-8B with the VimRAG episode (memory graph), on one machine with 8 GPUs of 80 GB.
#
#   JUDGE_URL=http://judge:8002/v1 JUDGE_MODEL=... ./train_ggpo_qwen3_vl_8b.sh [--dry-run] [key=value ...]
#
# Needs what train_grpo_qwen2_5_vl_7b.sh needs, by the same variables: SEARCH_URL (else VRAG_SEARCH_URL), JUDGE_URL and JUDGE_MODEL
# (else VRAG_JUDGE_BASE_URL and VRAG_JUDGE_MODEL), TRAIN, VAL, MODEL; ../scripts/lib/launcher.sh has all of them.
#
# VimRAG does not give the learning rate, group size, clip range, KL coefficient, batch sizes or number of steps. What stands
# here for them is VRAG-RL's, and GSPO's clip range, for the ratio is GSPO's; each line says which. The masks, the denominator,
# the binary reward and the constants of the memory are the paper's.
#
# Memory per GPU of 80 GB, computed and not measured: 8.8e9 parameters * 16 B / 8 = 17.6 GB for fp32 weights, gradients and
# moments (offloaded during rollout). vLLM: 48 GB; weights 8.8e9 * 2 B / 2 = 8.8 GB; KV cache 36 layers * 2 * 1024 * 2 B / 2
# = 74 KB a token, so about 530,000 tokens.
set -euo pipefail
cd "$(dirname "$0")"
NAME=${NAME:-ggpo_qwen3_vl_8b} MODEL=${MODEL:-Qwen/Qwen3-VL-8B-Instruct} GPUS=${GPUS:-8}
. ../scripts/lib/launcher.sh

settings=(
  # --- the episode: graph, energy and budget as published (vrag/vimrag_options.py); here only the number of turns
  vrag.episode.kind=vimrag
  +vrag.episode.options.max_steps=20
  vrag.limits.turn_tokens=2048
  # The judge's verdict alone (paper).
  vrag.reward.preset=vimrag

  # --- GGPO (paper): masks by segment, the sum divided by the number of all segments, masked ones too
  vrag.ggpo.enable=true
  vrag.ggpo.aggregation=segment-mean
  # Length-normalised ratio of a segment: the paper's baseline is GSPO. "token" is GRPO's.
  vrag.ggpo.ratio=sequence
  # Groups of equal rewards stay, as in the paper. Leaving them out saves their forward passes, but it changes what the batch is:
  # the denominators count only the groups that are left, and their KL is not taken.
  vrag.skip_silent_groups=false

  # --- data
  # VRAG-RL's 32 questions; 8 trajectories each, so that a group has right and wrong ones.
  data.train_batch_size=32
  actor_rollout_ref.rollout.n=8
  # The prompt of a step holds the graph and its pictures: 5 * 256 * 32 * 32 pixels of memory are about 1300 tokens.
  data.max_prompt_length=8192
  # A step: a search, at most 3 pages of 980 tokens, the judgement of them.
  data.max_response_length=8192

  # --- the model
  actor_rollout_ref.model.enable_gradient_checkpointing=true
  actor_rollout_ref.model.use_remove_padding=true
  actor_rollout_ref.model.use_fused_kernels=true

  # --- the update
  algorithm.adv_estimator=grpo
  actor_rollout_ref.actor.ppo_mini_batch_size=32
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1
  # GSPO's range: ratios of whole segments stay much nearer to 1 than those of tokens. With one update per rollout it is
  # never reached.
  actor_rollout_ref.actor.clip_ratio_low=3e-4
  actor_rollout_ref.actor.clip_ratio_high=4e-4
  # VRAG-RL's. The figure of the paper shows a reference model, without a number.
  actor_rollout_ref.actor.use_kl_loss=true
  actor_rollout_ref.actor.kl_loss_coef=0.01
  actor_rollout_ref.actor.kl_loss_type=low_var_kl
  actor_rollout_ref.actor.entropy_coeff=0
  # VRAG-RL's.
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.actor.optim.lr_warmup_steps=5

  # --- memory
  actor_rollout_ref.actor.fsdp_config.param_offload=true
  actor_rollout_ref.actor.fsdp_config.optimizer_offload=true
  actor_rollout_ref.ref.fsdp_config.param_offload=true
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1

  # --- rollout
  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.tensor_model_parallel_size=2
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6
  actor_rollout_ref.rollout.max_model_len=16384
  actor_rollout_ref.rollout.max_num_batched_tokens=16384
  +actor_rollout_ref.rollout.engine_kwargs.vllm.limit_mm_per_prompt.image=40
  actor_rollout_ref.rollout.temperature=1.0
  actor_rollout_ref.rollout.val_kwargs.temperature=0
  actor_rollout_ref.rollout.val_kwargs.do_sample=false

  # --- the run
  trainer.total_epochs=1
  trainer.save_freq=25
  trainer.test_freq=25
)
exec "${PYTHON:-python3}" -m vrag_agent.train --config-name ggpo "${surroundings[@]}" "${settings[@]}" "$@"
