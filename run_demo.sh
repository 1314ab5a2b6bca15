#!/usr/bin/env bash
# One launcher for everything; ./run_demo.sh --help lists the modes. The first run creates .venv and installs what is needed.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
EXTRA=demo
PROBE="fastapi faiss httpx numpy openai pydantic_settings pymupdf rapidocr streamlit uvicorn"
. "$ROOT/scripts/lib/environment.sh"
ready_python
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
exec "$PYTHON" -m demo.launch "$@"
