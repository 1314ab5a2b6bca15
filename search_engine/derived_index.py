"""Compressed indexes on disk, beside the segments that they are derived from.

    INDEX/derived/hnsw.json                     which file counts, its size and sha256, the segments that it covers
    INDEX/derived/hnsw-0a1b2c3d4e5f6071.faiss   the FAISS index over every vector of these segments, in order

Nothing here is the truth: whatever is missing, damaged or of other segments is made again from the vectors. A derived
index covers the first segments of an index; what was added later is searched exactly beside it until it has become too
much, and is then worked in. What was removed since is left out of the results. A compaction gives new segments, and the
next opening derives the index anew. A file counts once the record names it, and the record is replaced in one step.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from search_engine.compressed_index import KINDS, construct, extend, recipe
from search_engine.index_records import FileSum, Record, Segment
from search_engine.index_store import check_file, write_file
from search_engine.vector_index import load_faiss
from search_engine.vector_rows import Rows
from vrag.errors import IndexCorrupt

log = logging.getLogger(__name__)

FOLDER = "derived"
#: What is new may be this share of a derived index (or ``exact_rows``, if that is more) before it is worked in.
_NEW_SHARE = 0.1
#: Lists are made for a number of rows; when there are this many times as many, they are made again.
_OUTGROWN = 4


class Covered(Record):
    """A segment as a derived index knows it: the sum is that of the file with its vectors."""

    name: str
    sha256: str

    @classmethod
    def of(cls, segment: Segment) -> Covered:
        return cls(name=segment.name, sha256=segment.vectors_sum)


class DerivedRecord(Record):
    """``made_for``: the number of rows that the structure was chosen for; ``recipe``: FAISS' name of it."""

    format: Literal[1] = 1
    kind: str
    recipe: str
    made_for: int = Field(ge=1)
    rows: int = Field(ge=1)
    dimension: int = Field(ge=1)
    file: str
    sum: FileSum
    segments: tuple[Covered, ...]


@dataclass(frozen=True, slots=True)
class Derived:
    """An opened FAISS index and the number of segments, from the first on, that it covers."""

    index: Any
    segments: int


@dataclass(frozen=True, slots=True)
class DerivedState:
    """What :func:`inspect` finds. ``record`` is None when the index is damaged (``damage`` names the file) or outdated;
    ``behind`` is the number of segments that it does not cover yet."""

    kind: str
    record: DerivedRecord | None
    behind: int = 0
    damage: str | None = None


def open_derived(
    folder: Path, kind: str, segments: Sequence[Segment], rows: Sequence[Rows], exact_rows: int
) -> Derived | None:
    """The derived index of an index folder; made, extended or made again first, where that is due.

    ``rows``: the vectors of each of the ``segments``. None when there are no more than ``exact_rows`` of them: then exact
    search is the better one. A folder that cannot be written to gets an index in memory alone.
    """
    total = sum(map(len, rows))
    if total <= exact_rows or not total:
        return None
    covered = tuple(map(Covered.of, segments))
    home = folder / FOLDER
    with _exclusive(home) as writable:
        try:
            record = _usable(home, kind, covered)
        except IndexCorrupt as error:
            log.warning("%s", error)
            record = None
        if record is not None and total < record.made_for * _OUTGROWN:
            index = _read(home / record.file)
            if index is not None and (index.ntotal, index.d) == (record.rows, record.dimension):
                if total - record.rows <= max(exact_rows, _NEW_SHARE * record.rows):
                    if writable:
                        _sweep(home, record)
                    return Derived(index, len(record.segments))
                log.info("adding %s vectors to %s", f"{total - record.rows:,}", home / record.file)
                index = load_faiss().read_index(str(home / record.file))
                extend(index, Rows.joined(rows))
                return _stored(home, index, record.model_copy(update={"segments": covered}), writable)
        log.info("making the index %s of %s vectors of %s", kind, f"{total:,}", folder)
        made = Rows.joined(rows)
        record = DerivedRecord(
            kind=kind,
            recipe=recipe(kind, total),
            made_for=total,
            rows=total,
            dimension=made.dimension,
            file="",
            sum=FileSum(size=0, sha256=""),
            segments=covered,
        )
        return _stored(home, construct(kind, made), record, writable)


