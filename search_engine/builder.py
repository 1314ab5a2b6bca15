"""Bringing an index up to date with the files it was made from: read what is new or changed, drop what is gone.

Files are read in order and committed by whole files, about ``save_interval`` items at a time, at points that depend
on the files alone. So a build that was killed and run again ends with the very index of an undisturbed one.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from search_engine.context import page_contexts
from search_engine.documents import Extracted, FileResult, SourceFile, discover
from search_engine.index_records import ModelKey, Precision, SegmentData, SourceRecord, StoredItem, StoredText, portable
from search_engine.index_store import IndexWriter, read_index
from search_engine.lexical import count_terms
from search_engine.models.base import Document, Embedder, Embedding, Vectors, begin, checked
from vrag.errors import ConfigError

if TYPE_CHECKING:
    from search_engine.ingest import IngestOptions, Progress

log = logging.getLogger(__name__)

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not in the index, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build did. ``items`` and ``documents`` count the index as it is now, the other numbers this run."""

    index: Path
    items: int
    documents: int
    indexed: int
    """Items added."""
    read: int
    """Files read."""
    unchanged: int
    """Files that were indexed before and have not changed."""
    removed: tuple[str, ...]
    """Documents whose file is gone (or was replaced by another under the same name)."""
    problems: tuple[Problem, ...]
    """Files and pages that could not be read and items that could not be embedded, those of earlier runs included."""
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "index": str(self.index),
            "items": self.items,
            "documents": self.documents,
            "indexed": self.indexed,
            "read": self.read,
            "unchanged": self.unchanged,
            "removed": list(self.removed),
            "problems": [str(problem) for problem in self.problems],
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """``batch_size`` documents go to the embedder at once; a commit holds about ``save_interval`` items.

    ``prune`` drops documents whose files are gone from the input; ``retry`` reads files again that failed before.
    ``precision`` of the stored vectors from now on (None: as the index has it, which is float32 at first).
    """

    batch_size: int = 16
    save_interval: int = 512
    workers: int | None = None
    prune: bool = True
    retry: bool = False
    name: str | None = None
    precision: Precision | None = None
    ingest: IngestOptions | None = None

    def __post_init__(self) -> None:
        for option in ("batch_size", "save_interval"):
            if getattr(self, option) < 1:
                raise ConfigError(f"{option} must be at least 1, not {getattr(self, option)}")


@dataclass(slots=True)
class _Job:
    """One source to read. ``replaces`` is where its former state lies; ``size`` and ``mtime_ns`` are as found before.

    ``former`` is its record where it has not changed and is read only because the model failed on some of its items.
    """

    source: SourceFile
    origin: str
    path: str
    size: int
    mtime_ns: int
    replaces: Place | None
    former: SourceRecord | None = None


