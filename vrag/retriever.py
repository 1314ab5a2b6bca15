"""The retriever as an episode's driver sees it: search, and the bytes of an item by its id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from vrag.items import Hit


class Retriever(Protocol):
    """Blocking retriever. Every method raises :class:`vrag.errors.RetrieverError` and nothing else."""

    def search(self, queries: Sequence[str], top_k: int, corpus: str | None = None) -> list[list[Hit]]:
        """One ranked list of at most ``top_k`` hits per query, best first."""

    def image(self, item_id: str) -> bytes:
        """The encoded image (JPEG, PNG or WebP) of a page or picture."""


class AsyncRetriever(Protocol):
    """The same, awaitable."""

    async def search(self, queries: Sequence[str], top_k: int, corpus: str | None = None) -> list[list[Hit]]: ...

    async def image(self, item_id: str) -> bytes: ...
