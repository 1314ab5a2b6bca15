"""Files that are whole or not there, whenever their writer is killed or the disk is full."""

from __future__ import annotations

import os
from pathlib import Path

from vrag.errors import ConfigError


def write_whole(path: Path, data: bytes | str) -> None:
    """Put ``path`` in place all at once; folders are made as needed. Raises ConfigError, and then what was there stays."""
    temporary = path.with_name(f".{path.name[:40]}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _unwritable(path, error) from error


def write_once(path: Path, data: bytes) -> None:
    """As :func:`write_whole`, for a file named by its content: one that is there and whole is left alone."""
    try:
        there = path.stat().st_size == len(data)
    except OSError:
        there = False
    if not there:
        write_whole(path, data)


class Journal:
    """A file that grows by lines, each of them in it whole or not at all. Raises ConfigError where it cannot be written.

    Opening takes away the half line that a killed writer may have left at the end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            data = path.read_bytes()
        except OSError as error:
            raise _unwritable(path, error) from error
        if not data.endswith(b"\n"):
            os.ftruncate(self._file, data.rfind(b"\n") + 1)

    def add(self, line: str) -> None:
        before = os.fstat(self._file).st_size
        data = f"{line}\n".encode()
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            # Others may write behind it before the run has ended.
            os.ftruncate(self._file, before)
            raise _unwritable(self.path, error) from error

    def close(self) -> None:
        os.close(self._file)


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path} cannot be written ({error.strerror}). Make room or choose another folder.")
