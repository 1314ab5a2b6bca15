"""Keeps pages that were fetched: in training the same few are looked at thousands of times, and none of them changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from vrag.episode import Frame
from vrag.items import Hit
from vrag.retriever import AsyncRetriever


class PageCache:
    """An AsyncRetriever in front of another: searches go through, images are kept up to ``max_bytes``, the last used first.

    Use it only while the index stays what it is.
    """

    def __init__(self, retriever: AsyncRetriever, max_bytes: int = 512 * 2**20) -> None:
        self._retriever = retriever
        self._max_bytes = max_bytes
        self._pages: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    async def search(self, queries: Sequence[str], top_k: int, corpus: str | None = None) -> list[list[Hit]]:
        return await self._retriever.search(queries, top_k, corpus)

    async def image(self, item_id: str) -> bytes:
        if item_id in self._pages:
            self._pages.move_to_end(item_id)
            return self._pages[item_id]
        data = await self._retriever.image(item_id)
        if item_id not in self._pages:
            self._pages[item_id] = data
            self._bytes += len(data)
            while self._bytes > self._max_bytes:
                _, dropped = self._pages.popitem(last=False)
                self._bytes -= len(dropped)
        return data

    async def frames(self, item_id: str, fps: float, max_frames: int, max_pixels: int) -> list[Frame]:
        return await self._retriever.frames(item_id, fps, max_frames, max_pixels)
