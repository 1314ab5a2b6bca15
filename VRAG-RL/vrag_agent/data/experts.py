"""Multi-expert sampling (VRAG-RL, section on data): a strong model decides, a grounding model says where exactly.

To an episode, :class:`Experts` is one chat model. Where the deciding model wants to look closer, the grounding model is
given the same picture and the thought, and its region takes the place of the first one. A grounding model that answers
nonsense changes nothing; one that is down is an error, as a deciding model that is down.

:class:`Archive` stands between an episode and the search service: it keeps the bytes of every page that was looked at,
and can put reference pages first ("guided" retrieval, as the published pipeline did), so that demonstrations come about
whose retrieval succeeds.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Literal

from vrag import prompts
from vrag.actions import Crop, clean, parse_tags
from vrag.chat import AsyncChat, Piece
from vrag.episode import Frame, Generate, Generation
from vrag.geometry import Box, Size, to_displayed, to_page, whole
from vrag.items import Hit
from vrag.messages import message
from vrag.pages import View, region_on_page
from vrag.retriever import AsyncRetriever
from vrag_agent.data.files import write_once

log = logging.getLogger(__name__)

#: In which units a grounding model names a region: pixels of the picture (Qwen2.5-VL), or thousandths of its sides
#: (Qwen3-VL).
Units = Literal["pixels", "thousandths"]

_UNSAFE = re.compile(r"[^\w.-]+")


class Experts:
    """The experts of one run, as an :class:`vrag.chat.AsyncChat`. ``relocated``: turn -> the deciding model's region."""

    def __init__(self, decider: AsyncChat, grounder: AsyncChat | None = None, units: Units = "pixels") -> None:
        self.relocated: dict[int, Box] = {}
        self._decider = decider
        self._grounder = grounder
        self._units = units
        self._turn = 0

    async def stream(self, request: Generate) -> AsyncGenerator[Piece | Generation, None]:
        self._turn += 1
        reply = await _whole(self._decider, request)
        views = [view for turn in request.messages for view in turn.views]
        thought, action = parse_tags(reply.text)
        if self._grounder is not None and isinstance(action, Crop) and views:
            box = await self._ground(self._grounder, thought, action.box, views[-1])
            if box is not None:
                self.relocated[self._turn] = action.box
                reply = replace(reply, text=f"<think>{thought}</think>\n<bbox>{_written(box)}</bbox>")
        yield reply

    async def _ground(self, grounder: AsyncChat, thought: str, guess: Box, view: View) -> Box | None:
        """The grounding model's region, in the pixels of the picture; None where it names none that can be used."""
        width, height = size = view.size if self._units == "pixels" else (1000, 1000)
        shown = whole(view.size)
        text = prompts.fill(
            prompts.load("ground"),
            thought=clean(thought, 2_000) or "(none was given)",
            box=_written(to_displayed(_inside(guess, view.size), size, shown)),
            width=width,
            height=height,
        )
        reply = await _whole(grounder, Generate((message("user", view, text),), "ground"))
        _, action = parse_tags(reply.text)
        if not isinstance(action, Crop):
            return None
        box = to_page(_inside(action.box, size), size, shown)
        return None if isinstance(region_on_page(box, view), str) else box


async def _whole(chat: AsyncChat, request: Generate) -> Generation:
    async with aclosing(chat.stream(request)) as parts:
        async for part in parts:
            if isinstance(part, Generation):
                return part
    raise AssertionError("a chat model's stream ends with a Generation")


def _inside(box: Box, size: Size) -> Box:
    """The part inside a picture, corners in order. Models write any number; only after this can it be reckoned with."""
    xs, ys = sorted((box.x1, box.x2)), sorted((box.y1, box.y2))
    return Box(xs[0], ys[0], xs[1], ys[1]).clamped(whole(size))


def _written(box: Box) -> str:
    return "[" + ", ".join(str(round(value)) for value in box.as_list()) + "]"


class Archive:
    """An :class:`vrag.retriever.AsyncRetriever` that keeps the pages; ``pages`` maps ids to files below ``folder``.

    With ``depth`` above 0, that many hits are asked for and those in ``relevant`` come first, else in their order.
    """

    def __init__(self, retriever: AsyncRetriever, folder: Path, relevant: Collection[str] = (), depth: int = 0) -> None:
        self.pages: dict[str, str] = {}
        self._retriever = retriever
        self._folder = folder
        self._relevant = frozenset(relevant)
        self._depth = depth

    async def search(self, queries: Sequence[str], top_k: int, corpus: str | None = None) -> list[list[Hit]]:
        found = await self._retriever.search(queries, max(top_k, self._depth), corpus)
        if self._depth:
            found = [sorted(hits, key=lambda hit: hit.item.id not in self._relevant) for hits in found]
        return [hits[:top_k] for hits in found]

    async def image(self, item_id: str) -> bytes:
        data = await self._retriever.image(item_id)
        self.pages[item_id] = keep(self._folder, item_id, data)
        return data

    async def frames(self, item_id: str, fps: float, max_frames: int, max_pixels: int) -> list[Frame]:
        return await self._retriever.frames(item_id, fps, max_frames, max_pixels)


def keep(folder: Path, name: str, data: bytes) -> str:
    """Write ``data`` below ``folder`` under a name that is made of its content, once; returns the path relative to it.

    Raises ConfigError when the disk is full or the folder cannot be written to.
    """
    digest = hashlib.sha256(data).hexdigest()[:16]
    # By bytes: the names of other scripts' documents have up to four of them a character.
    readable = _UNSAFE.sub("_", name).encode()[:80].decode("utf-8", "ignore")
    file = Path("pages") / f"{readable}-{digest}.img"
    write_once(folder / file, data)
    return str(file)
