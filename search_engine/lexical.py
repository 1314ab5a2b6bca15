"""BM25 over page text, at two granularities and in two fields.

*Granularities.* A question is mostly answered by a few lines, and words that stand together there say more than the
same words scattered over a page; yet a page that is about the matter throughout deserves credit too. So the terms of
a page are counted in passages of some sixty, and a page scores as a whole and through its best passage::

    score(q, page) = bm25(q, page) + max over passages p of the page of  bm25(q, p)

*Fields.* A page of a report rarely repeats the title of the report, but a question names it. Each page therefore has
a second, short field, the context that it stands in (see :mod:`search_engine.context`), which counts less. The two
are combined before the saturation, as BM25F does (Robertson, Zaragoza, Taylor, "Simple BM25 extension to multiple
weighted fields", CIKM 2004)::

    tf(t, d)   = sum over fields f of  weight_f * count_f(t, d) / (1 - b_f + b_f * length_f(d) / mean length_f)
    bm25(q, d) = sum over terms t of q of  idf(t) * (k1 + 1) * tf(t, d) / (k1 + tf(t, d))
    idf(t)     = log(1 + (N - n(t) + 0.5) / (n(t) + 0.5))

Counting is done once, when a segment is written (:class:`Postings`, plain arrays keyed by the 64-bit hash of a term).
Loading merges the segments into inverted lists with the weights worked in, so a query only adds up a few short
arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_engine.settings import RetrievalSettings
from search_engine.tokens import UNIGRAM, document_terms, hash64, query_terms

Ranking = tuple[NDArray[np.int64], NDArray[np.float32]]

#: Terms of a passage at most; a longer page is cut into equal parts.
PASSAGE_TERMS = 64
_MAX_COUNT = np.iinfo(np.uint8).max


@dataclass(frozen=True, slots=True)
class Postings:
    """Term counts of the passages of ``n`` pages, sorted by term. ``starts[i]:starts[i + 1]`` are the rows of
    ``terms[i]``.

    ``terms`` uint64 (t,), ``starts`` int64 (t + 1,), ``passages`` int32 (r,), ``counts`` uint8 (r, 2) per field; for
    every passage ``pages`` int32 (p,), ascending, and ``lengths`` int32 (p, 2) per field. Fields: 0 the text, 1 its
    context. Every page has a passage, be it empty.
    """

    terms: NDArray[np.uint64]
    starts: NDArray[np.int64]
    passages: NDArray[np.int32]
    counts: NDArray[np.uint8]
    pages: NDArray[np.int32]
    lengths: NDArray[np.int32]

    def __len__(self) -> int:
        """The number of pages."""
        return int(self.pages[-1]) + 1 if len(self.pages) else 0

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """What has to be stored; ``Postings(**arrays)`` reads it back."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def count_terms(texts: Sequence[tuple[str, str]]) -> Postings:
    """The postings of pages given as ``(text, context)``."""
    hashes: dict[str, int] = {}
    terms: list[int] = []
    passages: list[int] = []
    counts: list[tuple[int, int]] = []
    pages: list[int] = []
    lengths: list[tuple[int, int]] = []
    for page, (text, context) in enumerate(texts):
        around = Counter(document_terms(context))
        for passage in _passages(document_terms(text)):
            body = Counter(passage)
            for term in sorted(body.keys() | around.keys()):
                code = hashes.get(term)
                if code is None:
                    code = hashes[term] = hash64(term)
                terms.append(code)
                passages.append(len(pages))
                counts.append((min(body[term], _MAX_COUNT), min(around[term], _MAX_COUNT)))
            pages.append(page)
            lengths.append((_length(body), _length(around)))
    return _grouped(
        np.array(terms, np.uint64),
        np.array(passages, np.int32),
        np.array(counts, np.uint8).reshape(-1, 2),
        np.array(pages, np.int32),
        np.array(lengths, np.int32).reshape(-1, 2),
    )


