"""The messages of a request, before any grammar is read into them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class ChatMessage:
    """One message: texts and images (decoded from their data URLs) in the order in which they were sent.

    ``tool_calls`` are the native calls of an assistant's turn, as they came.
    """

    role: Literal["system", "user", "assistant"]
    content: tuple[str | bytes, ...] = ()
    tool_calls: tuple[Mapping[str, Any], ...] = ()

    @property
    def text(self) -> str:
        """The text parts, joined as paragraphs."""
        return "\n\n".join(part for part in self.content if isinstance(part, str))

    @property
    def images(self) -> tuple[bytes, ...]:
        return tuple(part for part in self.content if isinstance(part, bytes))
