"""Compressed kinds, mapped rows and several indexes as one, against exact search over all vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from search_engine.compressed_index import KINDS, CompressedIndex, construct
from search_engine.settings import RetrievalSettings
from search_engine.vector_index import FlatIndex, VectorIndex
from search_engine.vector_rows import Rows
from tests.search_engine.vector_corpus import DIMENSION, clustered, opened, remove, write
from vrag.errors import ConfigError, ModelError

COUNT = 4000
VECTORS = clustered(COUNT)


def flat(vectors: np.ndarray) -> FlatIndex:
    index = FlatIndex(vectors.shape[1])
    index.add(vectors)
    return index


def rows_of(vectors: np.ndarray) -> Rows:
    return Rows(vectors.shape[1], [(vectors, np.ones(len(vectors), bool))])


@pytest.fixture(scope="module")
def indexes() -> dict[str, CompressedIndex]:
    rows = rows_of(VECTORS)
    chosen = RetrievalSettings(ivf_probes=32)
    return {kind: CompressedIndex(kind, construct(kind, rows), rows, chosen) for kind in KINDS}


def recall(index: VectorIndex, queries: np.ndarray, k: int, allowed: np.ndarray | None) -> float:
    exact = flat(VECTORS).search(queries, k, allowed)
    found = index.search(queries, k, allowed)
    right = total = 0
    for (want, want_scores), (got, scores) in zip(exact, found, strict=True):
        assert len(got) == len(want) == len(set(got.tolist()))
        assert allowed is None or allowed[got].all()
        known = dict(zip(want.tolist(), want_scores.tolist(), strict=True))
        # Whatever found a hit, its score is that of exact search, bit for bit; and the order is by score, then by number.
        assert all(known.get(row, score) == score for row, score in zip(got.tolist(), scores.tolist(), strict=True))
        assert np.lexsort((got, -scores)).tolist() == list(range(len(got)))
        right += len(np.intersect1d(want, got))
        total += len(want)
    return right / total if total else 1.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [None, 0.9, 0.3, 0.05, 0.0004])
def test_nearly_all_of_the_nearest_are_found(
    indexes: dict[str, CompressedIndex], kind: str, share: float | None
) -> None:
    allowed = None if share is None else np.random.default_rng(3).random(COUNT) < share
    for k in (1, 10, 100):
        assert recall(indexes[kind], clustered(40, 5), k, allowed) >= (0.97 if kind in ("ivf", "hnsw") else 0.999)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    first=st.integers(0, COUNT),
    width=st.integers(0, COUNT),
    k=st.integers(1, COUNT + 5),
    queries=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_any_filter_gives_as_many_hits_as_it_admits(
    indexes: dict[str, CompressedIndex], kind: str, first: int, width: int, k: int, queries: int, seed: int
) -> None:
    allowed = np.zeros(COUNT, bool)
    allowed[first : first + width] = True
    # A filter that leaves out all that is near the query is where a graph or a list finds nothing.
    recall(indexes[kind], clustered(max(queries, 1), seed)[:queries], k, allowed)


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_that_is_not_finite_is_refused(indexes: dict[str, CompressedIndex], kind: str) -> None:
    with pytest.raises(ModelError, match="not finite"):
        indexes[kind].search(np.full((1, DIMENSION), np.nan, np.float32), 3)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    dead=st.sampled_from([0.0, 0.4, 1.0]),
    share=st.sampled_from([None, 0.0, 0.06, 0.6]),
    k=st.integers(1, 80),
    seed=st.integers(0, 1000),
    half=st.booleans(),
)
def test_mapped_rows_equal_one_matrix(
    sizes: list[int], dead: float, share: float | None, k: int, seed: int, half: bool
) -> None:
    rng = np.random.default_rng(seed)
    parts = []
    for size in sizes:
        vectors = rng.standard_normal((size, DIMENSION)).astype(np.float16 if half else np.float32)
        parts.append((vectors, rng.random(size) >= dead))
    rows = Rows(DIMENSION, parts)
    whole = np.concatenate([vectors[mask] for vectors, mask in parts]).astype(np.float32)
    assert len(rows) == len(whole)
    np.testing.assert_array_equal(np.concatenate([np.zeros((0, DIMENSION), np.float32), *rows.blocks()]), whole)
    start = int(rng.integers(0, len(whole) + 1))
    np.testing.assert_array_equal(np.concatenate([whole[:0], *rows.blocks(start)]), whole[start:])
    chosen = rng.integers(0, len(whole), 20) if len(whole) else np.zeros(0, np.int64)
    np.testing.assert_array_equal(rows.take(chosen), whole[chosen])
    allowed = None if share is None else rng.random(len(whole)) < share
    queries = rng.standard_normal((4, DIMENSION)).astype(np.float32)
    for (got, scores), (want, exact) in zip(
        rows.search(queries, k, allowed), flat(whole).search(queries, k, allowed), strict=True
    ):
        assert got.tolist() == want.tolist()
        assert scores.tolist() == exact.tolist()


@pytest.mark.parametrize("kind", ["flat", *KINDS])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.sampled_from([None, 0.02, 0.5]), k=st.integers(1, 30), seed=st.integers(0, 100))
def test_several_indexes_with_holes_are_numbered_as_their_items(
    two: tuple[Path, Path, np.ndarray], kind: str, share: float | None, k: int, seed: int
) -> None:
    *folders, alive = two
    index = opened(*folders, vectors=kind, ivf_probes=64)
    vectors = np.concatenate([VECTORS[:900], VECTORS[1000:1600]])
    vectors[[5, 905]] = 0.0
    live = vectors[alive]
    assert len(index) == len(live)
    allowed = None if share is None else np.random.default_rng(seed).random(len(live)) < share
    queries = clustered(5, seed)
    present = live.any(axis=1)
    exact = flat(live).search(queries, k, present if allowed is None else allowed & present)
    for (got, scores), (want, right) in zip(index.search(queries, k, allowed), exact, strict=True):
        if kind in ("flat", "fp16"):
            assert got.tolist() == want.tolist()
            assert scores.tolist() == right.tolist()
        assert len(got) == len(want)
        assert len(np.intersect1d(got, want)) >= 0.8 * len(want) - 1


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, np.ndarray]:
    """Two indexes with a removed and a missing vector here and there; which of their items are alive."""
    folder = tmp_path_factory.mktemp("two")
    vectors = VECTORS.copy()
    vectors[[5, 1005]] = 0.0
    first = write(folder / "first", vectors[:900], [300, 1, 599])
    second = write(folder / "second", vectors[1000:1600], [600])
    remove(first, [0, 250, 300, 899])
    remove(second, [*range(40, 90)])
    alive = np.ones(1500, bool)
    alive[[0, 250, 300, 899]] = False
    alive[940:990] = False
    return first, second, alive


def test_what_cannot_be_searched_on_a_gpu_says_so(two: tuple[Path, Path, np.ndarray]) -> None:
    for settings_, reason in (
        ({"vectors": "sq8", "device": "cuda"}, "runs on the CPU"),
        ({"vectors": "ivf", "device": "cuda"}, "faiss-gpu"),
        ({"vectors": "milvus"}, "VRAG_SEARCH_MILVUS_URI"),
    ):
        with pytest.raises(ConfigError, match=reason):
            opened(two[0], **settings_)


def test_a_wrong_setting_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAG_SEARCH_VECTORS", "annoy")
    with pytest.raises(ConfigError, match=r"VRAG_SEARCH_VECTORS: .*'flat', 'fp16'"):
        RetrievalSettings()


def test_a_device_finds_what_exact_search_finds() -> None:
    pytest.importorskip("torch")
    from search_engine.device_index import DeviceIndex

    allowed = np.random.default_rng(1).random(COUNT) < 0.4
    for half in (False, True):
        index = DeviceIndex(rows_of(VECTORS), "cpu", half)
        for mask in (None, allowed):
            assert recall(index, clustered(20, 8), 10, mask) >= 0.999
