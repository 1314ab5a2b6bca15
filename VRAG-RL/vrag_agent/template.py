"""A checkpoint's chat template at the level of tokens: the first prompt, and what is appended between two turns.

A conversation is never tokenised as a whole again. The first prompt is; a turn of the model is the ids that it sampled; an
observation is what the template puts between the end of that turn and the beginning of the next one. Special tokens are
hard boundaries for a tokenizer, so the pieces are token for token what the processor makes of the whole conversation.

Everything is read from the checkpoint's own processor: the template, the special tokens, the number of tokens per picture.
"""

from __future__ import annotations

import io
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from vrag.errors import ConfigError, MediaError
from vrag.messages import Message
from vrag.pages import View

#: What stands for a turn of the model while the text around it is rendered; no template has a reason to alter it.
_TURN = "PLACEHOLDER OF A TURN"


@dataclass(frozen=True)
class Piece:
    """Token ids with their pictures; image tokens are expanded."""

    ids: list[int]
    images: list[Image.Image]


class ChatTemplate:
    """Needs a processor of the Qwen-VL family (Qwen2-VL to Qwen3-VL): ``ChatTemplate(AutoProcessor.from_pretrained(...))``.

    Raises ConfigError for a processor without a chat template or without image tokens.
    """

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.tokenizer = processor.tokenizer
        if not getattr(processor, "chat_template", None):
            raise ConfigError("The checkpoint's processor has no chat template (chat_template.jinja).")
        if getattr(processor, "image_token", None) is None:
            raise ConfigError(f"{type(processor).__name__} has no image token: a Qwen-VL processor is needed.")
        self.image_id: int = self._id(processor.image_token)
        self._marks = [token for token in (processor.image_token, getattr(processor, "video_token", None)) if token]
        self.forbidden: frozenset[int] = frozenset(map(self._id, self._marks))
        """Tokens that stand for pictures and clips. A model that samples one would forge a picture."""
        self._merge = int(processor.image_processor.merge_size) ** 2
        tail = self._encode(self._tail([Message("user", ("x",))], ()))
        self.end_id: int = tail[0]
        """What closes a turn (``<|im_end|>``)."""
        if self.end_id not in self.tokenizer.all_special_ids:
            raise ConfigError("The chat template does not close the model's turns with a special token.")

    @classmethod
    def load(cls, checkpoint: str | Path) -> ChatTemplate:
        from transformers import AutoProcessor

        return cls(AutoProcessor.from_pretrained(checkpoint))

    def prompt(self, messages: Sequence[Message], tools: Sequence[dict[str, object]] = ()) -> Piece:
        """A whole conversation, up to where the model's turn begins."""
        return self._piece(self._render(messages, tools), messages)

    def observation(self, messages: Sequence[Message], tools: Sequence[dict[str, object]] = ()) -> Piece:
        """What follows a turn of the model: the token that closes it, the messages, the beginning of the next turn.

        The first id is :attr:`end_id`; leave it out where the model sampled it itself.
        """
        return self._piece(self._tail(messages, tools), messages)

    def image_tokens(self, size: tuple[int, int]) -> int:
        """Tokens of a picture of (width, height) pixels: ``grid.prod() / merge_size ** 2``."""
        width, height = size
        # The empty dict: the documented default of None is not handled there.
        return int(self.processor.image_processor.get_number_of_image_patches(height, width, {})) // self._merge

    def decode(self, ids: Sequence[int]) -> str:
        """A turn as an endpoint would give it out: without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def genuine(self, ids: Sequence[int]) -> list[int]:
        """The ids up to where they spell a picture's token in letters."""

        def spelt(number: int) -> bool:
            text = self.decode(ids[:number])
            return any(mark in text for mark in self._marks)

        if not spelt(len(ids)):
            return list(ids)
        return list(ids[: bisect_left(range(len(ids)), True, key=spelt) - 1])

    def encode_turn(self, text: str) -> list[int]:
        """A turn of the model that somebody else wrote, closed; for demonstrations."""
        return [*self._encode(text), self.end_id]

    # Rendering

    def _tail(self, messages: Sequence[Message], tools: Sequence[dict[str, object]]) -> str:
        before = [Message("user", ("x",)), Message("assistant", (_TURN,))]
        text = self._render([*before, *messages], tools)
        start = text.find(_TURN)
        if start < 0:
            raise ConfigError("The chat template leaves out the model's earlier turns, so it cannot be continued.")
        return text[start + len(_TURN) :]

    def _render(self, messages: Sequence[Message], tools: Sequence[dict[str, object]]) -> str:
        conversation = [_wire(message) for message in messages]
        extra = {"tools": list(tools)} if tools else {}
        return str(
            self.processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True, **extra)
        )

    def _piece(self, text: str, messages: Sequence[Message]) -> Piece:
        images = [decode_view(view) for message in messages for view in message.views]
        ids: list[int] = []
        sizes = iter(images)
        places = 0
        for token in self._encode(text):
            if token == self.image_id:
                places += 1
                image = next(sizes, None)
                ids += [token] * (self.image_tokens(image.size) if image is not None else 0)
            elif token in self.forbidden:
                places = -1
                break
            else:
                ids.append(token)
        if places != len(images):
            raise ConfigError(
                "A text of the conversation holds an image token, or the chat template leaves out pictures."
            )
        return Piece(ids, images)

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _id(self, token: str) -> int:
        return int(self.tokenizer.convert_tokens_to_ids(token))


def decode_view(view: View) -> Image.Image:
    """The picture of a view as the processor takes it. Raises MediaError."""
    try:
        with Image.open(io.BytesIO(view.jpeg())) as file:
            picture: Image.Image = file.convert("RGB")
            return picture
    except OSError as error:
        raise MediaError(f"A picture of {view.item.id} cannot be decoded ({error}).") from error


def _wire(message: Message) -> dict[str, Any]:
    """A message as chat templates take it."""
    if message.tool_call_id is not None:
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.text}
    if not message.views:
        out: dict[str, Any] = {"role": message.role, "content": message.text}
    else:
        parts = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in message.content
        ]
        out = {"role": message.role, "content": parts}
    if message.tool_calls:
        out["tool_calls"] = list(message.tool_calls)
    return out
