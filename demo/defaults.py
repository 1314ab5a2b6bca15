"""What the launcher and the pages agree on: where the demo keeps what it makes, and how the reader is used."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: The model name of the extractive reader (:mod:`demo.reader`).
READER = "extractive-reader"
#: The reader reads by OCR and needs print that is still legible on a whole page; the published limit (0.4 MP) is made for
#: a model that was trained at it. This is VimRAG's published limit of a picture.
READER_MAX_PIXELS = 1280 * 28 * 28
#: What VimRAG's page speaks to where nothing else is said.
DASHSCOPE_URL = "https://dashscope.aliyuncs.com/compatible-mode/v1"
DASHSCOPE_MODEL = "qwen3.5-plus"
#: A folder that, where it is set, takes the place of ``var``.
STATE_VARIABLE = "VRAG_STATE_DIR"


def state() -> Path:
    """What running leaves behind: indexes, uploads, run records, logs. Safe to delete."""
    return Path(os.environ.get(STATE_VARIABLE) or ROOT / "var").expanduser().absolute()


def runs() -> Path:
    return state() / "runs"


def uploads() -> Path:
    return state() / "uploads"


def uploads_index() -> Path:
    return state() / "index" / "uploads"
