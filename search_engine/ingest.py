"""Many files, read by a pool of worker processes, each with a limit on memory and time.

A file can be anything, so it is never opened in the process that builds the index. A worker that crashes, hangs or needs too
much memory is killed and replaced; what it was at is tried once more, alone, and then listed with the reason. It had sent
all earlier pages already, so a broken page costs that page. The pages of a long PDF are spread over all workers.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO

from search_engine.documents import Extracted, FileResult, SourceFile
from search_engine.files import clear_partial
from search_engine.ingest_worker import CannotWrite, Done, Message, OutOfMemory, Ready, Settings, Task, Unreadable
from search_engine.reading import Desk, IngestOptions, Opened, Part, Work
from vrag.errors import VragError

__all__ = ["IngestOptions", "Ingestor", "Progress"]

log = logging.getLogger(__name__)

#: Files that may be finished ahead of the one whose turn it is, for each worker.
AHEAD = 4
#: Time for a worker to start, in seconds, and failed starts in a row after which there is no point in another.
START_SECONDS = 120.0
MAX_FAILED_STARTS = 3
#: How often the pool looks whether there is room for new work, in seconds.
_TICK = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. ``pages_total`` grows as PDFs are opened; other files count as one page."""

    files_done: int
    files_total: int
    pages_done: int
    pages_total: int


class Ingestor:
    """Reads files into items. Page images go to ``pages_dir``, OCR results to ``cache_dir``; both outlive a run.

    A run that is killed leaves nothing behind that the next one could trip over: it overwrites page images and finds the
    OCR results of the one before.
    """

    def __init__(self, pages_dir: Path, cache_dir: Path, options: IngestOptions | None = None) -> None:
        self.desk = Desk(Path(pages_dir), Path(cache_dir), options or IngestOptions())

    def run(
        self,
        sources: Iterable[SourceFile],
        workers: int | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Generator[FileResult, None, None]:
        """See :func:`run`."""
        yield from run(self.desk, sources, workers, progress)


def run(
    desk: Work,
    sources: Iterable[SourceFile],
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Generator[FileResult, None, None]:
    """One result per source, in the order of the sources; memory is bounded however many there are.

    ``desk.read`` is what the workers do with each. ``workers``: processes, as many as there are cores by default.
    ``progress`` is called in the thread that iterates. Closing the iterator, or an exception such as KeyboardInterrupt in
    it, stops the workers at once.

    Raises VragError when workers cannot be started or results cannot be written.
    """
    sources = list(sources)
    for folder in (desk.pages_dir, desk.cache_dir):
        folder.mkdir(parents=True, exist_ok=True)
        clear_partial(folder)
    pool = _Pool(sources, desk, max(1, workers or _cores()))
    pool.start()
    try:
        yield from pool.results(progress)
    finally:
        pool.stop()
        for folder in (desk.pages_dir, desk.cache_dir):
            clear_partial(folder)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(eq=False)
class _Job:
    """One source under way: the tasks still to give out, and the parts that have come back."""

    source: SourceFile
    tasks: collections.deque[Task]
    total: int | None = None
    parts: dict[int, Part] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    retried: set[int] = field(default_factory=set)
    failed: bool = False

    @property
    def finished(self) -> bool:
        return self.failed or (self.total is not None and len(self.parts) == self.total)

    def result(self) -> FileResult:
        parts = [self.parts[number] for number in sorted(self.parts)]
        extracted: list[Extracted] = [one for part in parts for one in part.extracted]
        problems = [*self.problems, *(part.problem for part in parts if part.problem)]
        return FileResult(self.source, tuple(extracted), tuple(problems))


@dataclass(eq=False)
class _Worker:
    """One process, the job it works for, and the part it has to send next (0: nothing is open yet)."""

    process: subprocess.Popen[bytes]
    connection: Connection
    errors: IO[bytes]
    deadline: float
    ready: bool = False
    job: _Job | None = None
    task: Task | None = None
    expected: list[int] = field(default_factory=list)

    def last_words(self) -> str:
        """The end of what the process wrote to its error output."""
        self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - 2000))
        return self.errors.read().decode("utf-8", "replace").strip()


