"""The second look: what a search found is read again, query and document together, and put into a better order."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_engine.models.base import Document, PairScorer, Query, Scores
from vrag.errors import ConfigError, VragError
from vrag.items import Hit

log = logging.getLogger(__name__)

NO_RERANKER = (
    "Not reranked: no reranker is set. Give one with reranker=... (a service: --reranker or VRAG_SEARCH_RERANKER)."
)


@dataclass(frozen=True, slots=True)
class Reranked:
    """Hits, best first, and sentences about what did not go as asked."""

    hits: list[Hit]
    notes: tuple[str, ...] = ()


def depth_of(rerank: bool | int, top_k: int, default: int) -> int:
    """How many hits to look at again: 0 for none, ``default`` for ``True``, never fewer than ``top_k``."""
    if rerank is False:
        return 0
    wanted = default if rerank is True else rerank
    if wanted < 1:
        raise ConfigError(f"rerank is true, false, or how many hits to look at again (at least 1), not {rerank}")
    return max(wanted, top_k)


def second_look(scorer: PairScorer, query: Query, hits: Sequence[Hit], documents: Sequence[Document]) -> Reranked:
    """Order ``hits`` by what ``scorer`` thinks of their ``documents`` (one each); equal scores stay in their order.

    A hit whose document cannot be scored keeps its place, with the score of the hit before it, so that scores still fall.
    When the scorer as a whole fails, the hits come back as they were. Nothing is raised: a search that worked is worth
    more than the order of its hits.
    """
    if not hits:
        return Reranked([])
    try:
        judged = scorer.score(query, documents)
        values, failed = _checked(judged, len(hits))
    except Exception as error:
        reason = str(error) if isinstance(error, VragError) else f"{type(error).__name__}; the log has the details"
        log.warning("%s failed to rerank %d hits", scorer.name, len(hits), exc_info=error)
        return Reranked(list(hits), (f"Not reranked: {scorer.name} failed ({reason}).",))
    notes = tuple(f"{hits[place].item.id} kept its place: {failed[place]}" for place in sorted(failed))
    for note in notes:
        log.warning("Reranking by %s: %s", scorer.name, note)
    return Reranked(_ordered(hits, values, failed), notes)


def _checked(judged: Scores, count: int) -> tuple[NDArray[np.float64], dict[int, str]]:
    values = np.asarray(judged.values, np.float64)
    if values.shape != (count,):
        raise ConfigError(f"it gave {values.shape} scores for {count} documents")
    failed = dict(judged.failed)
    for place in map(int, np.flatnonzero(~np.isfinite(values))):
        failed.setdefault(place, "its score is not finite")
    return values, failed


def _ordered(hits: Sequence[Hit], values: NDArray[np.float64], failed: dict[int, str]) -> list[Hit]:
    best = sorted((place for place in range(len(hits)) if place not in failed), key=lambda place: -values[place])
    if not best:
        return list(hits)
    ordered: list[Hit] = []
    following = iter(best)
    score = float(values[best[0]])
    for place, hit in enumerate(hits):
        if place not in failed:
            chosen = next(following)
            hit, score = hits[chosen], float(values[chosen])
        ordered.append(hit.model_copy(update={"score": score}))
    return ordered