def _passages(terms: list[str]) -> Iterator[list[str]]:
    """Equal parts of at most :data:`PASSAGE_TERMS` terms; single CJK characters do not count."""
    total = sum(not term.startswith(UNIGRAM) for term in terms)
    parts = max(1, -(-total // PASSAGE_TERMS))
    part: list[str] = []
    seen = done = 0
    for term in terms:
        if not term.startswith(UNIGRAM):
            if seen * parts >= (done + 1) * total:
                yield part
                part = []
                done += 1
            seen += 1
        part.append(term)
    yield part


def _length(counter: Counter[str]) -> int:
    # Single characters repeat what the bigrams say already.
    return sum(n for term, n in counter.items() if not term.startswith(UNIGRAM))


def merge_postings(parts: Sequence[tuple[Postings, NDArray[np.bool_]]]) -> Postings:
    """The postings of the pages marked in each part (one mark per page), numbered anew in order."""
    if not parts:
        return count_terms([])
    columns: list[tuple[NDArray[Any], ...]] = []
    all_pages = all_passages = 0
    for part, marked in parts:
        keep = marked[part.pages]
        page_number = np.cumsum(marked, dtype=np.int32) - 1 + np.int32(all_pages)
        passage_number = np.cumsum(keep, dtype=np.int32) - 1 + np.int32(all_passages)
        rows = keep[part.passages]
        columns.append(
            (
                np.repeat(part.terms, np.diff(part.starts))[rows],
                passage_number[part.passages[rows]],
                part.counts[rows],
                page_number[part.pages[keep]],
                part.lengths[keep],
            )
        )
        all_pages += int(np.count_nonzero(marked))
        all_passages += int(np.count_nonzero(keep))
    return _grouped(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _grouped(
    terms: NDArray[Any], passages: NDArray[Any], counts: NDArray[Any], pages: NDArray[Any], lengths: NDArray[Any]
) -> Postings:
    """Rows in passage order, brought into term order (stable, so passages stay ascending within a term)."""
    order = np.argsort(terms, kind="stable")
    unique, first = np.unique(terms[order], return_index=True)
    starts = np.append(first, len(terms)).astype(np.int64)
    return Postings(unique, starts, passages[order], counts[order], pages, lengths)


class LexicalIndex:
    """A weighted inverted index over pages. Immutable, so it may be searched by many threads at once."""

    def __init__(self, postings: Postings, settings: RetrievalSettings | None = None) -> None:
        settings = settings or RetrievalSettings()
        self._size = len(postings)
        self._terms = postings.terms
        self._page_of = postings.pages
        self._first_passage = np.flatnonzero(np.diff(postings.pages, prepend=-1))
        self._passages = _Inverted(postings.starts, postings.passages, postings.counts, postings.lengths, settings)
        self._pages = self._whole_pages(postings, settings)

    def __len__(self) -> int:
        return self._size

    def _whole_pages(self, postings: Postings, settings: RetrievalSettings) -> _Inverted:
        """The same counts added up by page; a context, which all passages of a page share, is counted once."""
        pages = postings.pages[postings.passages]
        rows = np.repeat(np.arange(len(self._terms)), np.diff(postings.starts))
        first = np.flatnonzero((np.diff(pages, prepend=-1) != 0) | (np.diff(rows, prepend=-1) != 0))
        starts = np.searchsorted(first, postings.starts)
        counts = _by_page(postings.counts, first)
        lengths = _by_page(postings.lengths, self._first_passage)
        return _Inverted(starts, pages[first], counts, lengths, settings)

    def search(self, query: str, k: int, allowed: NDArray[np.bool_] | None = None) -> Ranking:
        """The ``k`` best pages with a score above 0, best first, equal scores by number.

        ``allowed`` (n,) restricts the pages; the rarity of a term is then counted among them alone.
        """
        rows: dict[int, int] = {}
        for term, repeats in Counter(query_terms(query)).items():
            code = np.uint64(hash64(term))
            row = int(np.searchsorted(self._terms, code))
            if row < len(self._terms) and self._terms[row] == code:
                rows[row] = repeats
        if not rows:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        best = self._passages.scores(rows, None if allowed is None else allowed[self._page_of])
        scores = np.maximum.reduceat(best, self._first_passage)
        scores += self._pages.scores(rows, allowed)
        return _best(scores, k)


class _Inverted:
    """Inverted lists of one granularity, with everything but the rarity of a term worked into one number per row."""

    def __init__(
        self,
        starts: NDArray[np.int64],
        units: NDArray[np.int32],
        counts: NDArray[np.generic],
        lengths: NDArray[np.int32],
        settings: RetrievalSettings,
    ) -> None:
        self._starts, self._units, self._size = starts, units, len(lengths)
        frequency = np.zeros(len(counts), np.float32)
        for field, (weight, b) in enumerate(((1.0, settings.b), (settings.context_weight, settings.context_b))):
            # What holds no text says nothing about how long a text is.
            filled = lengths[:, field] > 0
            mean = float(lengths[filled, field].mean()) if filled.any() else 1.0
            norm = np.where(filled, 1 - b + b * lengths[:, field] / mean, 1.0).astype(np.float32)
            frequency += np.float32(weight) * counts[:, field] / norm[units]
        self._impacts = frequency * np.float32(settings.k1 + 1) / (np.float32(settings.k1) + frequency)

    def scores(self, rows: dict[int, int], allowed: NDArray[np.bool_] | None) -> NDArray[np.float32]:
        """BM25 of every unit for the terms in ``rows`` (term number: how often it is asked for)."""
        scores = np.zeros(self._size, np.float32)
        total = self._size if allowed is None else int(np.count_nonzero(allowed))
        for row, repeats in rows.items():
            span = slice(self._starts[row], self._starts[row + 1])
            units, impacts = self._units[span], self._impacts[span]
            if allowed is not None:
                keep = allowed[units]
                units, impacts = units[keep], impacts[keep]
            rarity = np.log1p((total - len(units) + 0.5) / (len(units) + 0.5))
            scores[units] += np.float32(repeats * rarity) * impacts
        return scores


def _by_page(values: NDArray[Any], first: NDArray[np.int64]) -> NDArray[np.int32]:
    if not len(first):
        return np.zeros((0, 2), np.int32)
    values = values.astype(np.int32)
    return np.stack([np.add.reduceat(values[:, 0], first), np.maximum.reduceat(values[:, 1], first)], axis=1)


def _best(scores: NDArray[np.float32], k: int) -> Ranking:
    found = np.flatnonzero(scores > 0)
    if 0 < k < len(found):
        # All that tie with the k-th stay in until the order by number decides.
        kth = np.partition(scores[found], len(found) - k)[len(found) - k]
        found = found[scores[found] >= kth]
    order = np.lexsort((found, -scores[found]))[: max(k, 0)]
    return found[order].astype(np.int64), scores[found[order]]
