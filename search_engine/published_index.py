"""Reads an index that the published code of the paper built, and turns it into one of this project's.

    INDEX/{name}_faiss_index.bin          a flat FAISS index, inner product
    INDEX/{name}_meta_data.json           vector_dimension, num_vectors, model_name, date_created
    INDEX/{name}_file_data_list.jsonl     one object a vector: type, file_path, content?, uid?

``{name}`` is the model's name with ``_`` for ``/`` and ``-``. The published code writes the three one after the other and
keeps no sums, so that a build that was killed can leave files of different states; these are refused, since nobody can say
which file belongs to which vector.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from search_engine.documents import KINDS, Line, PageText, SourceKind
from search_engine.index_records import (
    FileSum,
    Manifest,
    ModelKey,
    Segment,
    SegmentData,
    SourceRecord,
    StoredItem,
    StoredText,
    portable,
)
from search_engine.index_store import MANIFEST, IndexWriter, StoredIndex
from search_engine.lexical import Postings, count_terms
from search_engine.vector_index import load_faiss
from vrag.errors import IndexCorrupt, IndexMismatch, VragError
from vrag.geometry import Box
from vrag.items import Item

log = logging.getLogger(__name__)

_META, _INDEX, _FILES = "_meta_data.json", "_faiss_index.bin", "_file_data_list.jsonl"
#: The published search service calls GVE by names that no checkpoint has.
_ALSO_CALLED = {"gve_qwen25_vl_3b": "gve_3b", "gve_qwen25_vl_7b": "gve_7b"}
#: A text is read up to here.
_MAX_TEXT_BYTES = 4_000_000


class PublishedMeta(BaseModel):
    """The file with the facts. Others than these are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    vector_dimension: int = Field(ge=1)
    num_vectors: int = Field(ge=0)
    model_name: str


