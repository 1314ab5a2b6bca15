"""Indexes whose vectors are given, for the tests of how vectors are searched; run as a module, it derives (and is killed).

``python -m tests.search_engine.vector_corpus derive INDEX KIND [CRASH]``: opens the derived index; with CRASH, in a fork
for every number up to it over a copy ``INDEX.N``, gone at its N-th call that changes the file system.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from search_engine.index_records import ModelKey
from search_engine.index_store import IndexWriter, read_index
from search_engine.settings import RetrievalSettings
from search_engine.vectors import JoinedIndex, open_vectors
from tests.search_engine.index_child import WRITES, segment

DIMENSION = 48
KEY = ModelKey(name="given", dimension=DIMENSION, fingerprint="1")


def clustered(count: int, seed: int = 0, dimension: int = DIMENSION) -> np.ndarray:
    """Unit vectors around some fifty centres, every seventh of them twice."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((50, dimension))
    rows = centres[rng.integers(0, 50, count)] + 0.6 * rng.standard_normal((count, dimension))
    rows[7::7] = rows[6:-1:7]
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def commit(index: Path, vectors: np.ndarray, first: int, per_document: int = 1) -> None:
    """One segment. Items are called ``n{number}``, their documents ``d{number // per_document}.txt``."""
    data = segment([f"n{first + row}" for row in range(len(vectors))], vectors.shape[1])
    items = [
        stored.model_copy(
            update={"item": stored.item.model_copy(update={"document": f"d{(first + row) // per_document}.txt"})}
        )
        for row, stored in enumerate(data.items)
    ]
    with IndexWriter(index, KEY.model_copy(update={"dimension": vectors.shape[1]})) as writer:
        writer.commit(replace(data, items=items, vectors=vectors))


def write(index: Path, vectors: np.ndarray, sizes: Sequence[int], per_document: int = 1, first: int = 0) -> Path:
    start = 0
    for size in sizes:
        commit(index, vectors[start : start + size], first + start, per_document)
        start += size
    return index


def remove(index: Path, numbers: Sequence[int]) -> None:
    names = {f"n{number}" for number in numbers}
    with IndexWriter(index, KEY) as writer:
        writer.commit(removed=[place for place, record in writer.sources() if record.id in names])


def opened(*indexes: Path, **settings: Any) -> JoinedIndex:
    given = RetrievalSettings(**{"exact_rows": 0, **settings})
    return open_vectors([read_index(index) for index in indexes], DIMENSION, given)


def main(mode: str, index: str, kind: str, crashes: str = "0") -> None:
    assert mode == "derive"
    if not int(crashes):
        opened(Path(index), vectors=kind)
        return
    for number in range(1, int(crashes) + 1):
        copy = Path(f"{index}.{number}")
        shutil.copytree(index, copy)
        if (child := os.fork()) == 0:
            _die_at(number)
            opened(copy, vectors=kind)
            os._exit(0)
        os.waitpid(child, 0)


def _die_at(number: int) -> None:
    calls = 0

    def count(event: str, args: tuple[Any, ...]) -> None:
        nonlocal calls
        if event in WRITES and not (event == "open" and not (isinstance(args[2], int) and args[2] & os.O_ACCMODE)):
            calls += 1
            if calls == number:
                os._exit(9)

    sys.addaudithook(count)


if __name__ == "__main__":
    main(*sys.argv[1:])
