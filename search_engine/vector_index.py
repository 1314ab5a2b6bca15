"""Nearest neighbours by inner product: one small protocol, and its exact implementation on FAISS.

Exact search is a question of memory traffic: every query reads all ``n * dimension * 4`` bytes once, unless several
queries share one pass. Two things follow (figures of faiss 1.15 and numpy 2.4, 100k x 2048, 2 cores):

* A batch has to go through BLAS. By default FAISS does so only from ``n_queries * dimension >= 128000`` on; below, it
  scans row by row, up to four times slower. The threshold is a global of the library, set here once.
* A single query is a matrix-vector product, which FAISS runs on one thread and BLAS on all of them, three times
  faster. The matrix is the one that FAISS holds, seen through numpy, so nothing is stored twice.

Either way the best candidates are scored again one by one, so that a query gets the same answer, bit for bit, alone
and in any batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from search_engine.models.base import Vectors
from vrag.errors import ConfigError, ModelError

Ranking = tuple[NDArray[np.int64], NDArray[np.float32]]

# Candidates beyond k that are scored again, and how far below the k-th a rounding error can put a rightful hit.
_MARGIN = 16
_ROUNDING = 1e-5
# Up to here a product per query is faster than a shared pass.
_SINGLE = 2


class VectorIndex(Protocol):
    """Vectors numbered 0, 1, ... in the order in which they were added."""

    @property
    def dimension(self) -> int: ...

    def __len__(self) -> int: ...

    def add(self, vectors: Vectors) -> None:
        """Append rows of shape ``(n, dimension)``. Raises :class:`ModelError` for a row that is not finite."""

    def search(self, queries: Vectors, k: int, allowed: NDArray[np.bool_] | None = None) -> list[Ranking]:
        """Per query the numbers and the scores of its ``k`` best rows (fewer when there are fewer), best first.

        ``allowed`` (n,) restricts the rows. Equal scores come by number. Raises :class:`ModelError` for a query
        vector that is not finite; nothing in a ranking is ever NaN or a placeholder.
        """


class FlatIndex:
    """Exact search over float32 vectors in FAISS (``IndexFlatIP``)."""

    def __init__(self, dimension: int) -> None:
        self._faiss = _faiss()
        self._index = self._faiss.IndexFlatIP(dimension)

    @property
    def dimension(self) -> int:
        return int(self._index.d)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def add(self, vectors: Vectors) -> None:
        vectors = _checked(vectors, self.dimension, "a document's vector")
        if len(vectors):
            self._index.add(vectors)

    def search(self, queries: Vectors, k: int, allowed: NDArray[np.bool_] | None = None) -> list[Ranking]:
        queries = _checked(queries, self.dimension, "the query's vector")
        size = len(self) if allowed is None else int(np.count_nonzero(allowed))
        k = min(k, size)
        if k <= 0:
            return [(np.zeros(0, np.int64), np.zeros(0, np.float32)) for _ in queries]
        if allowed is not None or len(queries) <= _SINGLE:
            candidates: Iterator[NDArray[np.int64]] = (self._scan(query, k, allowed) for query in queries)
        else:
            candidates = iter(self._batch(queries, k))
        return [self._ranked(query, rows, k) for query, rows in zip(queries, candidates, strict=True)]

    @property
    def _matrix(self) -> Vectors:
        """FAISS' own storage as ``(n, dimension)``, not copied."""
        flat = self._faiss.rev_swig_ptr(self._index.get_xb(), len(self) * self.dimension)
        return np.asarray(flat, np.float32).reshape(len(self), self.dimension)

    def _scan(self, query: Vectors, k: int, allowed: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """Every row that may belong to the best ``k`` of one query."""
        if allowed is None:
            return _leading(self._matrix @ query, k)
        rows = np.flatnonzero(allowed)
        # Few rows are gathered; of many, all are multiplied and the rest is left out.
        scores = self._matrix[rows] @ query if len(rows) * 8 < len(self) else (self._matrix @ query)[rows]
        return rows[_leading(scores, k)]

    def _batch(self, queries: Vectors, k: int) -> Iterator[NDArray[np.int64]]:
        """The same for many queries in one pass over the matrix."""
        wanted = min(k + _MARGIN, len(self))
        scores, rows = self._index.search(queries, wanted)
        for query, best, numbers in zip(queries, scores, rows, strict=True):
            if wanted < len(self) and best[-1] >= best[k - 1] - _ROUNDING:
                yield self._scan(query, k, None)  # more ties than the margin holds
            else:
                yield numbers[(numbers >= 0) & (best >= best[k - 1] - _ROUNDING)].astype(np.int64)

    def _ranked(self, query: Vectors, rows: NDArray[np.int64], k: int) -> Ranking:
        # One row at a time in double precision: independent of the batch, of threads, and of where a row lies.
        exact = query.astype(np.float64)
        scores = np.array([float(np.dot(self._matrix[row].astype(np.float64), exact)) for row in rows], np.float32)
        order = np.lexsort((rows, -scores))[:k]
        return rows[order], scores[order]


def _leading(scores: Vectors, k: int) -> NDArray[np.int64]:
    kth = np.partition(scores, len(scores) - k)[len(scores) - k]
    return np.flatnonzero(scores >= kth - _ROUNDING)


def _checked(vectors: Vectors, dimension: int, what: str) -> Vectors:
    vectors = np.ascontiguousarray(vectors, np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != dimension:
        raise ModelError(f"{what} has the shape {vectors.shape}, the index holds {dimension} dimensions")
    if not np.isfinite(vectors).all():
        raise ModelError(f"{what} is not finite: the embedding model gave NaN or infinity")
    return vectors


def _faiss() -> Any:
    """The library, set up; imported late because it takes a third of a second."""
    try:
        import faiss
    except ImportError as error:
        raise ConfigError(
            "faiss is not installed; install it with: pip install faiss-cpu (or faiss-gpu, never both)"
        ) from error
    faiss.cvar.distance_compute_blas_threshold = 1
    return faiss
