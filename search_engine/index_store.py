"""The index on disk: immutable segments and one manifest, committed by an atomic rename.

    INDEX/manifest.json             which segments count, the size and sha256 of each of their files, the model, the
    tombstones INDEX/segments/000001/          sources.jsonl  items.jsonl  text.jsonl  vectors.npy  postings.npz
    INDEX/.lock                     held while somebody writes

A segment is written in full and synced before a manifest names it, and a manifest replaces the old one in one step.
So at any moment, whatever is killed, the folder holds a complete index: that of the last commit. What no manifest
names is left over from an interrupted build and is swept away by the next one. Nothing that was committed is ever
rewritten: adding writes new segments, removing adds a tombstone to the manifest, and only :meth:`IndexWriter.compact`
copies what is alive.

Reading checks every file against the manifest (a flipped bit inside FAISS' own format would load without a word).
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import logging
import mmap
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from search_engine.documents import Line, PageText
from search_engine.index_records import (
    FORMAT,
    FileSum,
    Manifest,
    ModelKey,
    Precision,
    Record,
    Segment,
    SegmentData,
    SourceRecord,
    StoredItem,
    StoredText,
    portable,
    resolved,
)
from search_engine.lexical import Postings, merge_postings
from vrag.errors import IndexCorrupt, IndexError_, IndexMismatch
from vrag.geometry import Box

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_CHUNK = 1 << 20


# ---- reading ----


def read_manifest(index: Path) -> Manifest:
    """The manifest of an index folder.

    Raises :class:`IndexCorrupt` when it is missing or altered, :class:`IndexMismatch` when its format is a newer one.
    """
    path = index / MANIFEST
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise IndexCorrupt(
            f"{path} is missing: {index} is not an index, or its first build committed nothing yet"
        ) from None
    except OSError as error:
        raise IndexCorrupt(f"{path} cannot be read: {error.strerror}") from error
    head, _, body = raw.partition(b"\n")
    if head.decode("ascii", "replace").strip() != _sum_line(body):
        raise IndexCorrupt(f"{path} is truncated or was altered; build the index again, or restore the file")
    try:
        content = json.loads(body)
        if isinstance(content, dict) and content.get("format", FORMAT) != FORMAT:
            raise IndexMismatch(
                f"{index} has format {content['format']}, this version reads format {FORMAT}; build it again"
            )
        return Manifest.model_validate(content)
    except ValueError as error:  # pydantic's and json's errors are
        raise IndexCorrupt(f"{path} does not describe an index ({error})") from error


def _sum_line(body: bytes) -> str:
    return json.dumps({"sha256": hashlib.sha256(body).hexdigest()})


def check_file(path: Path, expected: FileSum) -> None:
    """Raise :class:`IndexCorrupt` for a file that is not the one that was committed."""
    try:
        size = path.stat().st_size
        if size != expected.size:
            raise IndexCorrupt(f"{path} has {size:,} bytes instead of {expected.size:,}; build the index again")
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(_CHUNK):
                digest.update(block)
    except FileNotFoundError:
        raise IndexCorrupt(f"{path} is missing; build the index again, or restore the file") from None
    except OSError as error:
        raise IndexCorrupt(f"{path} cannot be read: {error.strerror}") from error
    if digest.hexdigest() != expected.sha256:
        raise IndexCorrupt(f"{path} was altered: its sha256 is not the recorded one; build the index again")


def check_model(index: Path, built: ModelKey, wanted: ModelKey) -> None:
    """Raise :class:`IndexMismatch`, naming both, when an index was built with another model than the one in use."""
    if built != wanted:
        raise IndexMismatch(
            f"{index} was built with {built}, the engine runs {wanted}; open it with that model or build it again"
        )


class OpenSegment(Protocol):
    """A part of an index, opened for reading. ``items`` and ``vectors`` have its rows, those of removed sources included."""

    @property
    def segment(self) -> Segment: ...

    @property
    def sources(self) -> Sequence[SourceRecord]: ...

    @property
    def items(self) -> Sequence[StoredItem]: ...

    @property
    def vectors(self) -> NDArray[np.floating]:
        """(n, dimension), float32 or float16."""

    @property
    def postings(self) -> Postings: ...

    @property
    def alive(self) -> NDArray[np.bool_]:
        """Which rows are not tombstoned, (n,)."""

    def text(self, row: int) -> StoredText:
        """The text of one row."""


class StoredSegment:
    """One verified segment, opened for reading. Rows are those of ``items.jsonl``, tombstoned ones included."""

    def __init__(self, folder: Path, segment: Segment) -> None:
        self.segment = segment
        self._folder = folder
        for name, expected in segment.files.items():
            check_file(folder / name, expected)
        self.sources = tuple(_read_records(folder / "sources.jsonl", SourceRecord))
        self.items = tuple(_read_records(folder / "items.jsonl", StoredItem))
        #: (n, dimension), mapped from disk.
        self.vectors: NDArray[np.floating] = np.load(folder / "vectors.npy", mmap_mode="r" if segment.items else None)
        with np.load(folder / "postings.npz") as arrays:
            self.postings = Postings(**arrays)
        self._text = _Lines(folder / "text.jsonl")
        if not len(self.sources) == segment.sources or not (
            len(self.items) == len(self.vectors) == len(self.postings) == len(self._text) == segment.items
        ):
            raise IndexCorrupt(f"the files of {folder} do not belong together; build the index again")

    @property
    def alive(self) -> NDArray[np.bool_]:
        """Which rows are not tombstoned, (n,)."""
        gone = np.zeros(len(self.sources) + 1, bool)
        gone[list(self.segment.removed)] = True
        return ~gone[np.array([stored.source for stored in self.items], np.int64)]

    def text(self, row: int) -> StoredText:
        """The text of one row, read from disk."""
        record = json.loads(self._text[row])
        lines = tuple(
            Line(text, Box(*box), tuple(Box(*word) for word in words), (span[0], span[1]) if span else None)
            for text, box, words, *span in record["lines"]
        )
        return StoredText(PageText(lines, record["source"]), record["context"])


class _Lines:
    """Random access to the lines of a file, which stays mapped (and readable even after a compaction removed it)."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        ends = np.flatnonzero(np.frombuffer(self._map, np.uint8) == ord("\n")) + 1
        self._bounds = np.concatenate([[0], ends]).astype(np.int64)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, row: int) -> bytes:
        return self._map[int(self._bounds[row]) : int(self._bounds[row + 1])]


