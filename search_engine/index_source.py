"""What stands in a folder: an index of this project, or one that the published code built; either is opened here."""

from __future__ import annotations

import os
from pathlib import Path

from search_engine.index_records import ModelKey
from search_engine.index_store import MANIFEST, StoredIndex, read_index, read_manifest
from search_engine.published_index import is_published, read_published


def is_index(folder: Path) -> bool:
    """Whether a folder holds an index that something was committed to."""
    return (folder / MANIFEST).exists() or is_published(folder)


def open_index(folder: Path, model: ModelKey | None = None) -> StoredIndex:
    """Open and verify an index; see :func:`read_index` and :func:`read_published` for what is raised."""
    return read_published(folder, model) if is_published(folder) else read_index(folder, model)


def index_name(folder: Path) -> str:
    """What the corpus is called: as the index says, which for a published one is the folder's name."""
    return Path(os.path.abspath(folder)).name if is_published(folder) else read_manifest(folder).name


def state_files(folder: Path) -> list[Path]:
    """The files of which one is replaced whenever the index changes."""
    return sorted(folder.glob("*_meta_data.json")) if is_published(folder) else [folder / MANIFEST]
