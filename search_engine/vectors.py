"""From the indexes on disk to one index of vectors, of the kind that the settings name, numbered as the items are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_engine.compressed_index import KINDS, CompressedIndex
from search_engine.derived_index import open_derived
from search_engine.index_store import OpenSegment, StoredIndex
from search_engine.models.base import Vectors
from search_engine.settings import RetrievalSettings
from search_engine.vector_index import FlatIndex, Ranking, VectorIndex, checked, nothing
from search_engine.vector_rows import Rows
from vrag.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Part:
    """An index and the item of each of its vectors, ascending; -1: the item was removed."""

    index: VectorIndex
    items: NDArray[np.int64]


class JoinedIndex:
    """Several indexes as one, whose numbers are those of the items. An item without a vector is never found."""

    def __init__(self, dimension: int, items: int, parts: Sequence[Part]) -> None:
        self._dimension = dimension
        self._items = items
        self._parts = [(part, part.items >= 0) for part in parts if len(part.items)]

    @property
    def dimension(self) -> int:
        return self._dimension

    def __len__(self) -> int:
        return self._items

    def search(
        self,
        queries: Vectors,
        k: int,
        allowed: NDArray[np.bool_] | None = None,
        documents: Sequence[str] | None = None,
    ) -> list[Ranking]:
        queries = checked(queries, self.dimension, "the query's vector")
        found: list[list[Ranking]] = [[] for _ in queries]
        for part, live in self._parts:
            admitted = live if allowed is None else live & allowed[part.items]
            if not admitted.any():
                continue
            restricted = int(admitted.sum()) < int(live.sum())
            mask = None if admitted.all() else admitted
            rankings = part.index.search(queries, k, mask, documents if restricted else None)
            for mine, (rows, scores) in zip(found, rankings, strict=True):
                mine.append((part.items[rows], scores))
        return [_merged(mine, k) for mine in found]


def _merged(rankings: Sequence[Ranking], k: int) -> Ranking:
    if len(rankings) < 2:
        return rankings[0] if rankings else nothing()
    items = np.concatenate([items for items, _ in rankings])
    scores = np.concatenate([scores for _, scores in rankings])
    order = np.lexsort((items, -scores))[:k]
    return items[order], scores[order]


@dataclass(frozen=True, slots=True)
class _Segment:
    """The vectors of a segment: which rows have one, which of these are alive, and the item of each row (-1: removed)."""

    vectors: NDArray[np.floating]
    present: NDArray[np.bool_]
    live: NDArray[np.bool_]
    items: NDArray[np.int64]


def open_vectors(indexes: Sequence[StoredIndex], dimension: int, settings: RetrievalSettings) -> JoinedIndex:
    """The vectors of the live items of ``indexes``, numbered in the order of the indexes and of their segments.

    Raises :class:`ConfigError` for settings that do not go together, :class:`ModelError` for vectors that are not finite.
    """
    first = 0
    segments: list[list[_Segment]] = []
    for index in indexes:
        segments.append([])
        for stored in index.segments:
            segments[-1].append(_segment(stored, first))
            first += int(stored.alive.sum())
    parts: list[Part] = []
    exactly = [segment for group in segments for segment in group]
    if settings.vectors == "milvus":
        from search_engine.milvus_index import open_collection

        for index, group in zip(indexes, segments, strict=True):
            if len(rows := _live(group, dimension)):
                parts.append(Part(open_collection(index, rows, settings), _items(group)))
        exactly = []
    elif settings.device != "cpu" and settings.vectors != "ivf":
        from search_engine.device_index import DeviceIndex

        if settings.vectors not in ("flat", "fp16"):
            raise ConfigError(f"vectors={settings.vectors} runs on the CPU; on a GPU there are flat, fp16 and ivf")
        rows = _live(exactly, dimension)
        parts.append(Part(DeviceIndex(rows, settings.device, half=settings.vectors == "fp16"), _items(exactly)))
        exactly = []
    elif settings.vectors in KINDS:
        exactly = []
        for index, group in zip(indexes, segments, strict=True):
            rows_of = [Rows(dimension, [(segment.vectors, segment.present)]) for segment in group]
            kind = settings.vectors
            derived = open_derived(index.path, kind, index.manifest.segments, rows_of, settings.exact_rows)
            count = 0
            if derived is not None:
                count = derived.segments
                rows = Rows.joined(rows_of[:count])
                items = np.concatenate([segment.items[segment.present] for segment in group[:count]])
                parts.append(Part(CompressedIndex(kind, derived.index, rows, settings), items))
            exactly += group[count:]
    if exactly:
        parts.append(Part(_exact(exactly, dimension, settings.mapped), _items(exactly)))
    return JoinedIndex(dimension, first, parts)


def live_rows(index: StoredIndex) -> Rows:
    """The vectors of the live items of one index, in order."""
    return _live([_segment(stored, 0) for stored in index.segments], index.manifest.model.dimension)


def _segment(stored: OpenSegment, first: int) -> _Segment:
    alive = stored.alive
    present: NDArray[np.bool_] = np.any(stored.vectors, axis=1)
    items = np.where(alive, first - 1 + np.cumsum(alive), -1).astype(np.int64)
    return _Segment(stored.vectors, present, present & alive, items)


def _items(segments: Sequence[_Segment]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *(segment.items[segment.live] for segment in segments)])


def _live(segments: Sequence[_Segment], dimension: int) -> Rows:
    return Rows(dimension, [(segment.vectors, segment.live) for segment in segments])


def _exact(segments: Sequence[_Segment], dimension: int, mapped: bool) -> VectorIndex:
    rows = _live(segments, dimension)
    if mapped:
        return rows
    flat = FlatIndex(dimension)
    for block in rows.blocks():
        flat.add(block)
    return flat
