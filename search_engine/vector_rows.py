"""The stored vectors of several segments, numbered through, without a copy of them in memory.

They are the truth that everything else is derived from and measured against: whatever finds the candidates of a search
(a compressed copy, a graph, another machine), their scores come from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from search_engine.models.base import Vectors
from search_engine.vector_index import Ranking, checked, leading, nothing, products, ranked

#: What is handed out at once (16 MB), and what a search multiplies at once (256 MB; smaller products are slower).
_BLOCK_BYTES, _SCAN_BYTES = 1 << 24, 1 << 28


class Rows:
    """Chosen rows of several arrays (float32 or float16, usually mapped from disk), read as float32.

    ``parts``: each array (n, dimension) with a mask (n,) of its rows that count. As a :class:`VectorIndex` it is the
    exact search that needs no memory of its own: every query reads all rows, from the page cache where they are in it.
    Segments should be large then (a compaction makes them so), since each is a product of its own.
    """

    def __init__(self, dimension: int, parts: Sequence[tuple[NDArray[np.floating], NDArray[np.bool_]]] = ()) -> None:
        self._dimension = dimension
        self._parts = [(vectors, np.flatnonzero(mask)) for vectors, mask in parts if mask.any()]
        self._starts = np.cumsum([0, *(len(rows) for _, rows in self._parts)])

    @classmethod
    def joined(cls, several: Sequence[Rows]) -> Rows:
        """The rows of one after those of the other; there is at least one."""
        out = cls(several[0].dimension)
        out._parts = [part for rows in several for part in rows._parts]
        out._starts = np.cumsum([0, *(len(rows) for _, rows in out._parts)])
        return out

    @property
    def dimension(self) -> int:
        return self._dimension

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, numbers: NDArray[np.int64]) -> Vectors:
        """The vectors (m, dimension) of rows by number, in the order given."""
        out = np.empty((len(numbers), self.dimension), np.float32)
        part_of = np.searchsorted(self._starts, numbers, side="right") - 1
        for part in np.unique(part_of):
            here = np.flatnonzero(part_of == part)
            vectors, rows = self._parts[part]
            out[here] = vectors[rows[numbers[here] - self._starts[part]]]
        return out

    def blocks(self, first: int = 0, size: int = _BLOCK_BYTES) -> Iterator[Vectors]:
        """The rows from number ``first`` on, about ``size`` bytes at a time; a block stays within one segment."""
        step = max(1, size // (4 * self.dimension))
        for (vectors, rows), start in zip(self._parts, self._starts, strict=False):
            some = rows[max(0, first - int(start)) :]
            for begin in range(0, len(some), step):
                chosen = some[begin : begin + step]
                whole = int(chosen[-1] - chosen[0]) + 1 == len(chosen)
                block = vectors[chosen[0] : chosen[-1] + 1] if whole else vectors[chosen]
                yield np.asarray(block, np.float32)

    def search(
        self,
        queries: Vectors,
        k: int,
        allowed: NDArray[np.bool_] | None = None,
        documents: Sequence[str] | None = None,
    ) -> list[Ranking]:
        queries = checked(queries, self.dimension, "the query's vector")
        numbers = np.arange(len(self)) if allowed is None else np.flatnonzero(allowed)
        k = min(k, len(numbers))
        if k <= 0:
            return [nothing() for _ in queries]
        if len(numbers) * 8 < len(self):
            near = [numbers[leading(scores, k)] for scores in products(self.take(numbers), queries)]
        else:
            near = self._scan(queries, k, allowed)
        return [ranked(self.take, query, rows, k) for query, rows in zip(queries, near, strict=True)]

    def _scan(self, queries: Vectors, k: int, allowed: NDArray[np.bool_] | None) -> list[NDArray[np.int64]]:
        """Block by block, keeping of each what may be among the best; then the best of these."""
        kept: list[list[tuple[NDArray[np.int64], Vectors]]] = [[] for _ in queries]
        first = 0
        for block in self.blocks(size=_SCAN_BYTES):
            rows = np.arange(len(block)) if allowed is None else np.flatnonzero(allowed[first : first + len(block)])
            if len(rows):
                for found, scores in zip(kept, products(block, queries), strict=True):
                    admitted = scores[rows]
                    near = leading(admitted, min(k, len(rows)))
                    found.append((first + rows[near], admitted[near]))
            first += len(block)
        best = []
        for found in kept:
            rows = np.concatenate([rows for rows, _ in found])
            best.append(rows[leading(np.concatenate([scores for _, scores in found]), k)])
        return best
