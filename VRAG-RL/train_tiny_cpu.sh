#!/usr/bin/env bash
# The whole pipeline in minutes on two cores, without a GPU, a key or a download of weights: its own environment, a tiny
# Qwen-VL, supervised fine-tuning to the format, GRPO through verl with the episodes of this project against a running search
# service, validation on held-out questions, the same with the pictures blacked out, and a summary with verdicts.
#
#   ./train_tiny_cpu.sh [FOLDER] [--ggpo] [--agent vimrag --family qwen3_vl] [--seed 1] ...
#
# FOLDER (default runs/tiny) keeps everything; started again, what is done is not done again. PYTHON=... uses an environment
# that exists instead of making one in FOLDER/venv. Exit status: 0 all verdicts hold, 1 one does not, 2 a step failed.
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
  PYTHON=$folder/venv/bin/python
  if [[ ! -e $folder/venv/.complete ]]; then
    echo "--- environment in $folder/venv"
    python3 -m venv "$folder/venv"
    "$PYTHON" -m pip install --quiet --upgrade pip
    # The trainer's pins first: what the search service needs has to fit them, not the other way round.
    "$PYTHON" -m pip install --quiet -e . && "$PYTHON" -m pip install --quiet -r requirements_train.txt
    "$PYTHON" -m pip install --quiet -e "..[search,faiss-cpu]"
    touch "$folder/venv/.complete"
  fi
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} RAY_worker_niceness=${RAY_worker_niceness:-0}
exec "$PYTHON" -m vrag_agent.tiny.pipeline "$folder/run" "$@"