def _read_records(path: Path, kind: type[Record]) -> Iterator[Any]:
    try:
        with path.open("rb") as file:
            for line in file:
                yield kind.model_validate_json(line)
    except ValidationError as error:
        raise IndexCorrupt(f"{path} holds a line that is not of an index: {error.errors()[0]['msg']}") from error


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """A verified index, opened for reading: a fixed state, whatever is committed later."""

    path: Path
    manifest: Manifest
    segments: tuple[OpenSegment, ...]

    def media(self, stored: StoredItem) -> Path | None:
        return None if stored.media is None else resolved(stored.media, self.path)


def read_index(index: Path, model: ModelKey | None = None) -> StoredIndex:
    """Open and verify an index.

    Raises :class:`IndexCorrupt` naming the file that is missing, truncated or altered, :class:`IndexMismatch` when it
    was built with another ``model``.
    """
    index = Path(index)
    while True:
        manifest = read_manifest(index)
        if model is not None:
            check_model(index, manifest.model, model)
        try:
            segments = tuple(StoredSegment(index / "segments" / s.name, s) for s in manifest.segments)
        except IndexCorrupt:
            # A compaction may have removed the segments of a manifest that is no longer the current one.
            if read_manifest(index) == manifest:
                raise
            continue
        return StoredIndex(index, manifest, segments)


# ---- writing ----