@dataclass(slots=True)
class _Plan:
    jobs: list[_Job] = field(default_factory=list)
    unchanged: list[SourceRecord] = field(default_factory=list)
    gone: dict[Place, SourceRecord] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def update_index(
    index: Path,
    embedder: Embedder,
    inputs: Sequence[Path],
    *,
    corpus: Path | None = None,
    options: BuildOptions | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> BuildReport:
    """Index what the ``inputs`` (folders, lists or files) hold; create the index if there is none.

    An item that the model fails on is found by its text, is listed in ``report.problems``, and is tried again by the next
    build.

    Raises :class:`ConfigError` for an unusable input, :class:`IndexMismatch` when the index belongs to another model,
    :class:`IndexError_` when it is being written by another process or the disk is full. Whatever is raised, even
    ``KeyboardInterrupt``, what was committed stays, and the next run goes on from there.
    """
    from search_engine.ingest import IngestOptions, Ingestor

    options = options or BuildOptions()
    started = time.monotonic()
    for path in inputs:
        if os.path.abspath(path) == os.path.abspath(index):
            raise ConfigError(f"{path} cannot be both the documents and the index; give the index a folder of its own")
        if not path.exists():
            raise ConfigError(f"there is no file or folder {path}; name a folder of documents or a .jsonl list")
    with IndexWriter(
        index, ModelKey.of(embedder), corpus=corpus, name=options.name, precision=options.precision
    ) as writer:
        plan = _plan(writer, inputs, options)
        if plan.gone:
            writer.commit(removed=plan.gone)
        ingestor = Ingestor(writer.corpus / "pages", writer.corpus / "cache", options.ingest or IngestOptions())
        committer = _Committer(writer, embedder, options)
        with closing(ingestor.run([job.source for job in plan.jobs], options.workers, on_progress)) as results:
            for job, result in zip(plan.jobs, results, strict=True):
                committer.add(job, result)
        committer.finish()
        if not writer.manifest.segments:
            writer.commit()  # an empty index is one that can be loaded
        live = [record for _, record in writer.sources()]
    kept = [Problem(_shown(record), reason) for record in plan.unchanged for reason in record.problems]
    return BuildReport(
        index=Path(index),
        items=sum(record.items for record in live),
        documents=len({record.document for record in live if record.items}),
        indexed=committer.indexed,
        read=len(plan.jobs),
        unchanged=len(plan.unchanged),
        removed=tuple(record.document for record in plan.gone.values()),
        problems=(*plan.problems, *committer.problems, *kept),
        seconds=time.monotonic() - started,
    )


def remove_documents(index: Path, embedder: Embedder, names: Iterable[str]) -> int:
    """Take every document with one of these file names (or source paths) out of the index; returns how many items went.

    Raises :class:`ConfigError` when one of them is not in it; nothing is removed then. The texts leave the disk when
    the index is compacted. A file that still lies in the input folder comes back with the next build.
    """
    with IndexWriter(index, ModelKey.of(embedder)) as writer:
        live = list(writer.sources())
        gone: dict[Place, SourceRecord] = {}
        for name in names:
            found = {place: record for place, record in live if name in (record.document, record.path, record.id)}
            if not found:
                raise ConfigError(f"there is no document {name!r} in {index}; `info` lists what there is")
            gone |= found
        writer.commit(removed=gone)
        return sum(record.items for record in gone.values())


def compact_index(index: Path, embedder: Embedder, precision: Precision | None = None) -> None:
    """Rewrite an index without what was removed from it, and delete page images that no item names any more.

    ``precision``: that of the stored vectors, then and from now on (None: as it is).
    """
    with IndexWriter(index, ModelKey.of(embedder), precision=precision) as writer:
        writer.compact()
        stored = read_index(index)
        named = {stored.media(item) for segment in stored.segments for item in segment.items}
        for file in (writer.corpus / "pages").rglob("*"):
            if file.is_file() and Path(os.path.abspath(file)) not in named:
                file.unlink()


def _plan(writer: IndexWriter, inputs: Sequence[Path], options: BuildOptions) -> _Plan:
    """Compare the inputs with what is indexed."""
    plan = _Plan()
    indexed = {record.identity: (place, record) for place, record in writer.sources()}
    seen: set[tuple[str, str]] = set()
    skip = [writer.path, writer.corpus / "pages", writer.corpus / "cache"]
    for path in inputs:
        origin = portable(path, writer.path)
        # What other inputs gave keeps its ids as well: under a name that no key of this one can have.
        known = {
            record.key if record.origin == origin else f"\0{record.origin}\0{record.key}": record.id
            for _, record in indexed.values()
        }
        sources, rejected = discover(path, skip=skip, known=known)
        plan.problems += [Problem(str(refused.path), refused.reason) for refused in rejected]
        before = len(seen)
        for source in sources:
            job = _job(source, origin, writer.path)
            if job is None:
                plan.problems.append(Problem(str(source.path), "it vanished while the folder was being read"))
                continue
            identity = _record(job, "", ()).identity
            if identity in seen:
                plan.problems.append(Problem(str(source.path), "it is listed more than once; the first entry counts"))
                continue
            seen.add(identity)
            place, record = indexed.get(identity, (None, None))
            if record is not None:
                job.source = replace(source, id=record.id)  # it may have come in through another input before
            if record is not None and not (options.retry and record.problems) and _unchanged(job, record):
                if not record.unembedded:
                    plan.unchanged.append(record)
                    continue
                job.former = record
            job.replaces = place
            plan.jobs.append(job)
        if options.prune:
            unreadable = [portable(refused.path, writer.path) for refused in rejected if refused.path.is_dir()]
            gone = {
                place: record
                for identity, (place, record) in indexed.items()
                if _belongs(record, origin)
                and identity not in seen
                and not any(record.path.startswith(folder + "/") for folder in unreadable)
            }
            if gone and len(seen) == before:
                raise ConfigError(
                    f"nothing that can be indexed was found in {path}, although {len(gone)} documents came from there; is a "
                    "disk not mounted? Nothing was changed. To empty the index, remove its documents or delete its folder"
                )
            plan.gone |= gone
    return plan


def _belongs(record: SourceRecord, origin: str) -> bool:
    """Whether a source came from ``origin``: found through it, or added as a single file that lies in that folder."""
    single = record.origin == record.path and not record.path.lower().endswith(".jsonl")
    return record.origin == origin or (single and record.path.startswith(origin + "/"))


def _job(source: SourceFile, origin: str, index: Path) -> _Job | None:
    path = portable(source.path, index)
    if source.content is not None:
        return _Job(source, origin, path, len(source.content), 0, None)
    try:
        stats = [file.stat() for file in (source.path, *source.companions)]
    except OSError:
        return None
    # Sums, so that a change of any file shows, be it older or newer than the others.
    return _Job(source, origin, path, sum(s.st_size for s in stats), sum(s.st_mtime_ns for s in stats), None)


def _unchanged(job: _Job, record: SourceRecord) -> bool:
    if dict(job.source.metadata) != record.metadata or job.source.kind != record.kind:
        return False
    if job.source.content is None and (job.size, job.mtime_ns) == (record.size, record.mtime_ns):
        return bool(record.sha256)
    return job.size == record.size and _digest(job) == record.sha256


def _digest(job: _Job) -> str:
    """The sha256 of what was read; empty when the file has changed meanwhile, so that the next build reads it again."""
    if job.source.content is not None:
        return hashlib.sha256(job.source.content.encode("utf-8", "surrogatepass")).hexdigest()
    digest = hashlib.sha256()
    size = mtime_ns = 0
    try:
        for path in (job.source.path, *job.source.companions):
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
                stat = os.fstat(file.fileno())
            size, mtime_ns = size + stat.st_size, mtime_ns + stat.st_mtime_ns
    except OSError:
        return ""
    return digest.hexdigest() if (size, mtime_ns) == (job.size, job.mtime_ns) else ""


def _record(
    job: _Job, sha256: str, problems: tuple[str, ...], result: FileResult | None = None, unembedded: int = 0
) -> SourceRecord:
    return SourceRecord(
        path=job.path,
        origin=job.origin,
        key=job.source.key,
        id=job.source.id,
        document=job.source.document if result is None else result.document,
        kind=job.source.kind,
        uid=job.source.uid,
        metadata=dict(job.source.metadata),
        size=job.size,
        mtime_ns=job.mtime_ns,
        sha256=sha256,
        items=0 if result is None else len(result.extracted),
        problems=problems,
        unembedded=unembedded,
    )


def _shown(record: SourceRecord) -> str:
    return record.key or record.path


@dataclass(slots=True)
class _Batch:
    """Whole files that are committed together; their items are being embedded."""

    read: list[tuple[_Job, FileResult]]
    texts: list[StoredText]
    embedding: Embedding
    sizes: list[int]
    """Documents of each call of the model."""


class _Committer:
    """Takes files as they are read, embeds their items batch by batch, and commits the batches in order.

    Where the embedder works elsewhere, some batches are under way while the next files are read.
    """

    def __init__(self, writer: IndexWriter, embedder: Embedder, options: BuildOptions) -> None:
        self._writer = writer
        self._embedder = embedder
        self._options = options
        self._ahead = int(getattr(embedder, "ahead", 0))
        self._read: list[tuple[_Job, FileResult]] = []
        self._under_way: deque[_Batch] = deque()
        self.problems: list[Problem] = []
        self.indexed = 0

    def add(self, job: _Job, result: FileResult) -> None:
        self._read.append((job, result))
        # Items, and at least one for each file.
        if sum(max(1, len(result.extracted)) for _, result in self._read) >= self._options.save_interval:
            self._begin()

    def finish(self) -> None:
        """Embed and commit what is left."""
        if self._read:
            self._begin()
        while self._under_way:
            self._commit(self._under_way.popleft())

    def _begin(self) -> None:
        texts = [
            StoredText(extracted.text, context)
            for _, result in self._read
            for extracted, context in zip(result.extracted, _contexts(result), strict=True)
        ]
        extracted = [one for _, result in self._read for one in result.extracted]
        documents = [_document(one, stored.context) for one, stored in zip(extracted, texts, strict=True)]
        size = self._options.batch_size
        chunks = [documents[start : start + size] for start in range(0, len(documents), size)]
        embedding = begin(self._embedder, chunks)
        self._under_way.append(_Batch(self._read, texts, embedding, [len(chunk) for chunk in chunks]))
        self._read = []
        while len(self._under_way) > self._ahead:
            self._commit(self._under_way.popleft())

    def _commit(self, batch: _Batch) -> None:
        vectors, failed = self._embedded(batch)
        records: list[SourceRecord] = []
        items: list[StoredItem] = []
        kept: list[int] = []
        removed: list[Place] = []
        row = 0
        for job, result in batch.read:
            rows = range(row, row + len(result.extracted))
            row = rows.stop
            problems = list(result.problems)
            for one, extracted in zip(rows, result.extracted, strict=True):
                if one in failed:
                    problems.append(f"{extracted.item.label} was not embedded: {failed[one]}")
            unembedded = sum(one in failed for one in rows)
            record = _record(job, _digest(job), tuple(problems), result, unembedded)
            self.problems += [Problem(_shown(record), reason) for reason in problems]
            if record == job.former:
                continue  # it was tried again and nothing has changed: what is indexed of it stays
            for extracted in result.extracted:
                media = None if extracted.media is None else portable(extracted.media, self._writer.path)
                items.append(StoredItem(item=extracted.item, media=media, source=len(records)))
            records.append(record)
            kept += rows
            if job.replaces is not None:
                removed.append(job.replaces)
        self.indexed += len(items)
        if not records:
            return
        texts = [batch.texts[one] for one in kept]
        self._writer.commit(
            SegmentData(
                sources=records,
                items=items,
                texts=texts,
                vectors=vectors[kept],
                postings=count_terms([(stored.text.text, stored.context) for stored in texts]),
            ),
            removed=removed,
        )

    def _embedded(self, batch: _Batch) -> tuple[Vectors, dict[int, str]]:
        """One row per item, zeros where it failed, and the reasons by row."""
        vectors = np.zeros((sum(batch.sizes), self._embedder.dimension), np.float32)
        failed: dict[int, str] = {}
        start = 0
        for size, outcome in zip(batch.sizes, batch.embedding(), strict=True):
            embedded = checked(self._embedder, outcome, size)
            vectors[start : start + size] = embedded.vectors
            failed |= {start + row: reason for row, reason in embedded.failed.items()}
            start += size
        return vectors, failed


def _contexts(result: FileResult) -> list[str]:
    return page_contexts(result.document, [extracted.text for extracted in result.extracted])


def _document(extracted: Extracted, context: str) -> Document:
    item, media = extracted.item, extracted.media
    return Document(
        id=item.id,
        text=extracted.text.text or item.content,
        image=media if item.kind == "image" else None,
        video=media if item.kind == "video" else None,
        context=context,
    )
