#!/usr/bin/env bash
# GRPO of Qwen2.5-VL-7B with the published settings of VRAG-RL, on one machine with 8 GPUs of 80 GB.
#
#   JUDGE_URL=http://judge:8002/v1 JUDGE_MODEL=qwen2.5-7b-instruct ./train_grpo_qwen2_5_vl_7b.sh [--dry-run] [key=value ...]
#
# Needs a search service (SEARCH_URL, else VRAG_SEARCH_URL), a judge at an OpenAI-compatible endpoint (JUDGE_URL, JUDGE_MODEL,
# else VRAG_JUDGE_BASE_URL, VRAG_JUDGE_MODEL; a key in VRAG_JUDGE_API_KEY), the converted data (TRAIN, VAL) and a checkpoint
# after SFT (MODEL). All are looked at before the start. ../scripts/lib/launcher.sh has all variables and their defaults; what is
# given on the command line wins over them and over what stands here. More machines: NODES, and see README.md for the Ray commands.
#
# Memory per GPU of 80 GB, computed and not measured: 8.3e9 parameters in fp32 with gradients and two Adam moments are
# 8.3e9 * 16 B / 8 = 16.6 GB, offloaded to the CPU while vLLM has the GPU. vLLM: 0.6 * 80 = 48 GB, of which the weights take
# 8.3e9 * 2 B / 2 (tensor parallel) = 8.3 GB; a token of KV cache takes 28 layers * 2 * 512 * 2 B / 2 = 29 KB, so there is
# room for about 1.3 million tokens. In the update one row of 24,576 tokens has logits of 24,576 * 152,064 * 2 B = 7.5 GB;
# the fused kernel never holds them at once.
set -euo pipefail
cd "$(dirname "$0")"
NAME=${NAME:-grpo_qwen2_5_vl_7b} MODEL=${MODEL:-Qwen/Qwen2.5-VL-7B-Instruct} GPUS=${GPUS:-8}
. ../scripts/lib/launcher.sh

settings=(
  # --- the episode: at most 10 turns; each search shows the best page not shown yet (published)
  vrag.episode.kind=vrag
  +vrag.episode.options.max_steps=10
  # Published: 2048 tokens per turn.
  vrag.limits.turn_tokens=2048
  # 0.7 outcome + 0.1 pattern + 0.2 NDCG, and 0 without a search and an answer.
  vrag.reward.preset=published

  # --- data
  # Questions per step, each rolled out 5 times: 160 trajectories.
  data.train_batch_size=32
  actor_rollout_ref.rollout.n=5
  # Published: 8192. Our prompt is a few hundred tokens.
  data.max_prompt_length=8192
  # All turns and pages of a trajectory together. The published code never counted them (limit 99999); 10 pages of at most
  # 1280 tokens and their turns fit. What does not fit ends a trajectory, is never cut through, and is counted.
  data.max_response_length=16384

  # --- the model: all of it is trained; the published script freezes nothing in RL
  actor_rollout_ref.model.enable_gradient_checkpointing=true
  actor_rollout_ref.model.use_remove_padding=true
  actor_rollout_ref.model.use_fused_kernels=true

  # --- GRPO
  algorithm.adv_estimator=grpo
  # (r - mean) / (std + 1e-6)
  algorithm.norm_adv_by_std_in_grpo=true
  # Published script: 4 per GPU, which is the whole batch on 8: one update per rollout. (The paper's table says 64 trajectories.)
  actor_rollout_ref.actor.ppo_mini_batch_size=32
  # Published script: 1 (paper: 2). Rows are long; only memory depends on it.
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1
  actor_rollout_ref.actor.clip_ratio=0.2
  # Mean over all tokens that were sampled (published code). The paper's equation is the mean per sequence:
  # seq-mean-token-mean.
  actor_rollout_ref.actor.loss_agg_mode=token-mean
  # KL to the start as a loss, 0.01 (published; the paper uses 0 when starting cold).
  actor_rollout_ref.actor.use_kl_loss=true
  actor_rollout_ref.actor.kl_loss_coef=0.01
  actor_rollout_ref.actor.kl_loss_type=low_var_kl
  algorithm.use_kl_in_reward=false
  actor_rollout_ref.actor.entropy_coeff=0
  actor_rollout_ref.actor.optim.lr=1e-6
  # The published script gives two: 5 steps and a ratio of 0.285. The steps win in verl, here as there.
  actor_rollout_ref.actor.optim.lr_warmup_steps=5

  # --- memory: shards over all GPUs; weights and moments wait on the CPU while the GPUs roll out
  actor_rollout_ref.actor.fsdp_config.param_offload=true
  actor_rollout_ref.actor.fsdp_config.optimizer_offload=true
  actor_rollout_ref.ref.fsdp_config.param_offload=true
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1

  # --- rollout: vLLM, two GPUs per replica (published script; paper: 4), 60 % of the memory
  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.tensor_model_parallel_size=2
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6
  actor_rollout_ref.rollout.max_model_len=24576
  actor_rollout_ref.rollout.max_num_batched_tokens=24576
  +actor_rollout_ref.rollout.engine_kwargs.vllm.limit_mm_per_prompt.image=24
  actor_rollout_ref.rollout.temperature=1.0
  # Validation is greedy (published).
  actor_rollout_ref.rollout.val_kwargs.temperature=0
  actor_rollout_ref.rollout.val_kwargs.do_sample=false

  # --- the run
  trainer.total_epochs=1
  trainer.save_freq=25
  trainer.test_freq=25
)
exec "${PYTHON:-python3}" -m vrag_agent.train --config-name grpo "${surroundings[@]}" "${settings[@]}" "$@"
