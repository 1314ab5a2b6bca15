"""The engine that is being served, and how another takes its place while requests go on.

A request takes the engine once, at its start, and keeps it to its end; a swap is one assignment. So a request is
answered by one index throughout, none fails, and the old engine is freed when its last request has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from search_engine.documents import Line
from search_engine.models.base import Query
from search_engine.reranking import Reranked
from search_engine.service.wire import IndexState
from vrag.items import Hit, Item

log = logging.getLogger(__name__)


class Engine(Protocol):
    """What the service needs of a search engine; all but ``retrieve`` and ``rerank`` is quick. Unknown ids raise ``KeyError``."""

    def retrieve(
        self,
        queries: Sequence[str | Query],
        top_k: int = 3,
        corpus: str | Sequence[str] | None = None,
        documents: Sequence[str] | None = None,
    ) -> list[list[Hit]]: ...

    def item(self, item_id: str) -> Item: ...

    def position(self, item_id: str) -> int:
        """The item's place in the index: what the published answers call ``indice``."""

    def media_path(self, item_id: str) -> Path | None: ...

    def lines(self, item_id: str) -> Sequence[Line]: ...

    @property
    def corpora(self) -> Mapping[str, int]:
        """The number of items by the name of the corpus."""

    @property
    def version(self) -> str: ...

    @property
    def model_name(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    @property
    def sees_pictures(self) -> bool:
        """Whether queries may be pictures."""

    @property
    def reranker_name(self) -> str | None:
        """The model of ``rerank``, or None where there is none."""

    def rerank_depth(self, rerank: bool | int, top_k: int) -> int:
        """How many hits a search with ``rerank`` looks at again; 0 for none."""

    def rerank(self, query: str | Query, hits: Sequence[Hit], top_k: int) -> Reranked:
        """The best ``top_k`` of ``hits`` after a second look; raises nothing."""

    def close(self) -> None:
        """Let go of what the models hold."""


#: Opens the engine anew; it is given the one that is being served, so that it may share what does not change (the
#: model).
OpenEngine = Callable[[Engine | None], Engine]


class NotReady(Exception):
    """No engine is being served (yet); ``str`` says why."""


class EngineSlot:
    """Holds the engine that is being served. All methods belong to one event loop; engines are opened in a thread."""

    def __init__(self, open_engine: OpenEngine) -> None:
        self._open = open_engine
        self._engine: Engine | None = None
        self._state: IndexState | None = None
        self._one_at_a_time = asyncio.Lock()
        self.failure: str | None = None

    @property
    def engine(self) -> Engine:
        """The engine being served; raises :class:`NotReady` while there is none."""
        if self._engine is None:
            raise NotReady(self.failure or "The index is still being loaded; try again in a moment.")
        return self._engine

    @property
    def state(self) -> IndexState | None:
        return self._state

    async def swap(self) -> tuple[IndexState | None, IndexState]:
        """Open the engine anew and serve it from now on; returns what was served before and what is served now.

        When it cannot be opened, the error is raised and the old one keeps serving.
        """
        async with self._one_at_a_time:
            before = self._state
            engine = await asyncio.to_thread(self._open, self._engine)
            self._engine, self._state, self.failure = engine, describe(engine), None
            return before, self._state


def describe(engine: Engine) -> IndexState:
    corpora = engine.corpora
    return IndexState(
        version=engine.version,
        items=sum(corpora.values()),
        model=engine.model_name,
        dimension=engine.dimension,
        corpora=sorted(corpora),
        reranker=engine.reranker_name,
    )
