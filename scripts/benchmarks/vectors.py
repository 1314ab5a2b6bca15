"""Searching vectors: exact, compressed, in lists and in a graph, side by side over the same synthetic embeddings.

The vectors imitate what embeddings of pages look like, not noise: a common direction (embeddings lie in a cone), topics, documents
within a topic and pages within a document, drawn in 256 dimensions whose variance falls as a power law, turned into the full space,
with a tenth of the energy spread over all of it. A query is a question: a page, and as much of something else. The figures come
with the cosines that result. Recall is against exact search, with candidates scored again by the stored vectors as in the service
(and "raw" without).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

KINDS = ("flat", "mapped", "fp16", "sq8", "ivf", "hnsw")
LATENT, PAGES, TOPICS = 256, 20, 512
#: ivf: lists looked into, hnsw: nodes kept in view; the last one is the default.
EFFORTS = {"ivf": (8, 32, 128), "hnsw": (32, 64, 256)}


@dataclass
class Way:
    """One line of the table: a way to search, and what was measured of it."""

    name: str
    search: Callable[[np.ndarray, int], list[Any]]
    raw: Callable[[np.ndarray], np.ndarray] | None
    build_seconds: float
    bytes_per_vector: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=2048)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--queries", type=int, default=512, help="for recall; times come from the first 64 of them")
    parser.add_argument("--rounds", type=int, default=5, help="times are medians; the ways take turns in every round")
    parser.add_argument("--device", help='a GPU to search on as well, e.g. "cuda"')
    parser.add_argument(
        "--folder", type=Path, help="where the vectors and indexes go while it runs (default: temporary)"
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    from search_engine.vector_index import FlatIndex
    from search_engine.vector_rows import Rows

    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        stored, queries, cosines = synthetic(Path(scratch) / "vectors.npy", args.rows, args.dimension, args.queries)
        rows = Rows(args.dimension, [(stored, np.ones(len(stored), bool))])
        exact = FlatIndex(args.dimension)
        started = time.perf_counter()
        for block in rows.blocks():
            exact.add(block)
        flat_seconds = time.perf_counter() - started
        truth = [set(found.tolist()) for found, _ in exact.search(queries, 10)]
        ways: list[Way] = []
        if "flat" in args.kinds:
            ways.append(Way("flat", exact.search, None, flat_seconds, 4.0 * args.dimension))
        if "mapped" in args.kinds:
            ways.append(Way("flat, mapped", rows.search, None, 0.0, 0.0))
        for kind in args.kinds:
            if kind not in ("flat", "mapped"):
                ways += _derived(kind, rows, Path(scratch))
        if args.device:
            ways += _on_device(args.device, rows)
        return {
            "rows_indexed": args.rows,
            "dimension": args.dimension,
            "cosines": cosines,
            "rows": measured(ways, queries, truth, args.rounds, args.rows),
        }


def measured(
    ways: list[Way], queries: np.ndarray, truth: list[set[int]], rounds: int, rows: int
) -> list[dict[str, Any]]:
    one: dict[str, list[float]] = {way.name: [] for way in ways}
    many: dict[str, list[float]] = {way.name: [] for way in ways}
    batch = queries[:64]
    for way in ways:  # once, so that nothing is paid for the first time
        way.search(batch[:2], 10)
    for turn in range(rounds):
        for way in ways:
            for query in range(turn, len(batch), 8):
                one[way.name].append(_seconds(way.search, batch[query : query + 1]))
            many[way.name].append(_seconds(way.search, batch) / len(batch))
    table = []
    for way in ways:
        found = [set(numbers.tolist()) for numbers, _ in way.search(queries, 10)]
        raw = None if way.raw is None else _recall([set(line.tolist()) for line in way.raw(queries)], truth)
        row = {
            "vectors": way.name,
            "recall@10": _recall(found, truth),
            "raw": raw,
            "ms alone": 1e3 * median(one[way.name]),
            "ms of 64": 1e3 * median(many[way.name]),
            "bytes/vector": round(way.bytes_per_vector),
            "build s": round(way.build_seconds, 1),
        }
        if way.name.startswith("device"):
            row["GB/s"] = rows * way.bytes_per_vector / median(one[way.name]) / 1e9
        table.append(row)
    return table


def synthetic(path: Path, rows: int, dimension: int, questions: int) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """``(vectors mapped from a new file at path, queries, cosines)``; the same for the same arguments."""
    rng = np.random.default_rng(0)
    latent = min(LATENT, dimension)
    spectrum = (np.arange(1, latent + 1) ** -0.5).astype(np.float32)
    spectrum /= np.linalg.norm(spectrum)
    turn = np.linalg.qr(rng.standard_normal((dimension, latent)))[0].T.astype(np.float32)

    def draw(count: int) -> np.ndarray:
        return rng.standard_normal((count, latent), np.float32) * spectrum

    cone, topics = draw(1)[0], draw(TOPICS)
    cone /= np.linalg.norm(cone)

    def turned(inner: np.ndarray) -> np.ndarray:
        inner /= np.linalg.norm(inner, axis=1, keepdims=True)
        rest = rng.standard_normal((len(inner), dimension), np.float32) / np.float32(dimension**0.5)
        out = np.float32(0.9**0.5) * (inner @ turn) + np.float32(0.1**0.5) * rest
        out /= np.linalg.norm(out, axis=1, keepdims=True)
        return out

    stored = np.lib.format.open_memmap(path, "w+", np.float32, (rows, dimension))
    asked_of = np.sort(rng.choice(rows, min(questions, rows), replace=False))
    inner_of_asked = []
    step = PAGES * 400
    for start in range(0, rows, step):
        count = min(step, rows - start)
        documents = -(-count // PAGES)
        of = np.repeat(np.arange(documents), PAGES)[:count]
        document = 0.6 * topics[rng.integers(0, TOPICS, documents)] + 0.55 * draw(documents)
        inner = 0.5 * cone + document[of] + 0.5 * draw(count)
        stored[start : start + count] = turned(inner)
        inner_of_asked.append(inner[asked_of[(asked_of >= start) & (asked_of < start + count)] - start])
    stored.flush()
    inner = np.concatenate(inner_of_asked)
    queries = turned(inner + 0.3 * cone + 0.7 * draw(len(inner)))
    queries, asked_of = queries[(order := rng.permutation(len(queries)))], asked_of[order]
    cosines = {
        "unrelated pages": _cosine(stored, rng.integers(0, rows, 2000), rng.integers(0, rows, 2000)),
        "pages of one document": _cosine(stored, (first := np.arange(0, rows - 1, PAGES)[:2000]), first + 1),
        "question and its page": float(np.median(np.sum(queries * stored[asked_of], axis=1))),
    }
    return np.load(path, mmap_mode="r"), queries, cosines


def _derived(kind: str, rows: Any, folder: Path) -> list[Way]:
    """Build, write and map the index as the service does; one way for each effort."""
    from search_engine.compressed_index import CompressedIndex, construct
    from search_engine.settings import RetrievalSettings
    from search_engine.vector_index import load_faiss

    faiss = load_faiss()
    started = time.perf_counter()
    made = construct(kind, rows)
    seconds = time.perf_counter() - started
    path = folder / f"{kind}.faiss"
    faiss.write_index(made, str(path))
    del made
    index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    size = path.stat().st_size / len(rows)
    ways = []
    for effort in EFFORTS.get(kind, (None,)):
        given = {} if effort is None else {"ivf": {"ivf_probes": effort}, "hnsw": {"hnsw_depth": effort}}[kind]
        found = CompressedIndex(kind, index, rows, RetrievalSettings(exact_rows=0, **given))
        name = kind if effort is None else f"{kind}, {effort}"
        ways.append(Way(name, found.search, lambda asked, by=found: by._find(asked, 10, None, 1.0), seconds, size))
    return ways


def _on_device(device: str, rows: Any) -> list[Way]:
    from search_engine.device_index import DeviceIndex

    ways = []
    for half in (False, True):
        started = time.perf_counter()
        index = DeviceIndex(rows, device, half)
        name = f"device {device}, {'fp16' if half else 'fp32'}"
        ways.append(
            Way(name, index.search, None, time.perf_counter() - started, (2.0 if half else 4.0) * rows.dimension)
        )
    return ways


def _seconds(search: Callable[[np.ndarray, int], Any], queries: np.ndarray) -> float:
    started = time.perf_counter()
    search(queries, 10)
    return time.perf_counter() - started


def _recall(found: list[set[int]], truth: list[set[int]]) -> float:
    return sum(len(some & right) for some, right in zip(found, truth, strict=True)) / sum(map(len, truth))


def _cosine(stored: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    return float(np.median(np.sum(stored[a] * stored[b], axis=1)))