class IndexWriter:
    """The one writer of an index folder; a context manager that holds its lock.

    Opening an existing index checks the model, sweeps what an interrupted build left behind, and reads the sources.
    Every :meth:`commit` either happens wholly or not at all; a full disk raises :class:`IndexError_` and loses
    nothing committed.
    """

    def __init__(
        self,
        index: Path,
        model: ModelKey,
        *,
        corpus: Path | None = None,
        name: str | None = None,
        precision: Precision | None = None,
    ) -> None:
        self.path = Path(index)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise IndexError_(f"the index folder {self.path} cannot be created: {error.strerror}") from error
        self._lock = _lock(self.path / ".lock")
        try:
            if (self.path / MANIFEST).exists():
                self.manifest = read_manifest(self.path)
                check_model(self.path, self.manifest.model, model)
                place = None if corpus is None else portable(corpus, self.path)
                changed = {"name": name, "corpus": place, "precision": precision}
                self.manifest = self.manifest.model_copy(update={k: v for k, v in changed.items() if v is not None})
            else:
                self._refuse_foreign_folder()
                self.manifest = Manifest(
                    name=name or Path(os.path.abspath(self.path)).name,
                    model=model,
                    corpus=portable(corpus or self.path, self.path),
                    precision=precision or "float32",
                )
            self._sweep()
            self._sources = {s.name: self._read_sources(s) for s in self.manifest.segments}
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> IndexWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    @property
    def corpus(self) -> Path:
        return resolved(self.manifest.corpus, self.path)

    def sources(self) -> Iterator[tuple[tuple[str, int], SourceRecord]]:
        """Every live source with its place ``(segment, row)``, which :meth:`commit` takes to remove it."""
        for segment in self.manifest.segments:
            gone = set(segment.removed)
            for row, record in enumerate(self._sources[segment.name]):
                if row not in gone:
                    yield (segment.name, row), record

    def commit(self, added: SegmentData | None = None, removed: Iterable[tuple[str, int]] = ()) -> None:
        """Add a segment and remove sources, in one step."""
        gone: dict[str, set[int]] = {}
        for name, row in removed:
            gone.setdefault(name, set()).add(row)
        segments = [
            s.model_copy(update={"removed": tuple(sorted({*s.removed, *gone.pop(s.name, ())}))})
            for s in self.manifest.segments
        ]
        if gone:
            raise ValueError(f"no such segments: {sorted(gone)}")
        if added is not None:
            segments.append(self._write_segment(self._next_name(), added))
        self._publish(self.manifest.model_copy(update={"segments": tuple(segments)}))
        if added is not None:
            self._sources[segments[-1].name] = tuple(added.sources)

    def compact(self, segment_items: int = 4096) -> None:
        """Copy what is alive into new segments of about ``segment_items`` items and drop the rest. Order and ids stay."""
        old = read_index(self.path).segments
        written: list[Segment] = []
        pending: list[OpenSegment] = []
        serial = self._next_serial()
        for position, segment in enumerate(old):
            pending.append(segment)
            if sum(int(s.alive.sum()) for s in pending) >= segment_items or position == len(old) - 1:
                data = _merged(pending)
                if data.sources:
                    written.append(self._write_segment(f"{serial:06d}", data))
                    serial += 1
                pending = []
        self._publish(self.manifest.model_copy(update={"segments": tuple(written)}))
        self._sweep()
        self._sources = {s.name: self._read_sources(s) for s in self.manifest.segments}

    def _refuse_foreign_folder(self) -> None:
        """A folder without a manifest may only hold what an interrupted first build leaves."""
        segments = self.path / "segments"
        if segments.exists() and any(not entry.name.isdigit() for entry in segments.iterdir()):
            raise IndexError_(f"{segments} holds files that are not of an index; choose another folder for the index")

    def _sweep(self) -> None:
        (self.path / f"{MANIFEST}.new").unlink(missing_ok=True)
        known = {segment.name for segment in self.manifest.segments}
        for folder in (self.path / "segments").glob("*"):
            if folder.name not in known:
                log.info("removing %s, which no commit names", folder)
                shutil.rmtree(folder)

    def _read_sources(self, segment: Segment) -> tuple[SourceRecord, ...]:
        folder = self.path / "segments" / segment.name
        for name, expected in segment.files.items():
            path = folder / name
            if not path.exists() or path.stat().st_size != expected.size:
                check_file(path, expected)
        check_file(folder / "sources.jsonl", segment.files["sources.jsonl"])
        return tuple(_read_records(folder / "sources.jsonl", SourceRecord))

    def _next_serial(self) -> int:
        return 1 + max((int(segment.name) for segment in self.manifest.segments), default=0)

    def _next_name(self) -> str:
        return f"{self._next_serial():06d}"

    def _write_segment(self, name: str, data: SegmentData) -> Segment:
        folder = self.path / "segments" / name
        files = {
            "sources.jsonl": _jsonl(record.model_dump(mode="json") for record in data.sources),
            "items.jsonl": _jsonl(stored.model_dump(mode="json") for stored in data.items),
            "text.jsonl": _jsonl(map(_text_record, data.texts)),
            "vectors.npy": _npy(_stored(data.vectors, self.manifest.precision)),
            "postings.npz": _npz(data.postings.arrays()),
        }
        try:
            folder.mkdir(parents=True)
            sums = {file: write_file(folder / file, content) for file, content in files.items()}
            _sync_folder(folder)
            _sync_folder(folder.parent)
            _sync_folder(self.path)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise _write_error(folder, error) from error
        return Segment(name=name, items=len(data.items), sources=len(data.sources), files=sums)

    def _publish(self, manifest: Manifest) -> None:
        body = json.dumps(manifest.model_dump(mode="json"), ensure_ascii=False, indent=1).encode() + b"\n"
        new = self.path / f"{MANIFEST}.new"
        try:
            write_file(new, _sum_line(body).encode() + b"\n" + body)
            os.replace(new, self.path / MANIFEST)
            _sync_folder(self.path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise _write_error(self.path / MANIFEST, error) from error
        self.manifest = manifest


def _lock(path: Path) -> io.FileIO:
    file = open(path, "a+b", buffering=0)  # noqa: SIM115  # held until the writer closes
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        holder = file.read(32).decode("ascii", "replace").strip()
        file.close()
        raise IndexError_(
            f"{path.parent} is being written by another process{f' ({holder})' if holder else ''}; wait until it is done"
        ) from None
    try:
        file.truncate(0)
        file.write(str(os.getpid()).encode())
    except OSError:  # who holds it is a courtesy; a full disk must not keep anybody from removing documents
        log.debug("the holder of %s could not be noted", path)
    return file


def write_file(path: Path, content: bytes) -> FileSum:
    """Write a file through to the disk."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return FileSum(size=len(content), sha256=hashlib.sha256(content).hexdigest())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_error(path: Path, error: OSError) -> IndexError_:
    return IndexError_(
        f"{path} could not be written: {error.strerror}. Everything committed before is intact; "
        "make room (or set the permissions) and run the same command again"
    )


def _jsonl(records: Iterable[Mapping[str, Any]]) -> bytes:
    # A lone surrogate from a damaged text layer becomes its JSON escape.
    return b"".join(
        json.dumps(r, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace") + b"\n"
        for r in records
    )


def _text_record(stored: StoredText) -> dict[str, Any]:
    lines = [
        [line.text, _rounded(line.box), [_rounded(word) for word in line.words], *(line.span or ())]
        for line in stored.text.lines
    ]
    return {"source": stored.text.source, "context": stored.context, "lines": lines}


def _rounded(box: Box) -> list[float]:
    return [round(value, 2) for value in box.as_list()]


def _stored(vectors: NDArray[np.floating], precision: Precision) -> NDArray[np.floating]:
    """Vectors in the precision of the index; in float32 when float16 cannot hold their values."""
    if precision == "float16" and (not len(vectors) or float(np.abs(vectors).max()) < float(np.finfo(np.float16).max)):
        return vectors.astype(np.float16)
    return vectors.astype(np.float32, copy=False)


def _npy(array: NDArray[np.generic]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def _npz(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _merged(segments: Sequence[OpenSegment]) -> SegmentData:
    """The live rows of several segments as one."""
    sources: list[SourceRecord] = []
    items: list[StoredItem] = []
    texts: list[StoredText] = []
    for segment in segments:
        gone = set(segment.segment.removed)
        moved: dict[int, int] = {}
        for row, record in enumerate(segment.sources):
            if row not in gone:
                moved[row] = len(sources)
                sources.append(record)
        for row in map(int, np.flatnonzero(segment.alive)):
            stored = segment.items[row]
            items.append(stored.model_copy(update={"source": moved[stored.source]}))
            texts.append(segment.text(row))
    return SegmentData(
        sources=sources,
        items=items,
        texts=texts,
        vectors=np.concatenate([np.asarray(segment.vectors[segment.alive], np.float32) for segment in segments]),
        postings=merge_postings([(segment.postings, segment.alive) for segment in segments]),
    )
