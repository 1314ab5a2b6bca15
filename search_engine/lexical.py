"""BM25 over page text, in two fields: the page's own words and the context that it stands in.

A page of a report rarely repeats the title of the report or the heading of its chapter, yet a question names them.
Each page therefore has a second, short field (see :mod:`search_engine.context`) that counts less. The two are
combined before the saturation, as BM25F does (Robertson, Zaragoza, Taylor, "Simple BM25 extension to multiple
weighted fields", CIKM 2004)::

    tf(t, d)    = sum over fields f of  weight_f * count_f(t, d) / (1 - b_f + b_f * length_f(d) / mean length_f)
    score(q, d) = sum over terms t of q of  idf(t) * (k1 + 1) * tf(t, d) / (k1 + tf(t, d))
    idf(t)      = log(1 + (N - n(t) + 0.5) / (n(t) + 0.5))

Counting is done once, when a segment is written (:class:`Postings`, plain arrays keyed by the 64-bit hash of a term).
Loading merges the segments into one inverted index with the weights worked in, so a query only adds up a few short
arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_engine.settings import RetrievalSettings
from search_engine.tokens import UNIGRAM, document_terms, hash64, query_terms

Ranking = tuple[NDArray[np.int64], NDArray[np.float32]]

_MAX_COUNT = np.iinfo(np.uint16).max


@dataclass(frozen=True, slots=True)
class Postings:
    """Term counts of ``n`` pages, sorted by term. ``starts[i]:starts[i + 1]`` are the rows of ``terms[i]``.

    ``terms`` uint64 (t,), ``starts`` int64 (t + 1,), ``pages`` int32 (p,), ``counts`` uint16 (p, 2) per field,
    ``lengths`` int32 (n, 2) per field. Fields: 0 the page, 1 its context.
    """

    terms: NDArray[np.uint64]
    starts: NDArray[np.int64]
    pages: NDArray[np.int32]
    counts: NDArray[np.uint16]
    lengths: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.lengths)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """What has to be stored; ``Postings(**arrays)`` reads it back."""
        return {name: getattr(self, name) for name in ("terms", "starts", "pages", "counts", "lengths")}


def count_terms(texts: Sequence[tuple[str, str]]) -> Postings:
    """The postings of pages given as ``(text, context)``."""
    hashes: dict[str, int] = {}
    terms: list[int] = []
    pages: list[int] = []
    counts: list[tuple[int, int]] = []
    lengths = np.zeros((len(texts), 2), np.int32)
    for page, fields in enumerate(texts):
        counted = [Counter(document_terms(text)) for text in fields]
        for field, counter in enumerate(counted):
            # Single characters repeat what the bigrams say already, and are not part of a page's length.
            lengths[page, field] = sum(n for term, n in counter.items() if not term.startswith(UNIGRAM))
        for term in sorted(counted[0].keys() | counted[1].keys()):
            code = hashes.get(term)
            if code is None:
                code = hashes[term] = hash64(term)
            terms.append(code)
            pages.append(page)
            counts.append((min(counted[0][term], _MAX_COUNT), min(counted[1][term], _MAX_COUNT)))
    return _grouped(
        np.array(terms, np.uint64), np.array(pages, np.int32), np.array(counts, np.uint16).reshape(-1, 2), lengths
    )


def merge_postings(parts: Sequence[tuple[Postings, NDArray[np.bool_]]]) -> Postings:
    """The postings of the pages marked in each part, numbered anew in order."""
    terms, pages, counts, lengths = [], [], [], []
    total = 0
    for part, keep in parts:
        number = np.cumsum(keep, dtype=np.int32) - 1 + np.int32(total)
        rows = keep[part.pages]
        terms.append(np.repeat(part.terms, np.diff(part.starts))[rows])
        pages.append(number[part.pages[rows]])
        counts.append(part.counts[rows])
        lengths.append(part.lengths[keep])
        total += int(np.count_nonzero(keep))
    if not parts:
        return count_terms([])
    return _grouped(np.concatenate(terms), np.concatenate(pages), np.concatenate(counts), np.concatenate(lengths))


def _grouped(
    terms: NDArray[np.uint64], pages: NDArray[np.int32], counts: NDArray[np.uint16], lengths: NDArray[np.int32]
) -> Postings:
    """Rows in page order, brought into term order (stable, so pages stay ascending within a term)."""
    order = np.argsort(terms, kind="stable")
    unique, first = np.unique(terms[order], return_index=True)
    return Postings(unique, np.append(first, len(terms)).astype(np.int64), pages[order], counts[order], lengths)


class LexicalIndex:
    """A weighted inverted index over pages. Immutable, so it may be searched by many threads at once."""

    def __init__(self, postings: Postings, settings: RetrievalSettings | None = None) -> None:
        self._settings = settings or RetrievalSettings()
        self._size = len(postings)
        self._terms, self._starts, self._pages = postings.terms, postings.starts, postings.pages
        self._impacts = self._weigh(postings.counts, postings.lengths)

    def __len__(self) -> int:
        return self._size

    def _weigh(self, counts: NDArray[np.uint16], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        settings = self._settings
        frequency = np.zeros(len(counts), np.float32)
        for field, (weight, b) in enumerate(((1.0, settings.b), (settings.context_weight, settings.context_b))):
            # Pages without text say nothing about how long a page with text is.
            filled = lengths[:, field] > 0
            mean = float(lengths[filled, field].mean()) if filled.any() else 1.0
            norm = (1 - b + b * lengths[:, field] / mean).astype(np.float32)
            # A field without text has no counts either; 1 only keeps 0 / 0 away (b = 1).
            norm[~filled] = 1.0
            frequency += weight * counts[:, field] / norm[self._pages]
        k1 = settings.k1
        return frequency * (k1 + 1) / (k1 + frequency)

    def search(self, query: str, k: int, allowed: NDArray[np.bool_] | None = None) -> Ranking:
        """The ``k`` best pages with a score above 0, best first, equal scores by number.

        ``allowed`` (n,) restricts the pages; the rarity of a term is then counted among them alone.
        """
        scores = np.zeros(self._size, np.float32)
        total = self._size if allowed is None else int(np.count_nonzero(allowed))
        for term, repeats in Counter(query_terms(query)).items():
            code = np.uint64(hash64(term))
            at = int(np.searchsorted(self._terms, code))
            if at == len(self._terms) or self._terms[at] != code:
                continue
            rows = slice(self._starts[at], self._starts[at + 1])
            pages, impacts = self._pages[rows], self._impacts[rows]
            if allowed is not None:
                keep = allowed[pages]
                pages, impacts = pages[keep], impacts[keep]
            idf = np.log1p((total - len(pages) + 0.5) / (len(pages) + 0.5))
            scores[pages] += np.float32(repeats * idf) * impacts
        return _best(scores, k)


def _best(scores: NDArray[np.float32], k: int) -> Ranking:
    found = np.flatnonzero(scores > 0)
    if 0 < k < len(found):
        # All that tie with the k-th stay in until the order by number decides.
        kth = np.partition(scores[found], len(found) - k)[len(found) - k]
        found = found[scores[found] >= kth]
    order = np.lexsort((found, -scores[found]))[: max(k, 0)]
    return found[order].astype(np.int64), scores[found[order]]
