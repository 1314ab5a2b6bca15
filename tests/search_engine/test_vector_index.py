"""The exact vector index against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_engine.vector_index import FlatIndex
from vrag.errors import ModelError

DIMENSION = 16


def vectors(count: int, seed: int, dimension: int = DIMENSION) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


def filled(rows: np.ndarray) -> FlatIndex:
    index = FlatIndex(rows.shape[1])
    index.add(rows)
    return index


def brute_force(rows: np.ndarray, query: np.ndarray, k: int, allowed: np.ndarray | None) -> list[int]:
    scores = (rows.astype(np.float64) @ query.astype(np.float64)).astype(np.float32)
    order = sorted(range(len(rows)), key=lambda row: (-scores[row], row))
    return [row for row in order if allowed is None or allowed[row]][:k]


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(0, 300),
    queries=st.integers(1, 70),
    k=st.integers(1, 320),
    seed=st.integers(0, 10_000),
    share=st.sampled_from([None, 0.0, 0.05, 0.5, 1.0]),
    repeat=st.booleans(),
)
def test_equals_brute_force(count: int, queries: int, k: int, seed: int, share: float | None, repeat: bool) -> None:
    rows = vectors(count, seed)
    if repeat and count:  # many rows that are exactly equal: ties have to come by number
        rows = rows[np.random.default_rng(seed).integers(0, max(1, count // 20), count)]
    asked = vectors(queries, seed + 1)
    allowed = None if share is None else np.random.default_rng(seed).random(count) < share
    rankings = filled(rows).search(asked, k, allowed)
    assert len(rankings) == queries
    for query, (found, scores) in zip(asked, rankings, strict=True):
        assert found.tolist() == brute_force(rows, query, k, allowed)
        assert np.isfinite(scores).all()
        assert (np.diff(scores) <= 0).all()
        np.testing.assert_allclose(scores, rows[found] @ query, atol=1e-5)


def test_a_query_has_the_same_answer_alone_and_in_any_batch() -> None:
    index = filled(vectors(3000, 1, 256))
    asked = vectors(64, 2, 256)
    alone = [index.search(asked[i : i + 1], 10)[0] for i in range(64)]
    for size in (2, 3, 8, 33, 64):
        for (rows, scores), (rows_alone, scores_alone) in zip(index.search(asked[:size], 10), alone, strict=False):
            assert rows.tolist() == rows_alone.tolist()
            assert scores.tobytes() == scores_alone.tobytes()


def test_batches_are_numbered_on() -> None:
    rows = vectors(90, 3)
    index = FlatIndex(DIMENSION)
    for part in np.array_split(rows, 4):
        index.add(part)
    index.add(np.zeros((0, DIMENSION), np.float32))
    assert len(index) == 90
    assert index.dimension == DIMENSION
    assert [ranking[0][0] for ranking in index.search(rows, 1)] == list(range(90))


def test_an_empty_index_finds_nothing() -> None:
    for queries in (1, 5):
        for found, scores in FlatIndex(DIMENSION).search(vectors(queries, 1), 3):
            assert found.tolist() == []
            assert scores.tolist() == []


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(value: float) -> None:
    index = filled(vectors(5, 1))
    bad = vectors(3, 2)
    bad[1, 4] = value
    with pytest.raises(ModelError, match="not finite"):
        index.add(bad)
    assert len(index) == 5
    with pytest.raises(ModelError, match="not finite"):
        index.search(bad, 2)


def test_another_dimension_is_refused() -> None:
    index = filled(vectors(5, 1))
    with pytest.raises(ModelError, match="16 dimensions"):
        index.add(vectors(2, 1, 8))
    with pytest.raises(ModelError, match="16 dimensions"):
        index.search(vectors(2, 1, 8), 1)


def test_large_batches_are_cut_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    index, asked = filled(vectors(500, 1)), vectors(40, 2)
    whole = index.search(asked, 5)
    monkeypatch.setattr("search_engine.vector_index._BLOCK", 3000)
    for (rows, scores), (rows_whole, scores_whole) in zip(index.search(asked, 5), whole, strict=True):
        assert rows.tolist() == rows_whole.tolist()
        assert scores.tobytes() == scores_whole.tobytes()
