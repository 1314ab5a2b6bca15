"""The records that an index on disk is made of, and how it remembers paths."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from search_engine.documents import PageText
from search_engine.lexical import Postings
from search_engine.models.base import Embedder, Vectors
from vrag.items import Item

#: The version of the layout on disk.
FORMAT = 1


class Record(BaseModel):
    """A line or a part of a file of the index; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelKey(Record):
    """What has to be equal for vectors to be comparable."""

    name: str
    dimension: int = Field(ge=1)
    fingerprint: str

    @classmethod
    def of(cls, embedder: Embedder) -> ModelKey:
        return cls(name=embedder.name, dimension=embedder.dimension, fingerprint=embedder.fingerprint)

    def __str__(self) -> str:
        return f"{self.name} ({self.dimension} dimensions, {self.fingerprint})"


class FileSum(Record):
    size: int
    sha256: str


class Segment(Record):
    """``removed`` lists the rows of ``sources.jsonl`` whose items are gone."""

    name: str
    items: int
    sources: int
    files: dict[str, FileSum]
    removed: tuple[int, ...] = ()

    @property
    def items_sum(self) -> str:
        """The sha256 of the file that lists its items."""
        return next(file.sha256 for name, file in self.files.items() if name.endswith(("items.jsonl", "_list.jsonl")))

    @property
    def vectors_sum(self) -> str:
        """The sha256 of the file that its vectors are in."""
        return next(file.sha256 for name, file in self.files.items() if name.endswith((".npy", ".bin")))


#: How vectors are stored: float16 takes half the room and changes a cosine by less than 0.001.
Precision = Literal["float32", "float16"]


class Manifest(Record):
    """``corpus`` is where page images and OCR results lie, as a portable path (see :func:`portable`). ``precision`` is that
    of the vectors of new segments."""

    format: int = FORMAT
    name: str
    model: ModelKey
    corpus: str
    precision: Precision = "float32"
    segments: tuple[Segment, ...] = ()


class SourceRecord(Record):
    """One indexed file (or one passage of a list), as it was when it was read.

    ``path`` is portable; ``origin`` is the folder, list or file that it was discovered through, ``key`` its name
    there. ``id`` is the stem of the ids of its items. ``problems`` say what could not be read; a file that failed has
    no items.
    """

    path: str
    origin: str
    key: str
    id: str
    document: str
    kind: str
    uid: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    size: int
    mtime_ns: int
    sha256: str
    items: int
    problems: tuple[str, ...] = ()
    unembedded: int = 0
    """Items that have no vector because the model failed on them; the next build tries again."""

    @property
    def identity(self) -> tuple[str, str]:
        """What makes it the same source in the next build: the file, and its name in a list that gives it one."""
        named = self.uid is not None or self.path.lower().endswith(".jsonl")
        return self.path, self.key if named else ""


class StoredItem(Record):
    """``media`` is a portable path; ``source`` the row in ``sources.jsonl``."""

    item: Item
    media: str | None
    source: int


@dataclass(frozen=True, slots=True)
class StoredText:
    """The text of an item, and the context that lexical search gives it (title, headings)."""

    text: PageText
    context: str = ""


@dataclass(frozen=True, slots=True)
class SegmentData:
    """What a commit adds. ``vectors`` float32 (n, dimension), one row per item; a row of zeros is never found."""

    sources: Sequence[SourceRecord]
    items: Sequence[StoredItem]
    texts: Sequence[StoredText]
    vectors: Vectors
    postings: Postings


def portable(path: Path, index: Path) -> str:
    """How an index remembers a path: relative to itself when it lies beside or below it, so both can move together."""
    path, index = Path(os.path.abspath(path)), Path(os.path.abspath(index))
    if path.is_relative_to(index.parent):
        return Path(os.path.relpath(path, index)).as_posix()
    return path.as_posix()


def resolved(path: str, index: Path) -> Path:
    """The inverse of :func:`portable`."""
    return Path(os.path.normpath(Path(os.path.abspath(index)) / path))
