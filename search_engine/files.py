"""Files that are whole or not there, whenever the writer is killed; and names that any file system takes."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import unicodedata
from pathlib import Path

#: Where unfinished files lie, below the folder that they are written for.
PARTIAL = ".partial"
_counter = itertools.count()


def write_atomic(path: Path, data: bytes, root: Path) -> None:
    """Write ``path`` (below ``root``, on the same file system) all at once; folders are made as needed.

    Survives a kill of the process at any moment. Not flushed to the disk: for files that can be made again.
    """
    partial = root / PARTIAL / f"{os.getpid()}.{next(_counter)}"
    partial.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def clear_partial(root: Path) -> None:
    """Remove the unfinished files of processes that are no more."""
    folder = root / PARTIAL
    if not folder.is_dir():
        return
    for file in folder.iterdir():
        pid = file.name.partition(".")[0]
        if not (pid.isdigit() and _alive(int(pid))):
            file.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def safe_name(name: str, longest: int = 100) -> str:
    """``name`` as one part of a path: no separators, reserved or control characters, at most ``longest`` bytes.

    Letters of every script stay. A name that had to be altered gets a short hash, so that different names stay different.
    """
    plain = unicodedata.normalize("NFC", name)
    plain = re.sub(r'[\x00-\x1f\x7f-\x9f/\\:*?"<>|\ud800-\udfff]', "_", plain).strip(" ").lstrip(".")
    plain = plain.encode("utf-8")[:longest].decode("utf-8", "ignore").rstrip(" .")
    if plain == name and plain:
        return plain
    return f"{plain}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}".lstrip("-")
