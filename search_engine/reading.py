"""Reading one file, part by part: the pages of a PDF, an image, the passages of a text, a video.

This is what runs inside a worker of :mod:`search_engine.ingest`; nothing here knows about processes. A part that cannot be
read costs that part and says why; a file that cannot be opened raises :class:`MediaError`.
"""

from __future__ import annotations

import codecs
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from PIL import Image

from search_engine.companions import TIMED
from search_engine.documents import Extracted, Line, PageText, SourceFile, SourceKind
from search_engine.files import safe_name, write_atomic
from search_engine.ocr import OcrCache
from search_engine.page_records import record_of
from search_engine.transcripts import plain_lines, timed_lines
from vrag.errors import ConfigError, MediaError
from vrag.geometry import Box
from vrag.items import Item, ItemKind
from vrag.pages import JPEG_QUALITY, MAX_PAGE_BYTES, MAX_PAGE_PIXELS, decode_rgb, encode_jpeg


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """How files are read, and what a file may cost."""

    dpi: int = 144
    """Resolution of page images, as long as their area lies between the two limits below."""
    min_pixels: int = 1_500_000
    """Smaller pages (slides of 10 x 6 cm) are rendered finer, up to 300 dpi."""
    max_pixels: int = 6_000_000
    """Larger pages are rendered coarser: a poster costs no more than a page."""
    jpeg_quality: int = JPEG_QUALITY
    ocr: bool = True
    """False: text layers only; scans and pictures have no text."""
    max_pages: int = 5_000
    """A PDF with more pages is refused."""
    max_image_pixels: int = MAX_PAGE_PIXELS
    """An image with more pixels is refused before it is decoded."""
    max_image_bytes: int = MAX_PAGE_BYTES
    max_text_bytes: int = 20 * 2**20
    passage_characters: int = 2_000
    """A longer text file is cut into passages of at most this length."""
    page_seconds: float = 120.0
    """Time for one page, or for one file that has none; then the worker is killed and the page is lost."""
    memory_bytes: int | None = 4 * 2**30
    """Address space of one worker; None for no limit. OCR alone needs about 1.5 GiB."""
    pages_per_task: int = 8
    """How many pages of a PDF a worker takes at a time."""


class Work(Protocol):
    """What the workers of an ingestion do with each source, and the folders that they write to."""

    @property
    def pages_dir(self) -> Path: ...

    @property
    def cache_dir(self) -> Path: ...

    @property
    def options(self) -> IngestOptions: ...

    def read(self, source: SourceFile, pages: range | None = None) -> Iterator[Opened | Part]:
        """See :func:`read_source`."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What reading needs beside the file: where images and OCR results go, and the options."""

    pages_dir: Path
    cache_dir: Path
    options: IngestOptions

    def read(self, source: SourceFile, pages: range | None = None) -> Iterator[Opened | Part]:
        """What a worker does with a task; see :func:`read_source`."""
        return read_source(source, self, pages)


