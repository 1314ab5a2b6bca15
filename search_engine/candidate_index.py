"""What the indexes have in common that only choose candidates: the scores, and what a filter leaves to choose from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from search_engine.models.base import Vectors
from search_engine.vector_index import Ranking, checked, nothing, ranked
from search_engine.vector_rows import Rows


class CandidateIndex(ABC):
    """A :class:`search_engine.vector_index.VectorIndex` that finds the rows worth a look; ``rows`` give them their scores."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    @property
    def dimension(self) -> int:
        return self._rows.dimension

    def __len__(self) -> int:
        return len(self._rows)

    def search(
        self,
        queries: Vectors,
        k: int,
        allowed: NDArray[np.bool_] | None = None,
        documents: Sequence[str] | None = None,
    ) -> list[Ranking]:
        queries = checked(queries, self.dimension, "the query's vector")
        admitted = len(self) if allowed is None else int(np.count_nonzero(allowed))
        k = min(k, admitted)
        if k <= 0 or not len(queries):
            return [nothing() for _ in queries]
        found = self._candidates(queries, k, admitted, allowed, documents)
        if found is None:
            return self._rows.search(queries, k, allowed)
        return [ranked(self._rows.take, query, rows, k) for query, rows in zip(queries, found, strict=True)]

    @abstractmethod
    def _candidates(
        self,
        queries: Vectors,
        k: int,
        admitted: int,
        allowed: NDArray[np.bool_] | None,
        documents: Sequence[str] | None,
    ) -> Iterable[NDArray[np.int64]] | None:
        """Per query the numbers of candidates, all of them allowed; None: compare with every row instead.

        ``admitted`` is how many rows are allowed; 1 <= ``k`` <= ``admitted``, and there is at least one query.
        """


def candidates(k: int) -> int:
    """How many candidates are scored exactly for ``k`` hits: what 8 bits a value put in the wrong order is among them."""
    return k + k // 2 + 10
