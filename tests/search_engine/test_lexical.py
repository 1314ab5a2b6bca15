"""BM25 against the formulas of its docstring, and the analysis of text."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_engine import lexical
from search_engine.lexical import LexicalIndex, Postings, count_terms, merge_postings
from search_engine.settings import RetrievalSettings
from search_engine.stemming import stem
from search_engine.tokens import UNIGRAM, document_terms, query_terms

WORDS = ["wind", "turbine", "grid", "storm", "price", "coast", "风力", "发电", "7.5"]
TEXT = st.lists(st.sampled_from(WORDS), max_size=180).map(" ".join)
PAGE = st.tuples(TEXT, st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join))


def counted(text: str) -> Counter[str]:
    return Counter(term for term in document_terms(text) if not term.startswith(UNIGRAM))


def bm25(units: list[tuple[Counter[str], Counter[str]]], query: str, settings: RetrievalSettings) -> list[float]:
    """The formulas, term by term."""
    fields = ((1.0, settings.b), (settings.context_weight, settings.context_b))
    means = []
    for field in (0, 1):
        lengths = [unit[field].total() for unit in units if unit[field]]
        means.append(sum(lengths) / len(lengths) if lengths else 1.0)
    scores = [0.0] * len(units)
    for term, repeats in Counter(query_terms(query)).items():
        holding = sum(any(unit[field][term] for field in (0, 1)) for unit in units)
        idf = math.log(1 + (len(units) - holding + 0.5) / (holding + 0.5))
        for number, unit in enumerate(units):
            frequency = sum(
                weight * unit[field][term] / (1 - b + b * unit[field].total() / means[field])
                for field, (weight, b) in enumerate(fields)
                if unit[field]
            )
            scores[number] += repeats * idf * (settings.k1 + 1) * frequency / (settings.k1 + frequency)
    return scores


def expected(pages: list[tuple[str, str]], query: str, settings: RetrievalSettings) -> list[float]:
    wholes, passages, owners = [], [], []
    for number, (text, context) in enumerate(pages):
        terms = [term for term in document_terms(text) if not term.startswith(UNIGRAM)]
        wholes.append((Counter(terms), counted(context)))
        parts = max(1, math.ceil(len(terms) / lexical.PASSAGE_TERMS))
        bounds = [math.ceil(part * len(terms) / parts) for part in range(parts + 1)]
        for start, end in itertools.pairwise(bounds):
            passages.append((Counter(terms[start:end]), counted(context)))
            owners.append(number)
    scores = bm25(wholes, query, settings)
    by_passage = bm25(passages, query, settings)
    best = [max(s for s, owner in zip(by_passage, owners, strict=True) if owner == page) for page in range(len(pages))]
    return [whole + passage for whole, passage in zip(scores, best, strict=True)]


@settings(max_examples=50, deadline=None)
@given(
    pages=st.lists(PAGE, max_size=12),
    query=st.lists(st.sampled_from([*WORDS, "unseen"]), min_size=1, max_size=5).map(" ".join),
    k=st.integers(1, 15),
    weight=st.sampled_from([0.0, 0.5, 2.0]),
)
def test_scores_follow_the_formulas(pages: list[tuple[str, str]], query: str, k: int, weight: float) -> None:
    chosen = RetrievalSettings(context_weight=weight)
    found, scores = LexicalIndex(count_terms(pages), chosen).search(query, k)
    wanted = expected(pages, query, chosen)
    assert len(found) == min(k, sum(score > 0 for score in wanted))
    np.testing.assert_allclose(scores, [wanted[page] for page in found], rtol=1e-4)
    np.testing.assert_allclose(scores, sorted(wanted, reverse=True)[: len(found)], rtol=1e-4)


@settings(max_examples=30, deadline=None)
@given(pages=st.lists(st.tuples(PAGE, st.booleans()), max_size=14), cuts=st.sets(st.integers(0, 14), max_size=3))
def test_merged_segments_equal_one(pages: list[tuple[tuple[str, str], bool]], cuts: set[int]) -> None:
    """Pages that are spread over segments, some of them removed, count like the rest counted at once."""
    bounds = sorted({0, len(pages), *(cut for cut in cuts if cut < len(pages))})
    parts = []
    for start, end in itertools.pairwise(bounds):
        chunk = pages[start:end]
        parts.append((count_terms([page for page, _ in chunk]), np.array([keep for _, keep in chunk], bool)))
    merged = merge_postings(parts)
    at_once = count_terms([page for page, keep in pages if keep])
    assert len(merged) == len(at_once)
    for name, array in at_once.arrays().items():
        np.testing.assert_array_equal(merged.arrays()[name], array, err_msg=name)
        assert merged.arrays()[name].dtype == array.dtype


def test_a_filter_counts_rarity_among_what_it_admits() -> None:
    pages = [("wind grid", ""), ("wind storm", ""), ("grid", ""), ("storm storm", ""), ("wind", "")]
    index = LexicalIndex(count_terms(pages))
    allowed = np.array([True, True, False, False, False])
    found, scores = index.search("wind storm", 10, allowed)
    alone_found, alone_scores = LexicalIndex(count_terms(pages[:2])).search("wind storm", 10)
    assert found.tolist() == alone_found.tolist() == [1, 0]
    assert scores[0] > scores[1] > 0
    # The lengths are still those of the whole collection; the rarity is that of the two.
    np.testing.assert_allclose(scores, alone_scores, rtol=0.2)
    assert index.search("wind", 10, np.zeros(5, bool))[0].tolist() == []


def test_the_best_passage_decides_between_pages_with_the_same_words() -> None:
    filler = ["noise"] * 60
    together = " ".join(["wind", "price", *filler, *filler])
    scattered = " ".join(["wind", *filler, *filler, "price"])
    found, scores = LexicalIndex(count_terms([(scattered, ""), (together, "")])).search("wind price", 2)
    assert found.tolist() == [1, 0]
    assert scores[0] > scores[1]


def test_equal_scores_come_by_number_and_nothing_scores_zero() -> None:
    index = LexicalIndex(count_terms([("grid", ""), ("wind", ""), ("wind", ""), ("", ""), ("wind", "")]))
    assert index.search("wind", 2)[0].tolist() == [1, 2]
    assert index.search("wind", 100)[0].tolist() == [1, 2, 4]
    assert index.search("unknown", 5)[0].tolist() == []
    assert index.search("", 5)[0].tolist() == []
    assert LexicalIndex(count_terms([])).search("wind", 5)[0].tolist() == []


def test_postings_survive_their_arrays() -> None:
    postings = count_terms([("wind 风力发电", "grid"), ("", "")])
    assert len(postings) == len(Postings(**postings.arrays())) == 2


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The organisations' reports", ["organis", "report"]),
        ("1,200.50 and 60.00", ["1200.5", "60"]),
        ("88.4% of 2,000", ["88.4", "percent", "2000"]),
        ("requirement 5.2.6", ["requir", "5.2.6"]),
        ("long-term", ["longterm", "long", "term"]),
        ("inter-\nnational", ["intern"]),
        ("FY2022", ["fy2022", "fy", "2022"]),
        ("nine of twelve", ["9", "12"]),
        ("ＦＵＬＬ café", ["full", "cafe"]),
        ("安全\n治理", ["安全", "全治", "治理"]),
        ("第12页", ["12"]),
        ("2025年全球 10MW", ["2025", "年全", "全球", "10mw", "10", "mw"]),
        ("1,200年 12,34", ["1200", "12", "34"]),
        ("", []),
        ("…—!?", []),
        ("\ud800 word", ["word"]),
    ],
)
def test_documents_are_analysed(text: str, terms: list[str]) -> None:
    assert [term for term in document_terms(text) if not term.startswith(UNIGRAM)] == terms


@pytest.mark.parametrize(
    ("query", "terms"),
    [
        ("How many turbines were built?", ["turbin", "built"]),
        ("什么是机密计算？", ["机密", "密计", "计算"]),
        ("多少", ["多少"]),
        ("what is it", []),
        ("库", [UNIGRAM + "库"]),
        ("哪一家是短视频公司", ["短视", "视频", "频公", "公司"]),
    ],
)
def test_queries_lose_the_words_that_only_ask(query: str, terms: list[str]) -> None:
    assert query_terms(query) == terms


def test_a_single_character_finds_its_page() -> None:
    index = LexicalIndex(count_terms([("数据库系统", ""), ("机密计算", "")]))
    assert index.search("库", 5)[0].tolist() == [0]


@given(st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_text_has_terms(text: str) -> None:
    assert all(term and isinstance(term, str) for term in document_terms(text))
    assert all(term and isinstance(term, str) for term in query_terms(text))


@pytest.mark.parametrize(
    ("word", "expected_stem"),
    [
        ("caresses", "caress"),
        ("ponies", "poni"),
        ("agreed", "agre"),
        ("plastered", "plaster"),
        ("motoring", "motor"),
        ("hopping", "hop"),
        ("filing", "file"),
        ("happy", "happi"),
        ("relational", "relat"),
        ("vietnamization", "vietnam"),
        ("hopefulness", "hope"),
        ("electrical", "electr"),
        ("replacement", "replac"),
        ("adoption", "adopt"),
        ("effective", "effect"),
        ("controlling", "control"),
        ("rate", "rate"),
        ("cease", "ceas"),
        ("is", "is"),
    ],
)
def test_stems_are_porters(word: str, expected_stem: str) -> None:
    assert stem(word) == expected_stem