class _Pool:
    """The workers and the thread that feeds and watches them, so that limits hold while the consumer is busy."""

    def __init__(self, sources: Sequence[SourceFile], desk: Work, size: int) -> None:
        self.sources = sources
        self.desk = desk
        self.size = size
        self.workers: list[_Worker] = []
        self.jobs: collections.deque[_Job] = collections.deque()  # those opened and not yet handed out, in order
        self.opened = 0
        self.failed_starts = 0
        self.taken = 0
        self.pages_done = 0
        self.pages_total = len(sources)
        self.error: BaseException | None = None
        self.stopping = False
        self.changed = threading.Condition()
        # Wakes the thread where it waits for the workers: a result was taken, so that there is room for another job.
        self.bell, self.button = (Connection(end.detach()) for end in socket.socketpair())
        self.rung = False
        self.thread = threading.Thread(target=self._supervise, name="ingest", daemon=True)

    # --- the consumer's side

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        with self.changed:
            self.stopping = True
            self._ring()
            self.changed.notify_all()
        self.thread.join()
        self.bell.close()
        self.button.close()

    def _ring(self) -> None:
        if not self.rung:
            self.rung = True
            self.button.send_bytes(b"!")

    def results(self, progress: Callable[[Progress], None] | None) -> Iterator[FileResult]:
        shown: Progress | None = None
        while self.taken < len(self.sources):
            with self.changed:
                while not (self.error or (self.jobs and self.jobs[0].finished) or shown != self._progress()):
                    self.changed.wait(1.0)
                state = self._progress()
                if self.error is not None:
                    raise self.error
                result = None
                if self.jobs and self.jobs[0].finished:
                    result = self.jobs.popleft().result()
                    self.taken += 1
                    self._ring()
                    state = self._progress()
            if progress is not None and state != shown:
                progress(state)
            shown = state
            if result is not None:
                yield result

    def _progress(self) -> Progress:
        return Progress(self.taken, len(self.sources), self.pages_done, self.pages_total)

    # --- the thread's side

    def _supervise(self) -> None:
        try:
            while not self.stopping and (self.opened < len(self.sources) or self.jobs):
                with self.changed:
                    self._assign()
                    workers = list(self.workers)
                ready = wait([self.bell, *(worker.connection for worker in workers)], _TICK)
                with self.changed:
                    if self.bell in ready:
                        self.bell.recv_bytes()
                        self.rung = False
                    for worker in workers:
                        if worker.connection in ready:
                            self._receive(worker)
                    self._expire()
                    self.changed.notify_all()
        except Exception as error:
            with self.changed:
                self.error = error
                self.changed.notify_all()
        finally:
            for worker in list(self.workers):
                self._end(worker)

    def _assign(self) -> None:
        """Give every free worker a task; start a worker when there is a task and none is free."""
        while True:
            free = next((worker for worker in self.workers if worker.ready and worker.job is None), None)
            starting = sum(not worker.ready for worker in self.workers)
            if free is None and len(self.workers) >= self.size:
                return
            if free is None and starting >= self._waiting():
                return
            if free is None:
                self.workers.append(self._started())
                continue
            job = self._next_job()
            if job is None:
                return
            self._give(free, job, job.tasks.popleft())

    def _waiting(self) -> int:
        """How many tasks could be given out now, roughly."""
        unopened = min(len(self.sources) - self.opened, max(0, self._window() - len(self.jobs)))
        return unopened + sum(len(job.tasks) for job in self.jobs)

    def _window(self) -> int:
        return self.size * AHEAD

    def _next_job(self) -> _Job | None:
        for job in self.jobs:
            if job.tasks:
                return job
        if self.opened == len(self.sources) or len(self.jobs) >= self._window():
            return None
        source = self.sources[self.opened]
        self.opened += 1
        self.jobs.append(_Job(source, collections.deque([Task(source)])))
        return self.jobs[-1]

    def _give(self, worker: _Worker, job: _Job, task: Task) -> None:
        worker.job, worker.task, worker.expected = job, task, list(task.parts or ())
        worker.deadline = self._deadline()
        try:
            worker.connection.send(task)
        except OSError:
            self._lost(worker)

    def _deadline(self) -> float:
        return time.monotonic() + self.desk.options.page_seconds

    def _receive(self, worker: _Worker) -> None:
        try:
            message: Message = worker.connection.recv()
        except (EOFError, OSError):
            self._lost(worker)
        else:
            self._handle(worker, message)

    def _handle(self, worker: _Worker, message: Message) -> None:
        worker.deadline = self._deadline()
        job, task = worker.job, worker.task
        if isinstance(message, Ready):
            worker.ready = True
            self.failed_starts = 0
        elif isinstance(message, CannotWrite):
            raise VragError(
                f"Pages cannot be stored in {self.desk.pages_dir} or {self.desk.cache_dir}: {message.reason}. Make room and "
                "run the same command again; it goes on from here."
            )
        elif isinstance(message, OutOfMemory):
            limit = (self.desk.options.memory_bytes or 0) // 2**20
            self._lost(worker, f"it needs more memory than the {limit:,} MiB that a worker may use")
        elif job is None or task is None:
            return
        elif isinstance(message, Opened):
            self._open(job, worker, task, message)
        elif isinstance(message, Part):
            worker.expected.remove(message.number)
            self._keep(job, message)
        elif isinstance(message, Unreadable):
            self._give_up(job, worker.expected, message.reason)
            worker.expected = []
        elif isinstance(message, Done):
            worker.job = worker.task = None

    def _open(self, job: _Job, worker: _Worker, task: Task, message: Opened) -> None:
        """The first to open a PDF learns how many pages it has; the rest is then cut into tasks."""
        if task.parts is not None:
            return
        job.total = message.parts
        self.pages_total += message.parts - 1
        if message.note:
            job.problems.append(message.note)
        step = self.desk.options.pages_per_task
        first = min(message.parts, step)
        worker.expected = list(range(1, first + 1))
        worker.task = Task(job.source, range(1, first + 1))
        job.tasks.extend(
            Task(job.source, range(start, min(start + step, message.parts + 1)))
            for start in range(first + 1, message.parts + 1, step)
        )

    def _keep(self, job: _Job, part: Part) -> None:
        if part.number not in job.parts:
            job.parts[part.number] = part
            self.pages_done += 1

    def _give_up(self, job: _Job, expected: list[int], reason: str) -> None:
        """The part at hand, or the whole file if it could not be opened, is lost; the parts behind it go to a new task."""
        if job.total is None:
            job.failed = True
            job.problems.append(reason)
            self.pages_done += 1
        elif expected:
            number = expected[0]
            prefix = f"page {number}: " if job.source.kind == "pdf" else ""
            self._keep(job, Part(number, (), prefix + reason))
            _put_back(job, expected[1:])

    def _lost(self, worker: _Worker, reason: str | None = None, again: bool = True) -> None:
        """A worker is dead, or has to die for ``reason``. What it was at is tried once more, if ``again`` may help."""
        words = self._end(worker)
        if not worker.ready:
            self.failed_starts += 1
            if self.failed_starts >= MAX_FAILED_STARTS:
                last = words.splitlines()[-1:] or [reason or _cause(worker.process.returncode)]
                raise VragError(f"The processes that read documents do not start: {last[0]}")
        job, task, expected = worker.job, worker.task, worker.expected
        if job is None or task is None or (job.total is not None and not expected):
            return
        reason = reason or _cause(worker.process.returncode)
        log.info("%s: %s", job.source.key, reason)
        culprit = expected[0] if expected else 0
        if not again or culprit in job.retried:
            self._give_up(job, expected, reason)
            return
        job.retried.add(culprit)
        if job.total is None:
            job.tasks.appendleft(task)
        else:
            _put_back(job, expected[1:])
            _put_back(job, expected[:1])

    def _expire(self) -> None:
        now = time.monotonic()
        for worker in [worker for worker in self.workers if worker.deadline < now]:
            if not worker.ready:
                self._lost(worker, "a worker did not start in time")
            elif worker.job is not None:
                limit = self.desk.options.page_seconds
                self._lost(worker, f"it took more than the {limit:g} seconds allowed", again=False)

    def _started(self) -> _Worker:
        ours, theirs = socket.socketpair()
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        descriptor = theirs.fileno()
        process = subprocess.Popen(
            [sys.executable, "-c", f"from search_engine.ingest_worker import main; main({descriptor})"],
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # the Ctrl-C of a terminal is for the parent alone
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [_ROOT, *sys.path])), **_ONE_THREAD},
        )
        theirs.close()
        connection = Connection(ours.detach())
        threads = max(1, _cores() // self.size)
        worker = _Worker(process, connection, errors, time.monotonic() + START_SECONDS)
        try:
            connection.send(Settings(self.desk, threads))
        except OSError:
            log.debug("a worker died before it was told the settings")
        return worker

    def _end(self, worker: _Worker) -> str:
        """Kill a worker, collect it, and return what it had to say."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.process.pid, signal.SIGKILL)  # it leads a group of its own, with what it may have started
        worker.process.wait()
        words = worker.last_words()
        worker.connection.close()
        worker.errors.close()
        if worker in self.workers:
            self.workers.remove(worker)
        return words


_ROOT = str(Path(__file__).resolve().parents[1])
# Linear algebra in a worker must not start a thread for every core.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _put_back(job: _Job, pages: list[int]) -> None:
    """Make consecutive pages a task again, to be given out next."""
    if pages:
        job.tasks.appendleft(Task(job.source, range(pages[0], pages[-1] + 1)))


def _cause(status: int) -> str:
    """Why a process ended, by its exit status."""
    if status >= 0:
        return f"the process that read it ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = "; is the machine out of memory?" if -status == signal.SIGKILL else ""
    return f"the process that read it was ended by {name}{hint}"
