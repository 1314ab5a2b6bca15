"""The process that reads files for :mod:`search_engine.ingest`: it may crash, hang or run out of memory.

It talks over one socket: first the settings, then a task, its messages, :class:`Done`, the next task. It ends when the other
end is gone. Nothing of the parent's ``__main__`` is imported, so any script may start an ingestion at its top level.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection

from search_engine.documents import SourceFile
from search_engine.reading import Opened, Part, Work
from vrag.errors import MediaError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True, slots=True)
class Settings:
    desk: Work
    threads: int


@dataclass(frozen=True, slots=True)
class Task:
    """Read these parts of a source; None: open it, say how many it has, and read the first."""

    source: SourceFile
    parts: range | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has started."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Nothing (more) of the source can be read."""

    reason: str


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The part at hand needs more memory than the worker has; the worker ends."""


@dataclass(frozen=True, slots=True)
class Done:
    """The task is finished."""


@dataclass(frozen=True, slots=True)
class CannotWrite:
    """Results cannot be stored (a full disk): going on makes no sense."""

    reason: str


Message = Ready | Opened | Part | Unreadable | OutOfMemory | CannotWrite | Done


def main(descriptor: int) -> None:
    """Serve tasks from the socket ``descriptor`` until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    connection = Connection(descriptor)
    # The parent is gone, or has closed the socket to say so: nothing is left to do.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        settings: Settings = connection.recv()
        _limit_memory(settings.desk.options.memory_bytes)
        _prepare(settings.threads)
        connection.send(Ready())
        while True:
            _serve(connection, connection.recv(), settings.desk)
    # Libraries loaded on the way have nothing to save, and some of them crash when they are unloaded.
    os._exit(0)


def _serve(connection: Connection, task: Task, desk: Work) -> None:
    alarm = int(desk.options.page_seconds) + 30
    # Ends this process even inside of a library, should the parent not live to do it.
    signal.alarm(alarm)
    try:
        for message in desk.read(task.source, task.parts):
            connection.send(message)
            signal.alarm(alarm)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except MediaError as error:
        connection.send(Unreadable(str(error)))
    except OSError as error:
        kind = CannotWrite if error.errno in _NO_ROOM else Unreadable
        connection.send(kind(f"{error.strerror or error}"))
    except MemoryError:
        connection.send(OutOfMemory())
        os._exit(1)
    except Exception as error:  # a fault of ours or of a library costs this file, not the ones behind it
        connection.send(Unreadable(f"reading it failed ({type(error).__name__}: {error})"))
    finally:
        signal.alarm(0)
    connection.send(Done())


def _limit_memory(limit: int | None) -> None:
    import resource

    if limit is not None and sys.platform == "linux":
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _prepare(threads: int) -> None:
    from search_engine import ocr

    ocr.limit_threads(threads)
