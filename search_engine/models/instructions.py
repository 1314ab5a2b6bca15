"""What Qwen3-VL-Embedding is told about its input, in the system message."""

from __future__ import annotations

import unicodedata

DOCUMENT_INSTRUCTION = "Represent the user's input."
QUERY_INSTRUCTION = "Retrieve images or text relevant to the user's query."


def punctuated(instruction: str | None) -> str:
    """An instruction without blanks around it, ending in punctuation; empty for none."""
    instruction = (instruction or "").strip()
    if instruction and not unicodedata.category(instruction[-1]).startswith("P"):
        instruction += "."
    return instruction