def inspect(folder: Path, segments: Sequence[Segment]) -> list[DerivedState]:
    """The state of every derived index in a folder; nothing is changed or made."""
    covered = tuple(map(Covered.of, segments))
    found = []
    for kind in KINDS:
        if not (folder / FOLDER / f"{kind}.json").exists():
            continue
        try:
            record = _usable(folder / FOLDER, kind, covered)
            found.append(DerivedState(kind, record, 0 if record is None else len(covered) - len(record.segments)))
        except IndexCorrupt as error:
            found.append(DerivedState(kind, None, damage=str(error)))
    return found


def _usable(home: Path, kind: str, covered: Sequence[Covered]) -> DerivedRecord | None:
    """The record of a verified file that covers the first segments; None when there is none, or only an outdated one.

    Raises :class:`IndexCorrupt` naming the file that is damaged.
    """
    path = home / f"{kind}.json"
    try:
        record = DerivedRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise IndexCorrupt(f"{path} cannot be read or was altered; it is made again at the next start") from error
    if record.kind != kind or Path(record.file).name != record.file:
        raise IndexCorrupt(f"{path} does not describe an index of this kind; it is made again at the next start")
    if record.segments != tuple(covered[: len(record.segments)]):
        return None
    try:
        check_file(home / record.file, record.sum)
    except IndexCorrupt as error:
        raise IndexCorrupt(f"{str(error).partition(';')[0]}; it is made again at the next start") from error
    return record


def _read(path: Path) -> Any | None:
    """The index, mapped: only what a search touches is read, and processes share it. None when FAISS refuses it."""
    faiss = load_faiss()
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        # Its sum is right, so it was written by a library that this one does not understand.
        log.warning("%s is not understood by the installed faiss (%s); it is made again", path, error)
        return None


def _stored(home: Path, index: Any, record: DerivedRecord, writable: bool) -> Derived:
    """Write an index and let its record name it; on a disk that takes no more, go on with the one in memory."""
    if not writable:
        log.warning("%s cannot be written to: the index is made again at every start", home)
        return Derived(index, len(record.segments))
    new = home / f"{record.kind}.faiss.new"
    try:
        load_faiss().write_index(index, str(new))
        with open(new, "rb") as file:
            digest = _sha256(file)
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        path = home / f"{record.kind}-{digest[:16]}.faiss"
        os.replace(new, path)
        record = record.model_copy(
            update={"file": path.name, "rows": int(index.ntotal), "sum": FileSum(size=size, sha256=digest)}
        )
        write_file(home / f"{record.kind}.json.new", json.dumps(record.model_dump(mode="json"), indent=1).encode())
        os.replace(home / f"{record.kind}.json.new", home / f"{record.kind}.json")
        _sweep(home, record)
    except (OSError, RuntimeError) as error:  # RuntimeError: FAISS could not write
        log.warning("the index could not be kept in %s (%s): it is made again at the next start", home, error)
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        return Derived(index, len(record.segments))
    return Derived(_read(path) or index, len(record.segments))


def _sweep(home: Path, record: DerivedRecord) -> None:
    """Remove what the record does not name: earlier files, and what somebody left who was killed."""
    with contextlib.suppress(OSError):
        for left in (*home.glob(f"{record.kind}-*.faiss"), *home.glob(f"{record.kind}.*.new")):
            if left.name != record.file:
                left.unlink()


def _sha256(file: Any) -> str:
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def _exclusive(home: Path) -> Iterator[bool]:
    """Wait until nobody else derives here, so that two servers that start together make an index once; whether one may."""
    try:
        home.mkdir(exist_ok=True)
        file = open(home / ".lock", "ab")  # noqa: SIM115  # closed below
    except OSError:
        yield False
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield True
