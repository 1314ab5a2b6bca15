"""A person's own documents: a folder of files, the index made from it, and the work that brings the two together.

Files become part of the index in the background, one job at a time for all browser tabs, by the index builder's own
command line; so a page that is reloaded or left interrupts nothing, and what the builder needs is given back at its end.
"""

from __future__ import annotations

import errno
import json
import logging
import re
import shutil
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from demo.defaults import ROOT
from vrag.errors import VragError

logger = logging.getLogger(__name__)

TYPES = ("pdf", "png", "jpg", "jpeg", "webp", "tif", "tiff", "bmp", "gif", "txt", "md")
#: File systems take 255 bytes; a number and the ending of a half-written file have to fit as well.
MAX_NAME_BYTES = 200
#: A disk that is nearly full is left alone.
SPARE_BYTES = 200_000_000


class LibraryError(VragError):
    """The documents could not be stored or indexed."""


@dataclass(frozen=True)
class Contents:
    """What is in the index: pages by file name, and why files or pages of them are missing."""

    pages: dict[str, int] = field(default_factory=dict)
    problems: dict[str, tuple[str, ...]] = field(default_factory=dict)


def safe_name(name: str) -> str:
    """A file name that is only a name: no folders, nothing invisible, not hidden, and short enough for any disk."""
    name = unicodedata.normalize("NFC", name.encode("utf-8", "ignore").decode("utf-8"))
    name = name.replace("\\", "/").rsplit("/", 1)[-1]
    name = "".join(letter for letter in name if unicodedata.category(letter)[0] != "C")
    name = re.sub(r'[<>:"|?*]+', "_", name).strip()
    stem, dot, suffix = name.rpartition(".")
    if not dot or not re.fullmatch(r"\w{1,10}", suffix):
        stem, suffix = name, ""
    stem = _cut(stem.strip(" ."), MAX_NAME_BYTES) or "document"
    return f"{stem}.{suffix}" if suffix else stem


def _cut(text: str, size: int) -> str:
    return text.encode("utf-8")[:size].decode("utf-8", "ignore").strip()


class Job:
    """One piece of work on the index, in a thread: ``done`` of ``total`` pages are read.

    At its end ``result`` says what was achieved, or ``error`` why nothing was.
    """

    def __init__(self, work: Callable[[Job], str]) -> None:
        self.done = 0
        self.total = 0
        self.result = ""
        self.error = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True, name="library-job")
        self._thread.start()

    def _run(self, work: Callable[[Job], str]) -> None:
        try:
            self.result = work(self)
        except VragError as error:
            self.error = str(error)
        except OSError as error:
            self.error = _disk(error)
        except Exception as error:
            logger.exception("a job of the document library failed")
            self.error = f"It failed unexpectedly ({error}); the log of the web page has the details."
        finally:
            self._over.set()

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        return self._over.wait(seconds)