class PublishedRow(BaseModel):
    """A line of the list of files."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    type: Literal["image", "video", "text"] | None = None
    file_path: str | None = None
    content: str | None = None
    uid: str | int | None = None


@dataclass(frozen=True, slots=True)
class PublishedFiles:
    """The three files of one index."""

    meta: Path
    vectors: Path
    files: Path

    @property
    def all(self) -> tuple[Path, Path, Path]:
        return self.meta, self.vectors, self.files


class PublishedSegment:
    """An index of the published code in the form of a segment (see :class:`search_engine.index_store.OpenSegment`)."""

    def __init__(self, segment: Segment, data: SegmentData) -> None:
        self.segment = segment
        self.sources = tuple(data.sources)
        self.items = tuple(data.items)
        self.vectors: NDArray[np.floating] = data.vectors
        self.postings: Postings = data.postings
        self._texts = tuple(data.texts)

    @property
    def alive(self) -> NDArray[np.bool_]:
        return np.ones(len(self.items), bool)

    def text(self, row: int) -> StoredText:
        return self._texts[row]


def is_published(folder: Path) -> bool:
    """Whether a folder looks like an index of the published code."""
    return not (folder / MANIFEST).exists() and any(
        next(folder.glob(f"*{suffix}"), None) is not None for suffix in (_META, _INDEX, _FILES)
    )


def find_published(folder: Path, model: str | None = None) -> PublishedFiles:
    """The files in a folder, of ``model`` where there are several.

    Raises :class:`IndexCorrupt` naming the file when one is missing, :class:`IndexMismatch` when none is of the model.
    """
    names = sorted(
        {path.name.removesuffix(suffix) for suffix in (_META, _INDEX, _FILES) for path in folder.glob(f"*{suffix}")}
    )
    chosen = (
        names if len(names) == 1 else [name for name in names if model is not None and _plain(name) == _plain(model)]
    )
    if len(chosen) != 1:
        wanted = f", none of {model}" if model is not None else "; say which model"
        raise IndexMismatch(f"{folder} holds indexes of {', '.join(names)}{wanted}")
    files = PublishedFiles(*(folder / f"{chosen[0]}{suffix}" for suffix in (_META, _INDEX, _FILES)))
    for path in files.all:
        if not path.is_file():
            others = ", ".join(other.name for other in files.all if other.is_file())
            raise IndexCorrupt(f"{path} is missing beside {others}; restore it, or build the index again")
    return files


@dataclass(frozen=True, slots=True)
class _Read:
    """Three files that belong together."""

    files: PublishedFiles
    meta: PublishedMeta
    rows: list[PublishedRow]
    vectors: NDArray[np.float32]


def read_published(folder: Path, model: ModelKey | None = None) -> StoredIndex:
    """Open an index of the published code; without ``model`` it is only looked at, and counts as its own model's.

    The published code does not record how a text was put to the model or how pictures were scaled, so an index of the same
    model and dimension is taken as one of this ``model``.

    Raises :class:`IndexCorrupt` naming the file that is missing, unreadable or does not fit the others,
    :class:`IndexMismatch` naming both models or dimensions.
    """
    folder = Path(folder)
    read = _read(folder, model, renamed=False)
    data = _segment(folder, read, home=folder)
    meta = read.meta
    key = model or ModelKey(name=meta.model_name, dimension=meta.vector_dimension, fingerprint="published")
    sums = {path.name: _sum(path) for path in read.files.all}
    segment = Segment(name="published", items=len(data.items), sources=len(data.sources), files=sums)
    segments = (segment,) if data.items else ()
    name = Path(os.path.abspath(folder)).name
    manifest = Manifest(name=name, model=key, corpus=portable(folder, folder), segments=segments)
    return StoredIndex(folder, manifest, (PublishedSegment(segment, data),) if data.items else ())


def import_published(source: Path, index: Path, model: ModelKey, *, renamed: bool = False) -> int:
    """Make an index of this project, at ``index``, of a published one; returns the number of items.

    The vectors and the paths are taken over, and a build over the same files goes on from there; media files stay where
    they are. ``renamed``: the engine's model is the same as the index', under another name.

    Raises what :func:`read_published` raises, and :class:`IndexMismatch` when there is an index at ``index`` already.
    """
    if (index / MANIFEST).exists():
        raise IndexMismatch(f"{index} is an index already; choose another folder, or add documents to it with `add`")
    data = _segment(source, _read(source, model, renamed), home=index, digests=True)
    with IndexWriter(index, model) as writer:
        writer.commit(data)
    return len(data.items)


def _read(folder: Path, model: ModelKey | None, renamed: bool) -> _Read:
    files = find_published(folder, None if model is None else model.name)
    meta = _meta(files.meta)
    if model is not None and not renamed and _plain(meta.model_name) != _plain(model.name):
        raise IndexMismatch(
            f"{folder} was built with {meta.model_name}, the engine runs {model.name}; open it with that model, or if it is "
            "the same under another name, take it over with: python -m search_engine import --renamed"
        )
    if model is not None and meta.vector_dimension != model.dimension:
        raise IndexMismatch(
            f"{folder} was built with {meta.model_name} ({meta.vector_dimension} dimensions), the engine runs {model.name} "
            f"({model.dimension} dimensions); open it with that model or build it again"
        )
    vectors = _vectors(files.vectors)
    rows = _rows(files.files)
    counts = {files.meta: meta.num_vectors, files.vectors: len(vectors), files.files: len(rows)}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{path.name} {count:,}" for path, count in counts.items())
        raise IndexCorrupt(f"the files of {folder} are of different states (vectors: {said}); build the index again")
    if vectors.shape[1] != meta.vector_dimension:
        raise IndexCorrupt(
            f"{files.vectors} has {vectors.shape[1]} dimensions, {files.meta.name} says {meta.vector_dimension}; build the index "
            "again"
        )
    return _Read(files, meta, rows, vectors)


def _plain(name: str) -> str:
    """A model's name without what the published code and file systems change of it."""
    plain = name.rstrip("/").rsplit("/", 1)[-1].replace("-", "_").replace(".", "_").lower()
    for family in ("alibaba_nlp_", "qwen_"):  # as a file's name the organisation stays in front
        plain = plain.removeprefix(family)
    return _ALSO_CALLED.get(plain, plain)


