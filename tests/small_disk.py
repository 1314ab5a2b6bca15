"""A real file system with little room."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[None]:
    """A tmpfs of ``size`` (as mount takes it: 16k, 2m) at ``folder``, which is made; skips the test where that is not allowed."""
    folder.mkdir(parents=True)
    if shutil.which("mount") is None:
        pytest.skip("a small file system cannot be mounted here: no mount")
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {found.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
