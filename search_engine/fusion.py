"""Several rankings into one: by their scores, or by ranks alone.

*By scores* (the default): a weighted sum of scores that were brought to one scale. Bruch, Gai and Ingber, "An Analysis
of Fusion Functions for Hybrid Retrieval" (TOIS 2023) find it better than ranks, and more so the fewer pages there are
to choose from: ranks know no difference between a page that matches far better than the next one and a page that is
ahead by a hair, and in one document of thirty pages even the noise at the end of a ranking earns nearly as much as its
head.

*By reciprocal rank* (Cormack, Clarke, Büttcher, SIGIR 2009): needs no scores to be comparable with anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ranking = tuple[NDArray[np.int64], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Channel:
    """One ranking, best first, and what it counts.

    ``floor`` is the score that says nothing: 0 for BM25, where no word is shared. A model's cosines have none that is
    known beforehand (of two pages that have nothing in common some models say 0.1 and some 0.6); with None it is the lowest
    of the ranking.
    """

    ids: NDArray[np.int64]
    scores: NDArray[np.float32]
    weight: float
    floor: float | None = None


def by_scores(channels: Sequence[Channel], limit: int) -> Ranking:
    """At most ``limit`` ids with their fused scores, best first, ties by id.

    ``score(d) = sum_c weight_c (score_c(d) - floor_c) / (best_c - floor_c) / sum_c weight_c``: between 0 and 1, which is
    first in every ranking. What a ranking does not hold gets nothing from it; an empty one does not count.
    """
    return _summed([(channel.ids, _scaled(channel), channel.weight) for channel in channels], limit)


def reciprocal_rank(channels: Sequence[Channel], k: int, limit: int) -> Ranking:
    """The same by ranks alone.

    ``score(d) = sum_c weight_c / (k + rank_c(d))``, divided by its largest possible value.
    """
    gains = [(k + 1) / (k + 1 + np.arange(len(channel.ids))) for channel in channels]
    return _summed([(c.ids, gain, c.weight) for c, gain in zip(channels, gains, strict=True)], limit)


def _scaled(channel: Channel) -> NDArray[np.float64]:
    scores = channel.scores.astype(np.float64)
    if not len(scores):
        return scores
    floor = float(scores.min()) if channel.floor is None else channel.floor
    span = float(scores.max()) - floor
    # Where all are equal, each is as good as the best.
    return np.clip((scores - floor) / span, 0.0, 1.0) if span > 0 else np.ones(len(scores))


def _summed(parts: Sequence[tuple[NDArray[np.int64], NDArray[np.float64], float]], limit: int) -> Ranking:
    used = [(ids, gains, weight) for ids, gains, weight in parts if weight > 0 and len(ids)]
    if not used:
        return np.zeros(0, np.int64), np.zeros(0, np.float32)
    unique, inverse = np.unique(np.concatenate([ids for ids, _, _ in used]), return_inverse=True)
    gains = np.concatenate([weight * gains for _, gains, weight in used])
    scores = np.bincount(inverse, gains, minlength=len(unique)) / sum(weight for _, _, weight in used)
    order = np.lexsort((unique, -scores))[:limit]
    return unique[order].astype(np.int64), scores[order].astype(np.float32)
