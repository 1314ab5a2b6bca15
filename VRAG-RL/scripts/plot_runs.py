#!/usr/bin/env python3
"""Curves of training runs. See --help; the work is done by vrag_agent.curves."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "VRAG-RL"), str(ROOT)]  # also where nothing is installed

from vrag_agent.curves import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
