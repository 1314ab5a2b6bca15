"""SFT dialogues as token ids, labels and pictures. Needs a processor, but no torch.

The same code that rolls out the agent makes the ids (:class:`vrag_agent.template.ChatTemplate`): the first prompt, then turn by
turn. So the labels are exact by construction, the model learns to close its turns, and what SFT trains on is token for
token what reinforcement learning continues. Nothing is ever cut: a dialogue that is too long is left out and counted.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from vrag.errors import ConfigError, MediaError
from vrag.geometry import whole
from vrag.items import Item
from vrag.messages import Message, message
from vrag.pages import View, decode_rgb
from vrag_agent.data.rows import Row, Unusable, read_rows
from vrag_agent.template import ChatTemplate

log = logging.getLogger("vrag_agent.sft")

#: What PyTorch leaves out of the loss.
IGNORE = -100
IMAGE = "<image>"


@dataclass(frozen=True)
class Encoded:
    """A dialogue: ids, labels of the same length (-100 outside of the model's turns), and the files of its pictures."""

    ids: list[int]
    labels: list[int]
    pictures: list[str]


def read_dialogues(path: Path) -> list[Row | Unusable]:
    """The rows of ``sft_*.json`` (a list) or ``.jsonl``, or why one is none. Raises ConfigError."""
    rows = [row for _, row in read_rows(path)]
    if not rows:
        raise ConfigError(f"{path} holds no list of dialogues; make it with scripts/cot_convert_sft.py.")
    return rows


def encode_all(
    template: ChatTemplate, rows: Sequence[Row | Unusable], folder: Path, cutoff: int
) -> tuple[list[Encoded], dict[str, int]]:
    """All dialogues that can be trained on, and how many were left out for which reason. Raises ConfigError for none."""
    kept: list[Encoded] = []
    dropped: Counter[str] = Counter()
    for number, row in enumerate(rows, 1):
        encoded = row if isinstance(row, Unusable) else _encoded(template, row, folder, cutoff)
        if isinstance(encoded, Unusable):
            log.warning("dialogue %d is left out: %s", number, encoded)
            dropped[encoded.reason] += 1
        else:
            kept.append(encoded)
    if not kept:
        raise ConfigError(f"Not one of {len(rows)} dialogues can be trained on: {dict(dropped)}.")
    return kept, dict(dropped)


def _encoded(template: ChatTemplate, row: Row, folder: Path, cutoff: int) -> Encoded | Unusable:
    try:
        encoded = encode(template, row, folder)
    except Unusable as error:
        return error
    except MediaError as error:
        return Unusable("a picture cannot be read", str(error))
    except ConfigError as error:
        return Unusable(str(error))
    return encoded if len(encoded.ids) <= cutoff else Unusable(f"longer than {cutoff} tokens")


def encode(template: ChatTemplate, row: Row, folder: Path) -> Encoded:
    """One dialogue, in either format; ``folder`` is what its pictures' paths are relative to."""
    turns, pictures = _messages(row, folder)
    roles = [turn.role for turn in turns]
    start = 1 if roles[:1] == ["system"] else 0
    if len(roles) == start or roles[start:] != ["user", "assistant"] * ((len(roles) - start) // 2):
        raise Unusable("its turns are not user, assistant, user, assistant, ...")
    ids = template.prompt(turns[: start + 1]).ids
    labels = [IGNORE] * len(ids)
    for index in range(start + 1, len(turns), 2):
        said = template.encode_turn(turns[index].text)
        if any(one in template.forbidden for one in said):
            raise Unusable("a turn of the model holds a picture's token")
        ids, labels = ids + said, labels + said
        if index + 1 < len(turns):
            seen = template.observation(turns[index + 1 : index + 2]).ids[1:]  # the turn's own end is there already
            ids, labels = ids + seen, labels + [IGNORE] * len(seen)
    return Encoded(ids, labels, [str(path) for path in pictures])


def load_picture(path: str) -> Image.Image:
    """A picture as the processor takes it. Raises MediaError."""
    try:
        return decode_rgb(Path(path).read_bytes(), Path(path).name)
    except OSError as error:
        raise MediaError(f"The picture {path} cannot be read ({error.strerror}).") from None


def _messages(row: Row, folder: Path) -> tuple[list[Message], list[Path]]:
    names = row.get("images") or []
    if not isinstance(row.get("messages"), list) or not isinstance(names, list):
        raise Unusable("it is no dialogue")
    pictures = [path if path.is_absolute() else folder / path for path in map(Path, map(str, names))]
    waiting = iter(pictures)
    out: list[Message] = []
    for turn in row["messages"]:
        if not isinstance(turn, dict) or turn.get("role") not in ("system", "user", "assistant"):
            raise Unusable("it is no dialogue")
        parts: list[str | View] = []
        for part in _parts(turn.get("content")):
            if part is not None:
                parts.append(part)
                continue
            path = next(waiting, None)
            if path is None:
                raise Unusable("it has more places for pictures than pictures")
            parts.append(_view(path))
        out.append(message(turn["role"], *parts))
    if next(waiting, None) is not None:
        raise Unusable("it has more pictures than places for them")
    return out, pictures


def _parts(content: Any) -> list[str | None]:
    """Texts, and None for a picture's place, of either format."""
    if isinstance(content, str):
        out: list[str | None] = []
        for number, text in enumerate(content.split(IMAGE)):
            out += [None] if number else []
            out += [text] if text else []
        return out or [""]
    if not isinstance(content, list):
        raise Unusable("it is no dialogue")
    parts: list[str | None] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "image"):
            raise Unusable("it is no dialogue")
        parts.append(str(part.get("text") or "") if kind == "text" else None)
    return parts


def _view(path: Path) -> View:
    """The file as the template takes pictures: already of the size that training shows."""
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # a path with a null character is a ValueError
        raise MediaError(f"The picture {path} cannot be read ({error}).") from None
    size = decode_rgb(data, path.name).size
    return View(Item(id=path.stem, kind="image", document=path.name), whole(size), size, data)
