"""The embedded default: hashed n-gram vectors of a page's text. No weights, no download, any script.

A page becomes one vector of 2048 numbers. Every stemmed word, pair of neighbouring words, character trigram and CJK
bigram is hashed to one dimension and a sign (the hashing trick of Weinberger et al., ICML 2009: with the sign,
collisions cancel out on average instead of adding up). Counts are damped as ``1 + log(count)`` and the vector is
L2-normalised, so the inner product is a cosine. It is a *lexical* vector: it forgives word forms and spelling, and it
does not know synonyms.

No statistics of a corpus enter, so documents can be added at any time without touching the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from search_engine.models.base import Document, Embedded, Query, Vectors
from search_engine.models.scripts import words_by_script
from search_engine.tokens import CJK, UNIGRAM, document_terms, hash64, query_terms

_PAIR_WEIGHT = 0.5
_TRIGRAM_WEIGHT = 0.25


def _is_cjk(term: str) -> bool:
    return term[:1] >= CJK[0]


def _features(terms: Iterable[str]) -> Iterator[tuple[str, float]]:
    """``(feature, weight)`` of terms in order; the prefix keeps the kinds of feature apart."""
    previous = ""
    for term in terms:
        if term.startswith(UNIGRAM):
            continue
        yield "w " + term, 1.0
        if _is_cjk(term):
            previous = ""
            continue
        if previous:
            yield f"p {previous} {term}", _PAIR_WEIGHT
        previous = term
        if len(term) > 4 and term.isalpha():
            for start in range(len(term) - 2):
                yield "c " + term[start : start + 3], _TRIGRAM_WEIGHT


@lru_cache(maxsize=1 << 18)
def _slot(feature: str, dimension: int) -> tuple[int, float]:
    """The dimension and the sign of a feature."""
    code = hash64(feature)
    return (code >> 1) % dimension, 1.0 if code & 1 else -1.0


class TextPage:
    """:class:`search_engine.models.base.Embedder` over the text of a page; pictures and videos are not looked at."""

    #: What this channel is worth beside BM25, which reads the same words and knows how rare each is.
    fusion_weight = 0.2

    def __init__(self, dimension: int = 2048) -> None:
        self._dimension = dimension

    @property
    def name(self) -> str:
        return "text_page"

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def fingerprint(self) -> str:
        return "hashed-ngrams-1"

    def reads_script(self, text: str) -> bool:
        """Whether its ranking says anything that BM25 does not.

        Of words made of letters it has the pieces, and forgives word forms and spelling. Of Chinese it has only what BM25
        has too, the pairs of characters, and does not know how rare each is.
        """
        words = words_by_script(text)
        return words["CJK"] * 4 <= sum(words.values())

    def embed_documents(self, documents: Sequence[Document]) -> Embedded:
        """A document without words gets the zero vector: there is nothing to find it by, and that is no failure."""
        vectors = np.zeros((len(documents), self._dimension), np.float32)
        for row, document in enumerate(documents):
            text = document.text or ""
            self._fill(vectors[row], document_terms(f"{document.context or ''}\n{text}" if text.strip() else ""))
        return Embedded(vectors)

    def embed_queries(self, queries: Sequence[Query]) -> Vectors:
        vectors = np.zeros((len(queries), self._dimension), np.float32)
        for row, query in enumerate(queries):
            self._fill(vectors[row], query_terms(query.text or ""))
        return vectors

    def _fill(self, vector: Vectors, terms: list[str]) -> None:
        counts = Counter(_features(terms))
        exact = np.zeros(self._dimension)
        for (feature, weight), count in counts.items():
            slot, sign = _slot(feature, self._dimension)
            exact[slot] += sign * weight * (1.0 + np.log(count))
        norm = float(np.linalg.norm(exact))
        if norm > 0:
            vector[:] = exact / norm