def _meta(path: Path) -> PublishedMeta:
    try:
        return PublishedMeta.model_validate_json(path.read_bytes())
    except OSError as error:
        raise IndexCorrupt(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise IndexCorrupt(
            f"{path} does not describe an index ({where + ': ' if where else ''}{problem['msg']}); build the index again"
        ) from error


def _vectors(path: Path) -> NDArray[np.float32]:
    """The vectors of a flat index (n, d). A row that is not finite becomes zeros, which are never found."""
    faiss = load_faiss()
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise IndexCorrupt(f"{path} is no FAISS index, or is truncated or damaged; build the index again") from error
    if not isinstance(index, faiss.IndexFlat):
        raise IndexMismatch(f"{path} is a {type(index).__name__}; only a flat index holds its vectors as they were")
    vectors: NDArray[np.float32] = index.reconstruct_n(0, index.ntotal).reshape(index.ntotal, index.d)
    broken = ~np.isfinite(vectors).all(axis=1)
    if broken.any():
        log.warning(
            "%s: %d vectors are not finite and are left out, the first is number %d",
            path,
            broken.sum(),
            broken.argmax(),
        )
        vectors[broken] = 0.0
    return vectors


def _rows(path: Path) -> list[PublishedRow]:
    rows: list[PublishedRow] = []
    try:
        with path.open("rb") as file:
            # A line left out would shift all that follow against their vectors.
            rows.extend(map(PublishedRow.model_validate_json, file))
    except OSError as error:
        raise IndexCorrupt(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise IndexCorrupt(
            f"{path}, line {len(rows) + 1}, does not describe a file ({error.errors(include_input=False)[0]['msg']}); build the index again"
        ) from error
    return rows


def _segment(folder: Path, read: _Read, home: Path, digests: bool = False) -> SegmentData:
    """One source and one item a row, with paths as an index at ``home`` remembers them; ``digests``: of the files, too."""
    taken: set[str] = set()
    sources: list[SourceRecord] = []
    items: list[StoredItem] = []
    texts: list[StoredText] = []
    missing = 0
    for number, row in enumerate(read.rows):
        path = None if row.file_path is None else _located(row.file_path, folder)
        kind = _kind(row)
        name = _free(str(row.uid) if row.uid is not None else Path(row.file_path or f"item_{number}").stem, taken)
        there = path is not None and path.is_file()
        missing += row.file_path is not None and not there
        document = Path(row.file_path).name if row.file_path else name
        content = _content(row, path) if kind == "text" else None
        width, height = _size(path) if kind == "image" and there else (None, None)
        item = Item(
            id=name,
            kind=kind,
            document=document,
            width=width,
            height=height,
            content=content,
            duration=_duration(path) if kind == "video" and there else None,
        )
        media = portable(path, home) if path is not None and kind != "text" else None
        where = portable(path, home) if path is not None else f"{name}.txt"
        stat = path.stat() if path is not None and there else None
        sources.append(
            SourceRecord(
                path=where,
                origin=portable(path.parent, home) if path is not None else where,
                key=path.name if path is not None else name,
                id=name,
                document=document,
                kind=kind,
                uid=None if row.uid is None else str(row.uid),
                size=len(content or "") if stat is None else stat.st_size,
                mtime_ns=0 if stat is None else stat.st_mtime_ns,
                sha256=_sum(path).sha256 if digests and path is not None and there else "",
                items=1,
                problems=() if there or path is None else (f"{path} was not there when the index was taken over",),
            )
        )
        items.append(StoredItem(item=item, media=media, source=number))
        lines = tuple(Line(line, Box(0, 0, 0, 0)) for line in (content or "").splitlines() if line.strip())
        texts.append(StoredText(PageText(lines, "text" if lines else "none")))
    if missing:
        log.warning(
            "%d of the %d files that %s names are not there; their items have no picture",
            missing,
            len(read.rows),
            folder,
        )
    return SegmentData(
        sources=sources,
        items=items,
        texts=texts,
        vectors=read.vectors,
        postings=count_terms([(stored.text.text, stored.context) for stored in texts]),
    )


def _located(file_path: str, folder: Path) -> Path:
    """Where a file is: its path is as the builder gave it, mostly relative to the folder that it ran in."""
    path = Path(file_path.replace("\\", "/") if "\\" in file_path and not Path(file_path).exists() else file_path)
    if path.is_absolute():
        return path
    places = [Path.cwd(), *folder.absolute().parents]
    return next((place / path for place in places if (place / path).is_file()), Path.cwd() / path)


def _kind(row: PublishedRow) -> Literal["image", "video", "text"]:
    if row.type is not None:
        return row.type
    known: SourceKind | None = KINDS.get(Path(row.file_path).suffix.lower()) if row.file_path else "text"
    return known if known in ("image", "video", "text") else "text" if row.content is not None else "image"


def _content(row: PublishedRow, path: Path | None) -> str:
    if row.content is not None:
        return row.content
    try:
        if path is not None:
            with path.open("rb") as file:
                return file.read(_MAX_TEXT_BYTES).decode("utf-8", "replace")
    except OSError:
        log.debug("the text %s cannot be read", path)
    return ""


def _size(path: Path | None) -> tuple[int | None, int | None]:
    """Width and height of a picture as it is shown, from its header."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:  # type: ignore[arg-type]
            turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
            return (image.height, image.width) if turned else image.size
    except (OSError, ValueError, UnidentifiedImageError, Image.DecompressionBombError):
        return None, None


def _duration(path: Path | None) -> float | None:
    from search_engine.video import probe

    try:
        seconds = probe(path).duration  # type: ignore[arg-type]
        return seconds if math.isfinite(seconds) else None
    except (VragError, OSError):
        return None


def _free(name: str, taken: set[str]) -> str:
    free, count = name, 1
    while free in taken:
        count += 1
        free = f"{name}~{count}"
    taken.add(free)
    return free


def _sum(path: Path) -> FileSum:
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
    return FileSum(size=size, sha256=digest.hexdigest())
