#!/usr/bin/env bash
# GGPO of Qwen3-VL-4B: as train_ggpo_qwen3_vl_8b.sh, on 4 GPUs of 80 GB.
#
# Memory per GPU, computed and not measured: 4.4e9 parameters * 16 B / 4 = 17.6 GB for fp32 weights, gradients and moments
# (offloaded during rollout). One GPU holds a whole replica: weights 4.4e9 * 2 B = 8.8 GB of vLLM's 48 GB; KV cache
# 36 layers * 2 * 1024 * 2 B = 147 KB a token, so about 265,000 tokens.
set -euo pipefail
export NAME=${NAME:-ggpo_qwen3_vl_4b} MODEL=${MODEL:-Qwen/Qwen3-VL-4B-Instruct} GPUS=${GPUS:-4}
exec "$(dirname "$0")/train_ggpo_qwen3_vl_8b.sh" actor_rollout_ref.rollout.tensor_model_parallel_size=1 "$@"
