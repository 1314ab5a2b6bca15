"""From a folder (or a list) of files to the sources of an index: what each is, what it is called, and what is refused.

:func:`discover` only looks at names; nothing is opened or decoded. Reading is the business of
:mod:`search_engine.ingest`, which turns every :class:`SourceFile` into a :class:`FileResult`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from search_engine.companions import TIMED, record_path, transcript_of
from vrag.errors import ConfigError
from vrag.geometry import Box
from vrag.items import Item

SourceKind = Literal["image", "pdf", "text", "video"]
TextSource = Literal["layer", "ocr", "layer+ocr", "text", "none"]

#: What is read, by suffix (compared in lower case).
KINDS: Mapping[str, SourceKind] = {
    **dict.fromkeys((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"), "image"),
    **dict.fromkeys((".txt", ".md", ".json"), "text"),
    **dict.fromkeys((".mp4", ".mkv", ".mov", ".webm", ".avi"), "video"),
    ".pdf": "pdf",
}
#: One row of a list is a path and a few fields, or one passage.
MAX_ROW_CHARACTERS = 4_000_000


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text and where it stands, in page pixels.

    ``words`` holds one box per word of ``text`` (``text.split()``) where the source tells them apart, else nothing. What is
    said in a clip stands nowhere, but from ``span[0]`` to ``span[1]`` seconds.
    """

    text: str
    box: Box
    words: tuple[Box, ...] = ()
    span: tuple[float, float] | None = None

    def part(self, start: int, end: int) -> Box:
        """The box of ``text[start:end]``: that of the words it touches, or the proportional share of the line."""
        spans = [match.span() for match in re.finditer(r"\S+", self.text)]
        if len(spans) > 1 and len(spans) == len(self.words):
            touched = [box for (a, b), box in zip(spans, self.words, strict=True) if a < end and b > start]
            if touched:
                return union(touched)
        count = max(1, len(self.text))
        start, end = sorted((min(max(start, 0), count), min(max(end, 0), count)))
        box = self.box
        if box.height > box.width and count > 1:  # written upwards or downwards: which of the two is not known
            return box
        return Box(box.x1 + box.width * start / count, box.y1, box.x1 + box.width * end / count, box.y2)


@dataclass(frozen=True, slots=True)
class PageText:
    """The text of one item, in reading order as far as the source gives one.

    ``source``: the PDF's text layer, OCR, both (the layer, then what OCR found outside it), a text file, or none.
    """

    lines: tuple[Line, ...] = ()
    source: TextSource = "none"

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)


@dataclass(frozen=True, slots=True)
class Extracted:
    """One item of a file. ``media`` is the image that ``item.width`` and ``item.height`` measure, or the video."""

    item: Item
    text: PageText
    media: Path | None


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to read, or one passage of a list (``content`` given, ``path`` the list).

    ``id`` is unique among the sources discovered together: an image's item has this id, page 3 of a PDF has ``{id}_3``.
    ``key`` names the source across runs: the path relative to what was discovered, or ``list.jsonl:line``.
    ``companions`` are files that belong to it (a clip's transcript, a page image's record): when they change, it has changed.
    """

    path: Path
    kind: SourceKind
    uid: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    key: str = ""
    content: str | None = None
    companions: tuple[Path, ...] = ()

    @property
    def document(self) -> str:
        """The file's name as it is shown and filtered by."""
        return self.uid if self.content is not None and self.uid else self.path.name


