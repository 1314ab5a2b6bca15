"""The protocols that every embedding model and every reranking model fulfils."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vrag.errors import ModelError

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Document:
    """What an embedder may look at for one item: its text, its image file, its video file, or several of them.

    A text model reads ``text``; a visual model reads ``image`` or ``video`` (and ``text``, where it takes both).
    """

    id: str
    text: str | None = None
    image: Path | None = None
    video: Path | None = None
    context: str | None = None
    """What the text stands in: the document's name, its title, the headings. For models that read text alone."""


@dataclass(frozen=True, slots=True)
class Query:
    """A question, or an example image, or both. ``image`` is the encoded picture."""

    text: str | None = None
    image: bytes | None = None


@dataclass(slots=True)
class Embedded:
    """The outcome of embedding a batch: one row per document, in order; ``failed`` maps a row to its reason.

    A failed row is all zeros and must not be indexed; it never touches the other rows.
    """

    vectors: Vectors
    failed: dict[int, str] = field(default_factory=dict)


@runtime_checkable
class Embedder(Protocol):
    """An embedding model. Vectors are float32, L2-normalised (inner product = cosine), shape ``(n, dimension)``."""

    @property
    def name(self) -> str:
        """The model's name as the manifest of an index records it."""

    @property
    def dimension(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """Everything beside name and dimension that changes the vectors (template, pooling, limits), as a short string.

        An index remembers it and refuses to be used with another.
        """

    def embed_documents(self, documents: Sequence[Document]) -> Embedded: ...

    def embed_queries(self, queries: Sequence[Query]) -> Vectors: ...


Embedding = Callable[[], list[Embedded]]


def begin(embedder: Embedder, chunks: Sequence[Sequence[Document]]) -> Embedding:
    """Embed several batches; the result is there when the function returned is called, one outcome per batch, in order.

    An embedder that works elsewhere has a method ``submit`` that begins at once (and an attribute ``ahead``: how many such
    calls may be under way); the others work when the result is asked for.
    """
    submit = getattr(embedder, "submit", None)
    if submit is not None:
        started: Embedding = submit(chunks)
        return started
    return lambda: [embedder.embed_documents(chunk) for chunk in chunks]


def checked(embedder: Embedder, embedded: Embedded, count: int) -> Embedded:
    """The outcome of embedding ``count`` documents, or ModelError where it cannot be theirs.

    A vector that is not finite makes its document fail, and what failed has no vector.
    """
    vectors = np.array(embedded.vectors, np.float32)
    if vectors.shape != (count, embedder.dimension):
        raise ModelError(f"{embedder.name} gave {vectors.shape} for {count} documents; it cannot be used")
    failed = dict(embedded.failed)
    if strange := [row for row in failed if not 0 <= row < count]:
        raise ModelError(f"{embedder.name} says that document {strange[0]} of {count} failed; it cannot be used")
    for row in map(int, np.flatnonzero(~np.isfinite(vectors).all(axis=1))):
        failed.setdefault(row, f"{embedder.name} gave a vector that is not finite")
    vectors[sorted(failed)] = 0.0
    return Embedded(vectors, failed)


@dataclass(slots=True)
class Scores:
    """One score between 0 and 1 for each document, in order; ``failed`` maps a row (whose score is 0) to its reason."""

    values: NDArray[np.float32]
    failed: dict[int, str] = field(default_factory=dict)


@runtime_checkable
class PairScorer(Protocol):
    """A reranking model: it reads a query and a document together, which is slower and sharper than comparing vectors."""

    @property
    def name(self) -> str: ...

    def score(self, query: Query, documents: Sequence[Document]) -> Scores:
        """How well each document answers the query. A document that cannot be read fails alone."""


def close(model: object) -> None:
    """Let go of what a model holds (connections, devices), if it holds anything: its ``close`` is optional."""
    closing = getattr(model, "close", None)
    if callable(closing):
        closing()


def sees_pictures(embedder: Embedder) -> bool:
    """Whether queries may be pictures: the attribute of this name, which a model that reads text alone need not have."""
    return bool(getattr(embedder, "sees_pictures", False))


def reads(embedder: Embedder, text: str) -> bool:
    """Whether the model can read the script of ``text``: its ``reads_script``, which a model that reads all need not have."""
    able = getattr(embedder, "reads_script", None)
    return able is None or bool(able(text))
