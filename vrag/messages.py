"""The messages that an episode asks a model to continue: text and pictures, without any wire format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vrag.pages import View

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. ``content`` mixes text and views in the order the model reads them.

    ``tool_calls`` and ``tool_call_id`` carry native tool calls, where an endpoint is spoken to that way.
    """

    role: Role
    content: tuple[str | View, ...]
    tool_calls: tuple[dict[str, Any], ...] = ()
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The text parts, joined; pictures are left out."""
        return "".join(part for part in self.content if isinstance(part, str))

    @property
    def views(self) -> tuple[View, ...]:
        return tuple(part for part in self.content if not isinstance(part, str))


def message(role: Role, *content: str | View) -> Message:
    return Message(role, tuple(content))


def well_formed(text: str) -> str:
    """The text without lone surrogates, which JSON can smuggle in and UTF-8 cannot carry; split pairs are joined."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def views_of(messages: Sequence[Message]) -> list[View]:
    """All pictures of a conversation, in order."""
    return [view for turn in messages for view in turn.views]


def joined(turns: Sequence[Message]) -> list[Message]:
    """The turns with neighbours of the user's side made one, and neighbouring texts within a turn made one part.

    Chat templates may insist on turns that alternate; the results of native tool calls stay turns of their own.
    """
    out: list[Message] = []
    for turn in turns:
        content = list(turn.content)
        if out and _plain(turn) and _plain(out[-1]):
            content = [*out.pop().content, *content]
        parts: list[str | View] = []
        for part in content:
            if parts and isinstance(part, str) and isinstance(parts[-1], str):
                parts[-1] += "\n\n" + part
            elif parts and isinstance(part, str) and not part.startswith("\n"):
                parts.append("\n" + part)  # templates put it right behind the picture
            else:
                parts.append(part)
        out.append(Message(turn.role, tuple(parts), turn.tool_calls, turn.tool_call_id))
    return out


def _plain(turn: Message) -> bool:
    return turn.role == "user" and turn.tool_call_id is None
