"""Which kind of vector search for how many vectors, by what ``scripts/bench vectors`` measured."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from search_engine.index_source import open_index
from search_engine.settings import RetrievalSettings
from search_engine.vectors import live_rows, open_vectors
from vrag.errors import IndexError_

#: Up to so many vectors: the kind, its bytes a dimension, and what 100,000 synthetic embeddings of 2048 dimensions gave.
_ADVICE = (
    (150_000, "flat", 4.0, "exact"),
    (600_000, "fp16", 2.0, "recall@10 of 1.000 in half the memory; every query still reads all vectors"),
    (
        10_000_000,
        "ivf",
        1.055,
        "recall@10 of 0.988 in a quarter of the memory, at a fifth of the time of exact search; hnsw gave 0.994 at a "
        "twentieth of the time, in twice the memory of ivf",
    ),
)


def advice(vectors: int, dimension: int) -> str:
    """A sentence."""
    for most, kind, width, why in _ADVICE:
        if vectors <= most:
            size = vectors * dimension * width
            return f"Advice: vectors={kind}, about {size / 1e9:,.2f} GB in memory ({why})."
    return "Advice: vectors=milvus on a cluster; this is more than one machine searches well."


@dataclass(frozen=True, slots=True)
class Trial:
    """``recall`` of the ten nearest against exact search; times are of one query, ``seconds`` that of making the index."""

    queries: int
    recall: float
    milliseconds: float
    exact_milliseconds: float
    seconds: float


def try_vectors(index: Path, settings: RetrievalSettings, queries: int = 200) -> Trial:
    """Open an index as ``settings`` say and compare with exact search, on some of its own vectors.

    Raises :class:`IndexError_` for an index without vectors.
    """
    stored = open_index(index)
    dimension = stored.manifest.model.dimension
    started = time.perf_counter()
    tried = open_vectors([stored], dimension, settings)
    seconds = time.perf_counter() - started
    exact = open_vectors([stored], dimension, RetrievalSettings(vectors="flat", device="cpu"))
    rows = live_rows(stored)
    if not len(rows):
        raise IndexError_(f"{index} has no vectors yet; build it first")
    chosen = np.sort(np.random.default_rng(0).permutation(len(rows))[:queries])
    asked = rows.take(chosen)
    times: dict[str, float] = {}
    found = {}
    for name, way in (("exact", exact), ("tried", tried)):
        way.search(asked[:1], 10)
        started = time.perf_counter()
        found[name] = [way.search(query[None], 10)[0][0] for query in asked]
        times[name] = 1e3 * (time.perf_counter() - started) / len(asked)
    right = sum(len(np.intersect1d(a, b)) for a, b in zip(found["exact"], found["tried"], strict=True))
    return Trial(len(asked), right / sum(map(len, found["exact"])), times["tried"], times["exact"], seconds)
