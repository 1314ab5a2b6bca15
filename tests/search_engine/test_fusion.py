"""Fusing rankings: by scores, by ranks, and what a model that cannot read a question may not do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_engine.fusion import Channel, by_scores, reciprocal_rank
from search_engine.models.base import Document, Embedded, Query, Vectors
from search_engine.models.scripts import scripts_of_vocabulary, words_by_script
from search_engine.search_engine import SearchEngine
from search_engine.settings import RetrievalSettings


def channel(ids: Sequence[int], scores: Sequence[float], weight: float = 1.0, floor: float | None = None) -> Channel:
    return Channel(np.array(ids, np.int64), np.array(scores, np.float32), weight, floor)


def test_ranks_are_weighed() -> None:
    a, b = channel([3, 1, 2], [9, 8, 7]), channel([2, 9], [1, 0])
    ids, scores = reciprocal_rank([a, b], k=60, limit=10)
    assert ids.tolist() == [2, 3, 1, 9]
    assert scores[0] == pytest.approx((61 / 63 + 1) / 2)
    assert reciprocal_rank([a, channel([2, 9], [1, 0], 0.0)], k=60, limit=2)[0].tolist() == [3, 1]
    assert reciprocal_rank([a, channel([3], [1], 0.5)], k=60, limit=1)[1].tolist() == [1.0]
    assert reciprocal_rank([], k=60, limit=3)[0].tolist() == []


def test_scores_are_brought_to_one_scale() -> None:
    lexical = channel([1, 2, 3], [20, 12, 5], floor=0.0)
    dense = channel([2, 4, 1], [0.75, 0.625, 0.5], weight=0.75)
    ids, scores = by_scores([lexical, dense], 10)
    assert ids.tolist() == [2, 1, 4, 3]
    assert scores.tolist() == pytest.approx([(0.6 + 0.75) / 1.75, 1 / 1.75, 0.375 / 1.75, 0.25 / 1.75])
    assert by_scores([lexical, channel([], [])], 2)[1].tolist() == pytest.approx([1.0, 0.6])
    assert by_scores([channel([5, 6], [0.3, 0.3])], 5)[1].tolist() == [1.0, 1.0]
    assert by_scores([channel([], [])], 5)[0].tolist() == []


def test_a_page_that_matches_far_better_is_not_overtaken_by_a_hair() -> None:
    lexical = channel([1, 2], [30, 6], floor=0.0)
    dense = channel([2, 1], [0.81, 0.80], weight=0.2)
    assert by_scores([lexical, dense], 1)[0].tolist() == [1]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.floats(-1, 1, width=32)), max_size=20),
    st.lists(st.tuples(st.integers(0, 30), st.floats(0, 50, width=32)), max_size=20),
    st.floats(0, 2),
)
def test_fused_scores_fall_and_stay_between_0_and_1(
    near: list[tuple[int, float]], words: list[tuple[int, float]], weight: float
) -> None:
    channels = []
    for found, share, floor in ((near, weight, None), (words, 1.0, 0.0)):
        best = sorted(dict(found).items(), key=lambda entry: -entry[1])
        channels.append(channel([i for i, _ in best], [score for _, score in best], share, floor))
    ids, scores = by_scores(channels, 100)
    assert len(set(ids.tolist())) == len(ids)
    assert set(ids.tolist()) == {int(i) for c in channels if c.weight for i in c.ids}
    assert (np.diff(scores) <= 0).all()
    assert ((scores >= 0) & (scores <= 1.000001)).all()


def test_scripts_are_told_by_the_letters() -> None:
    assert words_by_script("JuiceFS 社区版, 2019 год") == {"LATIN": 1, "CJK": 3, "CYRILLIC": 1}
    assert words_by_script("34 % — 12") == {}
    english = [f"word{a}{b}".replace("word", "ab") for a in "abcdefghijklmnopqrst" for b in "abcdefghijklmnopqrst"]
    few = [chr(0x4E00 + i) for i in range(500)] + [chr(0x430 + i) for i in range(32)]
    assert scripts_of_vocabulary(english + few) == {"LATIN"}
    assert scripts_of_vocabulary(english + [chr(0x4E00 + i) for i in range(1500)]) == {"LATIN", "CJK"}


class OneWay:
    """Every text has the same vector but those whose number is odd: a ranking that is as sure of itself as it is wrong."""

    name, dimension, fingerprint, fusion_weight = "one_way", 2, "1", 5.0

    def embed_documents(self, documents: Sequence[Document]) -> Embedded:
        rows = [[0.0, 1.0] if "wind" in (document.text or "") else [1.0, 0.0] for document in documents]
        return Embedded(np.array(rows, np.float32).reshape(-1, 2))

    def embed_queries(self, queries: Sequence[Query]) -> Vectors:
        return np.array([[1.0, 0.0]] * len(queries), np.float32)

    def reads_script(self, text: str) -> bool:
        return text.isascii()


def test_what_a_model_cannot_read_is_left_to_the_words(tmp_path: Path) -> None:
    for name, text in {"a": "wind power 风力发电的报告", "b": "solar cells", "c": "nothing of it"}.items():
        (tmp_path / "docs").mkdir(exist_ok=True)
        (tmp_path / "docs" / f"{name}.txt").write_text(text, "utf-8")
    engine = SearchEngine(OneWay())
    engine.build_index(tmp_path / "docs", tmp_path / "index", workers=1)
    words = SearchEngine(OneWay(), settings=RetrievalSettings(vector_weight=0.0))
    words.load_index(tmp_path / "index")
    assert engine.retrieve(["wind power"], 3)[0][0].item.id != "a", "what it reads, it decides here"
    (found,), (expected,) = engine.retrieve(["风力发电"], 3), words.retrieve(["风力发电"], 3)
    assert [(hit.item.id, hit.score) for hit in found] == [(hit.item.id, hit.score) for hit in expected]
    assert found[0].item.id == "a"
    vectors = SearchEngine(OneWay(), settings=RetrievalSettings(hybrid=False))
    vectors.load_index(tmp_path / "index")
    assert len(vectors.retrieve(["风力发电"], 3)[0]) == 3, "with the words switched off it is all there is"
