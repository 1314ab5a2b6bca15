"""PDFs as page images: ``report.pdf`` becomes ``report_1.jpg``, ``report_2.jpg``, ... and a record of each page's text.

A page is complete when its record says that it was rendered from this very PDF in this very way and its image is there. The
record is written before the image, each at once or not at all, so whenever a run is killed, the next one renders just what is
missing. An image without a record was made by somebody else and is never overwritten unless that is asked for.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from search_engine.companions import RECORDS, record_path
from search_engine.documents import Extracted, PageText, Rejected, SourceFile, discover
from search_engine.files import PARTIAL, safe_name, write_atomic
from search_engine.ingest import Progress, run
from search_engine.page_records import PageRecord, read_record, stored_lines
from search_engine.reading import IngestOptions, Opened, Part
from vrag.errors import ConfigError, MediaError
from vrag.items import Item
from vrag.pages import encode_jpeg

#: A longer stem of a PDF is cut (and gets a short hash), so that page numbers and suffixes fit into a file name.
LONGEST_STEM = 200


@dataclass(frozen=True, slots=True)
class Rendering:
    """What became of the PDFs: pages rendered, pages that were complete before, and what is missing and why."""

    pdfs: int
    rendered: int
    kept: int
    problems: tuple[str, ...]
    ignored: tuple[Rejected, ...]


@dataclass(frozen=True, slots=True)
class RenderDesk:
    """The work of a worker of :mod:`search_engine.ingest`: pages of a PDF into ``pages_dir``, nothing read by OCR."""

    pages_dir: Path
    options: IngestOptions
    overwrite: bool = False

    @property
    def cache_dir(self) -> Path:
        return self.pages_dir / RECORDS

    @property
    def rendering(self) -> str:
        """What changes the pictures, as a record remembers it."""
        options = self.options
        return f"{options.dpi} dpi, {options.min_pixels}-{options.max_pixels} pixels, quality {options.jpeg_quality}"

    def read(self, source: SourceFile, pages: range | None = None) -> Iterator[Opened | Part]:
        """As :func:`search_engine.reading.read_source`; the metadata of an item say ``kept`` for a complete page."""
        from search_engine import pdf

        digest = _digest(source.path, source.path.stat().st_mtime_ns)
        with pdf.open_pdf(source.path, self.options.max_pages) as document:
            count = document.page_count
            if pages is None:
                self._drop_beyond(source, count)
            note = f"the file is damaged; {count} page(s) of it could be recovered" if document.is_repaired else ""
            yield Opened(count, note)
            for number in pages or range(1, min(count, self.options.pages_per_task) + 1):
                try:
                    extracted = self._kept(source, number, digest)
                    problem = ""
                    if extracted is None:
                        extracted, problem = self._rendered(pdf.load_page(document, number), source, number, digest)
                    yield Part(number, (extracted,), f"page {number}: {problem}" if problem else "")
                except MediaError as error:  # noqa: PERF203 - a broken page must not cost the others
                    yield Part(number, (), f"page {number}: {error}")

    def _image(self, source: SourceFile, number: int) -> Path:
        return self.pages_dir / f"{file_stem(source.id)}_{number}.jpg"

    def _kept(self, source: SourceFile, number: int, digest: str) -> Extracted | None:
        """The page as an earlier run left it, if it is complete."""
        image = self._image(source, number)
        record = read_record(_record(image))
        if record is None:
            if image.exists() and not self.overwrite:
                raise MediaError(
                    f"{image} is there already and was not made by this tool; move it away, or overwrite it (--overwrite)"
                )
            return None
        same = (record.pdf_sha256, record.rendering) == (digest, self.rendering)
        complete = same and _size(image) == record.image_bytes
        if not complete:
            image.unlink(missing_ok=True)  # the picture of another version must not stay, should this page fail
        if self.overwrite or not complete:
            return None
        return _extracted(source, number, image, (record.width, record.height), kept=True)

    def _rendered(self, page: object, source: SourceFile, number: int, digest: str) -> tuple[Extracted, str]:
        from search_engine import pdf

        options = self.options
        picture = pdf.render(page, pdf.RenderOptions(options.dpi, options.min_pixels, options.max_pixels))
        problem = ""
        try:
            layer = pdf.layer_lines(page, picture.size)
        except MediaError as error:
            layer, problem = (), str(error)
        data = encode_jpeg(picture, options.jpeg_quality)
        image = self._image(source, number)
        record = PageRecord(
            image_sha256=hashlib.sha256(data).hexdigest(),
            image_bytes=len(data),
            document=source.document,
            page=number,
            width=picture.width,
            height=picture.height,
            hidden=bool(layer) and pdf.is_scan_with_text(page),
            lines=stored_lines(layer),
            id=source.id,
            key=source.key,
            path=str(source.path),
            pdf_sha256=digest,
            rendering=self.rendering,
        )
        image.unlink(missing_ok=True)  # a record never stands beside an image of another rendering
        write_atomic(_record(image), record.model_dump_json().encode("utf-8", "replace"), self.pages_dir)
        write_atomic(image, data, self.pages_dir)
        return _extracted(source, number, image, picture.size, kept=False), problem

    def _drop_beyond(self, source: SourceFile, count: int) -> None:
        """Remove the pages of an earlier, longer version of the PDF."""
        for record in _record(self._image(source, 1)).parent.glob("*.json"):
            if record.stem.isdigit() and int(record.stem) > count:
                self._image(source, int(record.stem)).unlink(missing_ok=True)
                record.unlink(missing_ok=True)


def render_pdfs(
    source: Path,
    output: Path,
    options: IngestOptions | None = None,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    on_file: Callable[[str, int], None] | None = None,
) -> Rendering:
    """Render every page of the PDFs below ``source`` (a folder, or one PDF) into the folder ``output``.

    Names are those of the published data, ``{stem of the PDF}_{page}.jpg`` with pages from 1; of two PDFs with the same stem
    the second becomes ``{stem}~2``. ``on_file`` is told the name and the number of pages of each PDF that is done.

    Raises ConfigError when there is nothing to render, VragError when the output cannot be written or another run is writing
    it.
    """
    desk = RenderDesk(Path(os.path.abspath(output)), options or IngestOptions(), overwrite)
    if os.path.realpath(source) == os.path.realpath(output):
        raise ConfigError(f"{source} cannot be both the PDFs and the images; give the images a folder of their own")
    found, ignored = discover(source, skip=[output])
    pdfs = [file for file in found if file.kind == "pdf"]
    ignored += [Rejected(file.path, "it is no PDF; only PDFs are rendered") for file in found if file.kind != "pdf"]
    if not pdfs:
        raise ConfigError(f"there is no PDF in {source}; put PDFs there or name another folder")
    rendered = kept = 0
    problems: list[str] = []
    with _alone(desk.cache_dir):
        named = _named(source, pdfs, desk)
        with closing(run(desk, named, workers, on_progress)) as results:
            for result in results:
                already = sum(bool(extracted.item.metadata["kept"]) for extracted in result.extracted)
                kept += already
                rendered += len(result.extracted) - already
                problems += [f"{result.source.path}: {problem}" for problem in result.problems]
                if on_file is not None:
                    on_file(result.source.key, len(result.extracted))
    return Rendering(len(pdfs), rendered, kept, tuple(problems), tuple(ignored))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the output for this process; the system lets go of it however the process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "ab")  # noqa: SIM115  # closed below
    except OSError as error:
        raise ConfigError(f"{folder.parent} cannot be written: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another run is writing to {folder.parent}; wait until it is done") from None
        yield


def _named(source: Path, pdfs: list[SourceFile], desk: RenderDesk) -> list[SourceFile]:
    """The PDFs under the ids that they had in earlier runs, and with absolute paths.

    A name that belongs to a PDF elsewhere, which is still there, is not given to this one.
    """
    here = {pdf.key: os.path.abspath(pdf.path) for pdf in pdfs}
    known: dict[str, str] = {}
    for folder in sorted(desk.cache_dir.iterdir()) if desk.cache_dir.is_dir() else ():
        record = next(filter(None, map(read_record, folder.glob("*.json"))), None)
        if record is None or folder.name == PARTIAL:
            continue
        elsewhere = record.path != here.get(record.key) and Path(record.path).is_file()
        known[f"\0{record.path}" if elsewhere else record.key] = record.id
    again, _ = discover(source, skip=[desk.pages_dir], known=known)
    return [replace(file, path=Path(os.path.abspath(file.path))) for file in again if file.kind == "pdf"]


def file_stem(name: str) -> str:
    """The id of a PDF as the beginning of its pages' file names: the same, unless it is too long for one."""
    return name if len(name.encode("utf-8")) <= LONGEST_STEM else safe_name(name, LONGEST_STEM)


def _record(image: Path) -> Path:
    path = record_path(image)
    assert path is not None  # every name made here has a stem and a number
    return path


def _extracted(source: SourceFile, number: int, image: Path, size: tuple[int, int], kept: bool) -> Extracted:
    item = Item(
        id=f"{source.id}_{number}",
        kind="image",
        document=source.document,
        page=number,
        width=size[0],
        height=size[1],
        metadata={"kept": kept},
    )
    return Extracted(item, PageText(), image)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


@lru_cache(maxsize=4)
def _digest(path: Path, modified: int) -> str:
    """The sha256 of a file; ``modified`` is part of the key."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
