"""Nearest neighbours by inner product: one small protocol, and its exact implementation on FAISS.

Exact search is a question of memory traffic: every query reads all ``n * dimension * 4`` bytes once, unless several
queries share one pass, which is a matrix product. FAISS' own search shares a pass only from ``n_queries * dimension
>= 128000`` on (``distance_compute_blas_threshold``), runs a single query on one thread, and loses most of its speed
when other processes compete for the cores: it synchronises its threads for every tile. So the product is handed to
BLAS as a whole, over the matrix that FAISS holds, seen through numpy and stored once. Against ``IndexFlatIP.search``
with its threshold set to 1 (50k x 2048, 2 cores that other work kept busy; best of 12): 1 query 55 : 119 ms, 2
queries 52 : 298, 16 queries 224 : 479, 64 queries 255 : 589.

The best candidates are scored again one by one, so that a query gets the same answer, bit for bit, alone and in any
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from search_engine.models.base import Vectors
from vrag.errors import ConfigError, ModelError

Ranking = tuple[NDArray[np.int64], NDArray[np.float32]]

# How far below the k-th score a rounding error can put a rightful hit.
_ROUNDING = 1e-5
# Up to here one product per query is faster than a shared one.
_SINGLE = 4
# Scores computed at once, at most (128 MB).
_BLOCK = 1 << 25
# Candidates scored again at once.
_ROWS = 1024


class VectorIndex(Protocol):
    """Vectors numbered 0, 1, ... in the order in which they were given. May be searched by many threads at once."""

    @property
    def dimension(self) -> int: ...

    def __len__(self) -> int: ...

    def search(
        self,
        queries: Vectors,
        k: int,
        allowed: NDArray[np.bool_] | None = None,
        documents: Sequence[str] | None = None,
    ) -> list[Ranking]:
        """Per query the numbers and the scores of its ``k`` best rows (fewer when there are fewer), best first.

        ``allowed`` (n,) restricts the rows. ``documents`` names the documents that the restriction comes from, for an
        index in another process, which is asked by name. Scores are exact inner products, whatever found the rows;
        equal ones come by number. Raises :class:`ModelError` for a query vector that is not finite; nothing in a
        ranking is ever NaN or a placeholder.
        """


class FlatIndex:
    """Exact search over float32 vectors in FAISS (``IndexFlatIP``)."""

    def __init__(self, dimension: int) -> None:
        self._faiss = load_faiss()
        self._index = self._faiss.IndexFlatIP(dimension)

    @property
    def dimension(self) -> int:
        return int(self._index.d)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def add(self, vectors: Vectors) -> None:
        """Append rows of shape ``(n, dimension)``. Raises :class:`ModelError` for a row that is not finite."""
        vectors = checked(vectors, self.dimension, "a document's vector")
        if len(vectors):
            self._index.add(vectors)

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
        # Few rows are gathered; of many, all are multiplied and the rest is left out.
        gathered = len(numbers) * 8 < len(self)
        matrix = self._matrix[numbers] if gathered else self._matrix
        rankings = []
        for query, scores in zip(queries, products(matrix, queries), strict=True):
            admitted = scores if gathered or allowed is None else scores[numbers]
            rankings.append(ranked(self._matrix.__getitem__, query, numbers[leading(admitted, k)], k))
        return rankings

    @property
    def _matrix(self) -> Vectors:
        """FAISS' own storage as ``(n, dimension)``, not copied."""
        flat = self._faiss.rev_swig_ptr(self._index.get_xb(), len(self) * self.dimension)
        return np.asarray(flat, np.float32).reshape(len(self), self.dimension)


def ranked(take: Callable[[NDArray[np.int64]], Vectors], query: Vectors, rows: NDArray[np.int64], k: int) -> Ranking:
    """The ``k`` best of the candidates ``rows``; ``take`` gives the vectors of rows."""
    if not len(rows):
        return nothing()
    # Row by row in double precision: independent of the batch, of threads, and of where a row lies.
    exact = query.astype(np.float64)
    blocks = (rows[start : start + _ROWS] for start in range(0, len(rows), _ROWS))
    scores = np.concatenate([(take(block) * exact).sum(axis=1) for block in blocks]).astype(np.float32)
    order = np.lexsort((rows, -scores))[:k]
    return rows[order], scores[order]


def nothing() -> Ranking:
    return np.zeros(0, np.int64), np.zeros(0, np.float32)


def products(matrix: Vectors, queries: Vectors) -> Iterator[Vectors]:
    """The scores of all rows, query by query."""
    block = max(1, _BLOCK // len(matrix))
    for start in range(0, len(queries), block):
        some = queries[start : start + block]
        yield from (matrix @ query for query in some) if len(some) <= _SINGLE else some @ matrix.T


def leading(scores: Vectors, k: int) -> NDArray[np.int64]:
    """Where the ``k`` best scores stand, and those so near to the last of them that rounding may have put them behind."""
    kth = np.partition(scores, len(scores) - k)[len(scores) - k]
    return np.flatnonzero(scores >= kth - _ROUNDING)


def checked(vectors: Vectors, dimension: int, what: str) -> Vectors:
    """Vectors as a contiguous float32 array; raises :class:`ModelError` for another width or a value that is not finite."""
    vectors = np.ascontiguousarray(vectors, np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != dimension:
        raise ModelError(f"{what} has the shape {vectors.shape}, the index holds {dimension} dimensions")
    if not np.isfinite(vectors).all():
        raise ModelError(f"{what} is not finite: the embedding model gave NaN or infinity")
    return vectors


def load_faiss() -> Any:
    """The library, imported late because it takes a third of a second."""
    try:
        import faiss
    except ImportError as error:
        raise ConfigError(
            "faiss is not installed; install it with: pip install faiss-cpu (or faiss-gpu, never both)"
        ) from error
    return faiss