@dataclass(frozen=True, slots=True)
class Opened:
    """The file could be opened; it has ``parts`` parts. ``note`` says what is wrong with it as a whole, if anything."""

    parts: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a file: what was read of it, and what could not be read and why."""

    number: int
    extracted: tuple[Extracted, ...] = ()
    problem: str = ""


def read_source(source: SourceFile, desk: Desk, pages: range | None = None) -> Iterator[Opened | Part]:
    """Open ``source`` and read the given parts of it (numbers from 1; None: the first ``pages_per_task``).

    Yields :class:`Opened`, then one :class:`Part` for each. Raises MediaError when nothing of the file can be read.
    """
    if source.kind == "pdf":
        yield from _read_pdf(source, desk, pages)
    else:
        extracted, problem = _READERS[source.kind](source, desk)
        yield Opened(1)
        yield Part(1, extracted, problem)


_Read = tuple[tuple[Extracted, ...], str]
# Where a long text is cut, best first.
_BOUNDARIES = tuple(map(re.compile, (r"\n(?=#{1,6} )", r"\n\s*\n", r"\n", r"(?<=[.!?])\s+|(?<=[。！？])", r"\s+")))


def _read_pdf(source: SourceFile, desk: Desk, pages: range | None) -> Iterator[Opened | Part]:
    from search_engine import pdf

    options = desk.options
    with pdf.open_pdf(source.path, options.max_pages) as document:
        count = document.page_count
        note = f"the file is damaged; {count} page(s) of it could be recovered" if document.is_repaired else ""
        yield Opened(count, note)
        for number in pages or range(1, min(count, options.pages_per_task) + 1):
            try:
                extracted, problem = _read_pdf_page(pdf.load_page(document, number), number, source, desk)
                yield Part(number, (extracted,), f"page {number}: {problem}" if problem else "")
            except MediaError as error:  # noqa: PERF203 - a broken page must not cost the others
                yield Part(number, (), f"page {number}: {error}")


def _read_pdf_page(page: object, number: int, source: SourceFile, desk: Desk) -> tuple[Extracted, str]:
    from search_engine import pdf

    options = desk.options
    render_options = pdf.RenderOptions(options.dpi, options.min_pixels, options.max_pixels)
    image = pdf.render(page, render_options)
    problems = []
    try:
        layer = pdf.layer_lines(page, image.size)
    except MediaError as error:
        layer = ()
        problems.append(str(error))
    text, problem = _text_of(image, layer, options.ocr and bool(layer) and pdf.is_scan_with_text(page), desk)
    problems += [problem] if problem else []
    name = safe_name(source.id)
    media = desk.pages_dir / name / f"{name}_{number}.jpg"
    write_atomic(media, encode_jpeg(image, options.jpeg_quality), desk.pages_dir)
    item = _item(source, f"{source.id}_{number}", "image", image, page=number)
    return Extracted(item, text, media), "; ".join(problems)


def _read_image(source: SourceFile, desk: Desk) -> _Read:
    options = desk.options
    data = _bytes(source.path, options.max_image_bytes)
    try:
        image = decode_rgb(
            data, source.path.name, max_pixels=options.max_image_pixels, max_bytes=options.max_image_bytes
        )
    except MediaError as error:
        if isinstance(error.__cause__, MemoryError):
            raise error.__cause__ from None
        raise
    record = record_of(source.path, data)
    layer = () if record is None else record.layer
    text, problem = _text_of(image, layer, record is not None and record.hidden, desk)
    media = source.path
    if not _is_servable(media, image):
        name = safe_name(source.id)
        media = desk.pages_dir / name / f"{name}.jpg"
        write_atomic(media, encode_jpeg(image, options.jpeg_quality), desk.pages_dir)
    item = _item(source, source.id, "image", image)
    if record is not None:
        item = item.model_copy(update={"document": record.document, "page": record.page})
    return (Extracted(item, text, media),), problem


def _text_of(image: Image.Image, layer: tuple[Line, ...], hidden: bool, desk: Desk) -> tuple[PageText, str]:
    """The text of a page by its layer and OCR, and what went wrong with it."""
    from search_engine.page_text import page_text

    try:
        return page_text(image, layer, hidden, OcrCache(desk.cache_dir).read_lines if desk.options.ocr else None), ""
    except MediaError as error:
        return PageText(layer, "layer" if layer else "none"), str(error)


def _is_servable(path: Path, upright: Image.Image) -> bool:
    """Whether a file can be shown as it is: in a format of the web, one frame, upright, 8 bits, no press colours."""
    with Image.open(path) as image:
        return (
            image.format in ("JPEG", "PNG", "WEBP")
            and image.mode in ("L", "RGB", "P", "LA", "RGBA", "1")
            and getattr(image, "n_frames", 1) == 1
            and image.size == upright.size
            and image.getexif().get(0x0112, 1) == 1
        )


def _read_text(source: SourceFile, desk: Desk) -> _Read:
    if source.content is not None:
        return (_passage(source, source.id, source.content),), ""
    text = _decoded(_bytes(source.path, desk.options.max_text_bytes))
    if source.path.suffix.lower() == ".json":
        try:
            text = json.dumps(json.loads(text), ensure_ascii=False, indent=1)
        except (ValueError, RecursionError) as error:
            raise MediaError(f"it is not valid JSON ({error})") from error
    found = passages(text, desk.options.passage_characters)
    if not found:
        raise MediaError("the file holds no text")
    if len(found) == 1:
        return (_passage(source, source.id, found[0]),), ""
    return tuple(_passage(source, f"{source.id}:{n}", text, passage=n) for n, text in enumerate(found, start=1)), ""


def passages(text: str, longest: int) -> list[str]:
    """Cut a text into passages of at most ``longest`` characters.

    Each cut is made in the second half of that length: before a Markdown heading if there is one, else between paragraphs,
    lines, sentences or words.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    result = []
    start = 0
    while start < len(text):
        end = min(start + longest, len(text))
        if end < len(text):
            halves = (list(boundary.finditer(text, start + longest // 2, end)) for boundary in _BOUNDARIES)
            end = next((found[-1].end() for found in halves if found), end)
        if passage := text[start:end].strip():
            result.append(passage)
        start = end
    return result


def _passage(source: SourceFile, name: str, text: str, **metadata: object) -> Extracted:
    nowhere = Box(0, 0, 0, 0)  # a passage has no picture
    lines = tuple(Line(line, nowhere) for line in text.splitlines() if line.strip())
    item = Item(id=name, kind="text", document=source.document, content=text, metadata=_metadata(source, metadata))
    return Extracted(item, PageText(lines, "text"), None)


def _read_video(source: SourceFile, desk: Desk) -> _Read:
    """The facts of a clip, checked by decoding its first frame, and its transcript. Raises MediaError."""
    from search_engine import video

    if source.path.stat().st_size == 0:
        raise MediaError("the file is empty (0 bytes)")
    facts: dict[str, object] = {}
    item = Item(id=source.id, kind="video", document=source.document)
    try:
        info = video.probe(source.path)
        facts = {"fps": round(info.fps, 3), "frames": info.frames}
        size = {"duration": round(info.duration, 3), "width": info.width, "height": info.height}
        item = item.model_copy(update=size)
    except ConfigError:  # without PyAV a clip can still be listed
        item = item.model_copy(update={"duration": _duration(source.path)})
    transcript = next(iter(source.companions), None)
    text, problem = PageText(), ""
    if transcript is not None:
        facts["transcript"] = transcript.name
        try:
            text = PageText(_transcript(transcript, desk), "text")
        except (MediaError, OSError) as error:
            problem = f"its transcript {transcript.name} was left out: {error}"
    item = item.model_copy(update={"metadata": _metadata(source, facts)})
    return (Extracted(item, text, source.path),), problem


def _transcript(path: Path, desk: Desk) -> tuple[Line, ...]:
    text = _decoded(_bytes(path, desk.options.max_text_bytes))
    if path.suffix.lower() not in TIMED:
        return plain_lines(text)
    lines = timed_lines(text)
    if not lines:
        raise MediaError("no cue with times was found in it")
    return lines


def _duration(path: Path) -> float | None:
    """Seconds, by ffprobe; None where it is not installed or cannot tell."""
    program = shutil.which("ffprobe")
    if program is None:
        return None
    command = [program, "-v", "error", "-show_entries", "format=duration", "-of", "csv=p=0", f"file:{path.resolve()}"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
        seconds = float(shown.split()[0])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError):
        return None
    return seconds if 0 < seconds < float("inf") else None


_READERS: Mapping[SourceKind, Callable[[SourceFile, Desk], _Read]] = {
    "image": _read_image,
    "text": _read_text,
    "video": _read_video,
}


def _item(source: SourceFile, name: str, kind: ItemKind, image: Image.Image, page: int | None = None) -> Item:
    return Item(
        id=name,
        kind=kind,
        document=source.document,
        page=page,
        width=image.width,
        height=image.height,
        metadata=_metadata(source),
    )


def _metadata(source: SourceFile, more: Mapping[str, object] | None = None) -> dict[str, object]:
    return {"source": source.key, **source.metadata, **(more or {})}


def _bytes(path: Path, most: int) -> bytes:
    size = path.stat().st_size
    if size == 0:
        raise MediaError("the file is empty (0 bytes)")
    if size > most:
        raise MediaError(f"it has {size:,} bytes, more than the {most:,} allowed")
    return path.read_bytes()


def _decoded(data: bytes) -> str:
    """Text in UTF-8, in UTF-16 or UTF-32 with a byte order mark, or in GB 18030."""
    marks = ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"))
    named = [name for mark, name in (*marks, (codecs.BOM_UTF16_BE, "utf-16")) if data.startswith(mark)]
    for encoding in (*named, "utf-8-sig", "gb18030"):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return text
    raise MediaError("it is not a text file in UTF-8, UTF-16 or GB 18030; save it as UTF-8")
