"""What a search runs on: the live items of one or several indexes, in memory, as one immutable collection."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from search_engine.documents import Line
from search_engine.fusion import Channel, by_scores, reciprocal_rank
from search_engine.index_store import OpenSegment, StoredIndex
from search_engine.lexical import LexicalIndex, merge_postings
from search_engine.models.base import Vectors
from search_engine.settings import RetrievalSettings
from search_engine.vector_index import Ranking, nothing
from search_engine.vectors import open_vectors
from vrag.errors import ConfigError
from vrag.items import Item


class Collection:
    """Items are numbered in the order of the indexes and of their segments. May be searched by many threads at once.

    An id that an earlier item has already gets a suffix: ``report_3~2``.
    """

    def __init__(
        self,
        indexes: Mapping[str, StoredIndex],
        dimension: int,
        settings: RetrievalSettings,
        vector_weight: float = 1.0,
    ) -> None:
        self._settings = settings
        self._vector_weight = vector_weight if settings.vector_weight is None else settings.vector_weight
        self.items: list[Item] = []
        self._media: list[Path | None] = []
        self._texts: list[tuple[OpenSegment, int]] = []
        self._rows: dict[str, int] = {}
        self._corpora: dict[str, range] = {}
        kept = []
        for name, index in indexes.items():
            first = len(self.items)
            for segment in index.segments:
                alive = segment.alive
                for row in map(int, np.flatnonzero(alive)):
                    self._append(index, segment, row)
                kept.append((segment.postings, alive))
            self._corpora[name] = range(first, len(self.items))
        self._vectors = open_vectors(list(indexes.values()), dimension, settings)
        self._lexical = LexicalIndex(merge_postings(kept), settings)
        self._documents: dict[str, list[int]] = {}
        for number, item in enumerate(self.items):
            self._documents.setdefault(item.document, []).append(number)
        digest = hashlib.sha256()
        for name, index in indexes.items():
            digest.update(f"{name}\0{index.manifest.model_dump_json()}\0".encode())
        #: Changes whenever anything of what is searched changes.
        self.version = digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.items)

    def _append(self, index: StoredIndex, segment: OpenSegment, row: int) -> None:
        stored = segment.items[row]
        item, name, count = stored.item, stored.item.id, 1
        while name in self._rows:
            count += 1
            name = f"{item.id}~{count}"
        if name != item.id:
            item = item.model_copy(update={"id": name})
        self._rows[name] = len(self.items)
        self.items.append(item)
        self._media.append(index.media(stored))
        self._texts.append((segment, row))

    @property
    def corpora(self) -> dict[str, int]:
        """The number of items by the name of the corpus."""
        return {name: len(rows) for name, rows in self._corpora.items()}

    @property
    def documents(self) -> dict[str, int]:
        """The number of items by the name of the document."""
        return {name: len(rows) for name, rows in self._documents.items()}

    def position(self, item_id: str) -> int:
        """The number of an item; raises ``KeyError`` for an unknown id, as do the three methods below."""
        return self._rows[item_id]

    def item(self, item_id: str) -> Item:
        return self.items[self._rows[item_id]]

    def media_path(self, item_id: str) -> Path | None:
        """The stored image or video; None for a text."""
        return self._media[self._rows[item_id]]

    def lines(self, item_id: str) -> tuple[Line, ...]:
        """The text of an item line by line with boxes in page pixels, read from disk."""
        segment, row = self._texts[self._rows[item_id]]
        return segment.text(row).text.lines

    def allowed(
        self, corpus: str | Sequence[str] | None = None, documents: Sequence[str] | None = None
    ) -> NDArray[np.bool_] | None:
        """Which items a filter admits, (n,), or None for all. Raises :class:`ConfigError` for a name that there is not."""
        if corpus is None and documents is None:
            return None
        admitted = np.ones(len(self), bool)
        if corpus is not None:
            admitted[:] = False
            for name in [corpus] if isinstance(corpus, str) else corpus:
                if name not in self._corpora:
                    raise ConfigError(f"there is no corpus {name!r}; loaded are: {', '.join(self._corpora) or 'none'}")
                admitted[self._corpora[name]] = True
        if documents is not None:
            listed = np.zeros(len(self), bool)
            for name in [documents] if isinstance(documents, str) else documents:
                if name not in self._documents:
                    raise ConfigError(f"there is no document {name!r} in the index; documents go by their file names")
                listed[self._documents[name]] = True
            admitted &= listed
        return admitted

    def search(
        self,
        texts: Sequence[str | None],
        vectors: Vectors,
        top_k: int,
        allowed: NDArray[np.bool_] | None = None,
        documents: Sequence[str] | None = None,
    ) -> list[Ranking]:
        """Per query its ``top_k`` items as numbers and scores, best first. ``vectors`` (q, dimension), one per text.

        ``allowed`` is what :meth:`allowed` made of the filter, ``documents`` the names in it. Hybrid: both channels are
        read to ``candidates`` and fused by their scores (or ranks, by ``fusion``). A query without text (an image) and a
        query without vector (all zeros) are matched by what they have.
        """
        if isinstance(documents, str):
            documents = [documents]
        settings = self._settings
        depth = max(top_k, settings.candidates) if settings.hybrid else top_k
        by_vector = self._nearest(vectors, depth, allowed, documents)
        if not settings.hybrid:
            return by_vector
        fused = []
        for text, near in zip(texts, by_vector, strict=True):
            channels = [Channel(*near, self._vector_weight)]
            if text is not None:
                channels.append(
                    Channel(*self._lexical.search(text, depth, allowed), settings.lexical_weight, floor=0.0)
                )
            if settings.fusion == "ranks":
                fused.append(reciprocal_rank(channels, settings.rrf_k, top_k))
            else:
                fused.append(by_scores(channels, top_k))
        return fused

    def _nearest(
        self, vectors: Vectors, k: int, allowed: NDArray[np.bool_] | None, documents: Sequence[str] | None
    ) -> list[Ranking]:
        asked = np.flatnonzero(vectors.any(axis=1))
        rankings = [nothing() for _ in vectors]
        for query, found in zip(asked, self._vectors.search(vectors[asked], k, allowed, documents), strict=True):
            rankings[query] = found
        return rankings
