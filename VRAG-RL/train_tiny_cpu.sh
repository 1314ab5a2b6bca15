#!/usr/bin/env bash
# The whole pipeline in minutes on two cores, without a GPU, a key or a download of weights: its own environment, a tiny
# Qwen-VL, supervised fine-tuning to the format, GRPO through verl with the episodes of this project against a running search
# service, validation on held-out questions, the same with the pictures blacked out, and a summary with verdicts.
#
#   ./train_tiny_cpu.sh [FOLDER] [--ggpo] [--agent vimrag --family qwen3_vl] [--no-crop] [--seed 1]
#
# FOLDER (default runs/tiny) keeps everything; started again, what is done is not done again. The environment is .venv-train of the
# project; PYTHON=... uses another one. Exit status: 0 all verdicts hold, 1 one does not, 2 a step failed.
set -euo pipefail
cd "$(dirname "$0")"
folder=runs/tiny
if [[ $# -gt 0 && $1 != --* ]]; then
  folder=$1
  shift
fi
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

if [[ -z ${PYTHON:-} ]]; then
  ROOT=$(cd .. && pwd)
  . ../scripts/lib/training_environment.sh
  training_environment
fi
export RAY_worker_niceness=${RAY_worker_niceness:-0}
exec "$PYTHON" -m vrag_agent.tiny.pipeline "$folder" "$@"
