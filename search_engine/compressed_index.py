"""Searching more vectors than exact search can afford: compressed copies, lists and graphs, by FAISS.

    fp16   every vector at 2 bytes a dimension, all of them compared
    sq8    1 byte a dimension (scaled per dimension), all of them compared
    ivf    the vectors of sq8 in lists by nearest centroid; a query is compared with those of the nearest lists
    hnsw   the vectors of fp16 in a navigable graph (Malkov, Yashunin, TPAMI 2018); a query walks towards its neighbours

They only choose candidates, somewhat more than are asked for. The scores come from the stored vectors, so that a hit has
the same score whatever found it, and what compression got wrong among the candidates is put right.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_engine.candidate_index import CandidateIndex, candidates
from search_engine.models.base import Vectors
from search_engine.settings import RetrievalSettings
from search_engine.vector_index import load_faiss
from search_engine.vector_rows import Rows

log = logging.getLogger(__name__)

KINDS = ("fp16", "sq8", "ivf", "hnsw")
#: Neighbours of a node of the graph, and how wide it looks for them.
_LINKS, _LINKING_DEPTH = 32, 64
#: Rows that a list is trained on, at most, and the rounds of training.
_TRAINING_ROWS, _TRAINING_ROUNDS = 64, 8
#: So few rows are compared one by one, without the index.
_FEW = 1024
#: What FAISS can return of a search on a GPU.
_GPU_CANDIDATES = 2048
#: Seconds between two lines of the log.
_REPORT = 15.0


def recipe(kind: str, rows: int) -> str:
    """FAISS' name of an index of this kind made for so many rows."""
    if kind == "ivf":
        # FAISS asks for 39 rows a list; a list more than that costs time in training and saves it in every search.
        return f"IVF{max(1, min(round(4 * rows**0.5), rows // 39))},SQ8"
    return {"fp16": "SQfp16", "sq8": "SQ8", "hnsw": f"HNSW{_LINKS},SQfp16"}[kind]


def construct(kind: str, rows: Rows) -> Any:
    """A FAISS index of the kind over all ``rows``."""
    faiss = load_faiss()
    name = recipe(kind, len(rows))
    index = faiss.index_factory(rows.dimension, name, faiss.METRIC_INNER_PRODUCT)
    if kind == "hnsw":
        index.hnsw.efConstruction = _LINKING_DEPTH
    sample = len(rows)
    if kind == "ivf":
        index.cp.niter, index.cp.spherical = _TRAINING_ROUNDS, True
        index.cp.max_points_per_centroid = _TRAINING_ROWS
        sample = min(sample, index.nlist * _TRAINING_ROWS)
    elif kind != "sq8":
        sample = min(sample, 1)
    else:
        # Its scales are the smallest and the largest value of each dimension.
        sample = min(sample, 100_000)
    chosen = np.sort(np.random.default_rng(0).permutation(len(rows))[:sample])
    log.info("training %s on %s of %s vectors", name, f"{sample:,}", f"{len(rows):,}")
    index.train(rows.take(chosen))
    extend(index, rows)
    return index


def extend(index: Any, rows: Rows) -> None:
    """Add to a FAISS index the rows that it does not have yet."""
    reported = time.monotonic()
    for block in rows.blocks(int(index.ntotal)):
        # In small steps: a call into the library cannot be interrupted.
        for start in range(0, len(block), 512):
            index.add(np.ascontiguousarray(block[start : start + 512]))
        if time.monotonic() - reported > _REPORT:
            reported = time.monotonic()
            log.info("indexed %s of %s vectors", f"{index.ntotal:,}", f"{len(rows):,}")


class CompressedIndex(CandidateIndex):
    """A FAISS index made by :func:`construct` over ``rows``, and the rows themselves for the scores.

    ``ivf_probes`` and ``hnsw_depth`` of the settings say how far a search looks; under a filter it looks further, in
    proportion to what the filter leaves out, and at everything when little is left.
    """

    def __init__(self, kind: str, index: Any, rows: Rows, settings: RetrievalSettings) -> None:
        super().__init__(rows)
        self._faiss = load_faiss()
        self._kind = kind
        self._index = index
        self._settings = settings
        if len(rows) != index.ntotal or rows.dimension != index.d:
            raise ValueError(f"an index of {index.ntotal} x {index.d} for vectors of {len(rows)} x {rows.dimension}")
        # The GPU's search knows no filter, so the index on the CPU stays for those.
        self._on_gpu = None
        if settings.device != "cpu":
            from search_engine.device_index import to_gpu

            self._on_gpu = to_gpu(index, settings.device)

    def _candidates(
        self,
        queries: Vectors,
        k: int,
        admitted: int,
        allowed: NDArray[np.bool_] | None,
        documents: Sequence[str] | None,
    ) -> Iterable[NDArray[np.int64]] | None:
        if admitted <= max(_FEW, k):
            return None
        wanted = min(admitted, candidates(k))
        selector = None
        if allowed is not None:
            bits = np.packbits(allowed, bitorder="little")
            selector = self._faiss.IDSelectorBitmap(bits)
        found = self._find(queries, wanted, selector, len(self) / admitted)
        # A graph may have no way, and the nearest lists nothing, for what a filter admits.
        short = np.flatnonzero((found >= 0).sum(axis=1) < k)
        if len(short):
            found[short] = self._find(queries[short], wanted, selector, float("inf"))
        return [row[row >= 0] for row in found]

    def _find(self, queries: Vectors, count: int, selector: Any, widen: float) -> NDArray[np.int64]:
        """``count`` candidates a query, -1 where there are fewer; looking ``widen`` times as far as the settings say."""
        index = self._index
        if self._kind == "ivf":
            probes = int(min(index.nlist, self._settings.ivf_probes * widen))
            if selector is None and self._on_gpu is not None and count <= _GPU_CANDIDATES:
                index = self._on_gpu
            params = self._faiss.SearchParametersIVF(sel=selector, nprobe=probes)
        elif self._kind == "hnsw" and widen <= 8:
            depth = max(self._settings.hnsw_depth, 2 * count) * widen
            params = self._faiss.SearchParametersHNSW(sel=selector, efSearch=int(depth))
        else:
            index = self._faiss.downcast_index(index.storage) if self._kind == "hnsw" else index
            params = self._faiss.SearchParameters(sel=selector)
        found: NDArray[np.int64] = index.search(queries, count, params=params)[1]
        return found
