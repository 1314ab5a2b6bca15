#!/usr/bin/env python3
"""A checkpoint of training to the Hugging Face layout. See --help; the work is done by vrag_agent.data.merge."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "VRAG-RL"), str(ROOT)]  # also where nothing is installed

from vrag_agent.data.merge import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