@dataclass(frozen=True, slots=True)
class FileResult:
    """What became of one source. ``problems`` says in sentences what is missing from ``extracted`` and why."""

    source: SourceFile
    extracted: tuple[Extracted, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def document(self) -> str:
        """The document that its items belong to: the file, or for a page image the PDF that it was rendered from."""
        return self.extracted[0].item.document if self.extracted else self.source.document


@dataclass(frozen=True, slots=True)
class Rejected:
    """A file or a row of a list that is no source, and why."""

    path: Path
    reason: str


def union(boxes: Iterable[Box]) -> Box:
    """The smallest box around all ``boxes`` (at least one)."""
    boxes = list(boxes)
    return Box(min(b.x1 for b in boxes), min(b.y1 for b in boxes), max(b.x2 for b in boxes), max(b.y2 for b in boxes))


def discover(
    path: Path, *, skip: Iterable[Path] = (), known: Mapping[str, str] | None = None
) -> tuple[list[SourceFile], list[Rejected]]:
    """The sources below a folder (recursive, sorted), in a ``.jsonl`` list, or the one file ``path`` itself.

    Hidden files and the folders in ``skip`` are left out; a folder is entered once. The transcript of a clip (``talk.srt``,
    ``.vtt`` or ``.txt`` beside ``talk.mp4``) belongs to it and is no document of its own. ``known`` maps keys to the ids
    that an earlier run gave: they keep them, and nothing else gets them, so adding files never renames what is indexed.

    A list has one JSON object a line: ``file_path`` (relative to the list) or ``content`` (a passage), and maybe
    ``uid``, which becomes the id; every other field is metadata.

    Raises :class:`ConfigError` when ``path`` is missing or is nothing that can be read.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError(f"there is no file or folder {path}; name a folder of documents or a .jsonl list")
    rejected: list[Rejected] = []
    if path.is_dir():
        sources = list(_from_folder(path, {Path(p).resolve() for p in skip}, rejected))
    elif path.suffix.lower() == ".jsonl":
        sources = list(_from_list(path, rejected))
    elif path.suffix.lower() in KINDS:
        sources = list(_from_file(path, path.name, {}, None, rejected))
    else:
        raise ConfigError(f"{path} cannot be indexed: {_wrong_suffix(path)}")
    return _with_ids(sources, known or {}), rejected


def _from_folder(root: Path, skip: set[Path], rejected: list[Rejected]) -> Iterator[SourceFile]:
    files = list(_walk(root, skip, set(), rejected))
    clips = [file for file in files if KINDS.get(file.suffix.lower()) == "video"]
    spoken = {transcript_of(clip) for clip in clips} | {clip.with_suffix(suffix) for clip in clips for suffix in TIMED}
    for file in files:
        if file not in spoken:
            yield from _from_file(file, file.relative_to(root).as_posix(), {}, None, rejected)


def _walk(folder: Path, skip: set[Path], seen: set[tuple[int, int]], rejected: list[Rejected]) -> Iterator[Path]:
    """The files below ``folder``, sorted level by level. A folder met before (a link loop) is not entered again."""
    try:
        status = folder.stat()
        if (status.st_dev, status.st_ino) in seen or folder.resolve() in skip:
            return
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(folder) as entries:
            names = sorted((entry.name, _is_folder(entry)) for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        rejected.append(Rejected(folder, f"the folder cannot be read: {error.strerror}"))
        return
    for name, is_folder in names:
        if is_folder:
            yield from _walk(folder / name, skip, seen, rejected)
        else:
            yield folder / name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads in circles
        return False


def _from_file(
    path: Path, key: str, metadata: Mapping[str, Any], uid: str | None, rejected: list[Rejected]
) -> Iterator[SourceFile]:
    kind = KINDS.get(path.suffix.lower())
    reason = _wrong_suffix(path) if kind is None else _unusable(path)
    if kind is None or reason:
        rejected.append(Rejected(path, reason))
    else:
        yield SourceFile(
            path, kind, uid, metadata, id=uid or path.stem, key=key, companions=tuple(_companions(path, kind))
        )


def _companions(path: Path, kind: SourceKind) -> Iterator[Path]:
    """What belongs to a file: the transcript of a clip, the record of a page image."""
    companion = transcript_of(path) if kind == "video" else record_path(path) if kind == "image" else None
    if companion is not None and companion.is_file():
        yield companion


def _unusable(path: Path) -> str:
    """Why the file cannot be a source at all, by what the file system says; empty when it can."""
    try:
        path.name.encode("utf-8")
        if not path.exists():
            return "the file does not exist (or is a broken link)"
        return "" if path.is_file() else "it is not a regular file"
    except UnicodeEncodeError:
        return "its name is not valid UTF-8; rename it"
    except (OSError, ValueError) as error:
        return f"the file cannot be reached: {getattr(error, 'strerror', None) or error}"


def _from_list(path: Path, rejected: list[Rejected]) -> Iterator[SourceFile]:
    uids: set[str] = set()
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            try:
                row = _row(raw)
            except ValueError as error:
                rejected.append(Rejected(path, f"line {number}: {error}"))
                continue
            uid = row.pop("uid", None)
            if uid is not None:
                uid = str(uid)
                if uid in uids:
                    rejected.append(Rejected(path, f"line {number}: the uid {uid!r} was used by an earlier line"))
                    continue
            content, file_path = row.pop("content", None), row.pop("file_path", None)
            found: list[SourceFile] = []
            key = f"{path.name}:{uid if uid is not None else number}"
            if file_path is not None:
                refused: list[Rejected] = []
                found = list(_from_file(path.parent / file_path, key, row, uid, refused))
                rejected.extend(Rejected(r.path, f"line {number}: {r.reason}") for r in refused)
            else:
                name = uid or f"{path.stem}_{number}"
                found = [SourceFile(path, "text", uid, row, id=name, key=key, content=content)]
            if found and uid is not None:
                uids.add(uid)
            yield from found


def _row(raw: bytes) -> dict[str, Any]:
    if len(raw) > MAX_ROW_CHARACTERS:
        raise ValueError(f"longer than {MAX_ROW_CHARACTERS:,} bytes; put long texts into files")
    try:
        row = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a JSON object in UTF-8 ({type(error).__name__})") from None
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    uid = row.get("uid")
    if uid is not None and (isinstance(uid, bool) or not isinstance(uid, (str, int)) or not str(uid).strip()):
        raise ValueError("uid must be a non-empty string or an integer")
    file_path, content = row.get("file_path"), row.get("content")
    if (file_path is None) == (content is None):
        raise ValueError("give either file_path or content")
    for name, value in (("file_path", file_path), ("content", content)):
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise ValueError(f"{name} must be a non-empty string")
    if file_path is not None and "\0" in file_path:
        raise ValueError("file_path holds a NUL character")
    return row


def _with_ids(sources: list[SourceFile], known: Mapping[str, str]) -> list[SourceFile]:
    """Ids made unique by a suffix ``~2``, ``~3``, ...: known ones first, then PDFs, then the rest, as discovered.

    An id such as ``report_2`` also clashes with the second page of a PDF whose id is ``report``.
    """
    taken = set(known.values())
    pdfs = {name for key, name in known.items() if key.lower().endswith(".pdf")}
    likely_pages = {stem for stem in map(_stem_of_page, taken - pdfs) if stem is not None}
    chosen: dict[int, str] = {}
    for index in sorted(range(len(sources)), key=lambda i: sources[i].kind != "pdf"):
        source = sources[index]
        name, count = known.get(source.key), 1
        if name is None:
            name = source.id
            while name in taken or (name in likely_pages if source.kind == "pdf" else _stem_of_page(name) in pdfs):
                count += 1
                name = f"{source.id}~{count}"
        taken.add(name)
        chosen[index] = name
        if source.kind == "pdf":
            pdfs.add(name)
    return [replace(source, id=chosen[index]) for index, source in enumerate(sources)]


def _stem_of_page(name: str) -> str | None:
    """``report`` for ``report_2``, which could be the id of a page."""
    stem, _, page = name.rpartition("_")
    return stem if stem and page.isascii() and page.isdigit() else None


def _wrong_suffix(path: Path) -> str:
    if path.suffix.lower() == ".jsonl":
        return "a .jsonl list inside a folder is not read; name the list itself as the input"
    return f"the suffix {path.suffix!r} is not one of {', '.join(sorted(KINDS))}"