class Library:
    """The folder ``documents`` and its ``index``; safe to use from any thread."""

    def __init__(self, documents: Path, index: Path) -> None:
        self.documents = documents
        self.index = index
        self._lock = threading.Lock()
        self._job: Job | None = None
        self._known: tuple[object, Contents] = (None, Contents())

    # Files

    def names(self) -> list[str]:
        """The files, as a person would sort them."""
        if not self.documents.is_dir():
            return []
        files = (path for path in self.documents.iterdir() if path.is_file() and not path.name.startswith("."))
        return sorted((path.name for path in files), key=str.casefold)

    def size(self, name: str) -> int:
        try:
            return (self.documents / name).stat().st_size
        except OSError:
            return 0

    def save(self, name: str, data: bytes) -> str:
        """Store a file; returns a sentence where its name or content was there before, else an empty string.

        Nothing is ever overwritten: another content under a name that is taken gets a number. Raises LibraryError when
        the disk is full.
        """
        try:
            self.documents.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(self.documents).free < len(data) + SPARE_BYTES:
                raise OSError(errno.ENOSPC, "disk full")
            with self._lock:
                return self._store(safe_name(name), data)
        except OSError as error:
            raise LibraryError(_disk(error)) from error

    def _store(self, name: str, data: bytes) -> str:
        taken = {other.casefold(): other for other in self.names()}
        free, number = name, 1
        while (other := taken.get(free.casefold())) is not None:
            if (self.documents / other).read_bytes() == data:
                return f"{other} is there already."
            number += 1
            free = _numbered(name, number)
        half = self.documents / f".{free}.part"
        try:
            half.write_bytes(data)
            half.replace(self.documents / free)  # the index never sees half a file
        finally:
            half.unlink(missing_ok=True)
        return f"There was another {name} already; this one is kept as {free}." if free != name else ""

    # The index

    @property
    def job(self) -> Job | None:
        """The work that goes on right now, whoever has started it."""
        return self._job if self._job is not None and not self._job.over else None

    def update(self, reload: Callable[[], None]) -> Job:
        """Bring the index up to date with the files, then let the search service take it up with ``reload``."""

        def work(job: Job) -> str:
            return self._build(job, reload)

        return self._begin(work)

    def remove(self, name: str, reload: Callable[[], None]) -> Job:
        """Take a document out of the index and delete its file. Raises LibraryError for a name that is not there."""
        if name not in self.names():
            raise LibraryError(f"There is no document {name!r} any more.")

        def work(_: Job) -> str:
            # Out of the index first: were it the last file, the builder would take the empty folder for a lost disk.
            if name in self.contents().pages:
                self._command(["remove", str(self.index), name])
            (self.documents / name).unlink(missing_ok=True)
            reload()
            return f"{name} was removed."

        return self._begin(work)

    def rebuild(self, reload: Callable[[], None]) -> Job:
        """Make the index anew: for one that is damaged or that another version has written."""

        def work(job: Job) -> str:
            shutil.rmtree(self.index, ignore_errors=True)
            return self._build(job, reload)

        return self._begin(work)

    def contents(self) -> Contents:
        """What is in the index. Raises LibraryError when it cannot be used."""
        try:
            stat = (self.index / "manifest.json").stat()
        except OSError:
            return Contents()
        now = stat.st_mtime_ns, stat.st_ino, stat.st_size
        if self._known[0] != now:
            facts = json.loads("\n".join(self._command(["info", str(self.index), "--json"])))
            pages = {path.rsplit("/", 1)[-1]: int(items) for path, items in facts["documents"].items()}
            self._known = now, Contents(pages, self._by_name(facts["problems"], pages))
        return self._known[1]

    def _by_name(self, problems: Sequence[str], names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        longest_first = sorted(names, key=len, reverse=True)
        for problem in problems:
            name = next((name for name in longest_first if problem.startswith(f"{name}: ")), None)
            if name is not None:
                reason = problem.removeprefix(f"{name}: ").replace(f"{self.documents}/", "")
                found[name] = (*found.get(name, ()), reason)
        return found

    def _begin(self, work: Callable[[Job], str]) -> Job:
        with self._lock:
            if self.job is not None:
                raise LibraryError("Documents are being indexed right now; wait until that is done.")
            self._job = Job(work)
            return self._job

    def _build(self, job: Job, reload: Callable[[], None]) -> str:
        if not self.names():
            raise LibraryError("There are no documents to index.")
        self.index.parent.mkdir(parents=True, exist_ok=True)
        self._command(["build", str(self.documents), str(self.index), "--progress", "json"], job)
        reload()
        return "The index is up to date. Ask about your documents on the first page."

    def _command(self, arguments: Sequence[str], job: Job | None = None) -> list[str]:
        """Run the index builder; returns what it said, but for its progress, which goes to ``job``."""
        said: list[str] = []
        command = [sys.executable, "-m", "search_engine.search_engine", *arguments]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=ROOT
        ) as process:
            assert process.stdout is not None
            said += [line.rstrip() for line in process.stdout if job is None or not _take_progress(line, job)]
        if process.returncode != 0:
            last = [line for line in said if line.strip()][-3:]
            raise LibraryError("\n".join(last) or f"The index builder ended with status {process.returncode}.")
        return said


def _take_progress(line: str, job: Job) -> bool:
    try:
        state = json.loads(line)
        job.done, job.total = int(state["done"]), int(state["total"])
    except (ValueError, KeyError, TypeError):
        return False
    return True


def _numbered(name: str, number: int) -> str:
    stem, dot, suffix = name.rpartition(".")
    return f"{stem} ({number}).{suffix}" if dot else f"{name} ({number})"


def _disk(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "The disk is full. Make room, then try again; nothing that was there before is lost."
    return f"The documents cannot be stored ({error.strerror or error})."
