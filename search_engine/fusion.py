"""Several rankings into one, by reciprocal rank (Cormack, Clarke, Büttcher, SIGIR 2009), weighted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def reciprocal_rank(
    rankings: Sequence[tuple[NDArray[np.int64], float]], k: int, limit: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Fuse ``(ids best first, weight)`` into at most ``limit`` ids with their scores, best first, ties by id.

    ``score(d) = sum_r weight_r / (k + rank_r(d))``, divided by its largest possible value: 1 is first in every ranking.
    """
    used = [(ids, weight) for ids, weight in rankings if weight > 0]
    if not used:
        return np.zeros(0, np.int64), np.zeros(0, np.float32)
    ids = np.concatenate([ids for ids, _ in used])
    gains = np.concatenate([weight * (k + 1) / (k + 1 + np.arange(len(ids))) for ids, weight in used])
    unique, inverse = np.unique(ids, return_inverse=True)
    scores = np.bincount(inverse, gains, minlength=len(unique)) / sum(weight for _, weight in used)
    order = np.lexsort((unique, -scores))[:limit]
    return unique[order].astype(np.int64), scores[order].astype(np.float32)
