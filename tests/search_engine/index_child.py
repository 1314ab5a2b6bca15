"""Child processes of the tests that kill builds: they are started as ``python -m tests.search_engine.index_child MODE
...``.

``build INPUT INDEX``: an ordinary build with a commit for every file.
``commits INDEX CRASHES``: forks once for every number in CRASHES (comma-separated); the fork runs a fixed sequence of
commits in ``INDEX/N`` and is gone, without any clean-up, at its N-th call that changes the file system.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from search_engine.builder import BuildOptions, update_index
from search_engine.documents import Line, PageText
from search_engine.index_records import ModelKey, SegmentData, SourceRecord, StoredItem, StoredText
from search_engine.index_store import IndexWriter
from search_engine.lexical import count_terms
from search_engine.models.text_page import TextPage
from vrag.geometry import Box
from vrag.items import Item

MODEL = ModelKey(name="test", dimension=8, fingerprint="1")
#: Calls that change the file system, as the interpreter reports them.
WRITES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}


def segment(names: list[str], dimension: int = 8) -> SegmentData:
    """A segment of one-item documents, the same for the same names."""
    texts = [
        StoredText(PageText((Line(f"text of {name}", Box(0, 0, 10, 10)),), "text"), f"about {name}") for name in names
    ]
    return SegmentData(
        sources=[
            SourceRecord(
                path=f"../{name}.txt",
                origin="..",
                key=f"{name}.txt",
                id=name,
                document=f"{name}.txt",
                kind="text",
                size=1,
                mtime_ns=2,
                sha256="0",
                items=1,
            )
            for name in names
        ],
        items=[
            StoredItem(item=Item(id=name, kind="text", document=f"{name}.txt", content=name), media=None, source=row)
            for row, name in enumerate(names)
        ],
        texts=texts,
        vectors=np.stack([np.random.default_rng(len(name)).random(dimension, np.float32) for name in names]),
        postings=count_terms([(stored.text.text, stored.context) for stored in texts]),
    )


#: The document names after each step of :func:`steps`.
STATES = [["a", "bb"], ["bb", "ccc"], ["bb", "ccc", "dddd"], ["bb", "ccc", "dddd"]]


def steps(index: Path) -> None:
    """Add, add and remove, add, compact; goes on where an earlier run was stopped."""
    with IndexWriter(index, MODEL) as writer:
        live = {record.id: place for place, record in writer.sources()}
        if not live:
            writer.commit(segment(["a", "bb"]))
            live = {record.id: place for place, record in writer.sources()}
        if "a" in live:
            writer.commit(segment(["ccc"]), removed=[live["a"]])
        if "dddd" not in live:
            writer.commit(segment(["dddd"]))
        if len(writer.manifest.segments) > 1:
            writer.compact()


def crash_at(number: int, folder: Path) -> None:
    """End this process at its ``number``-th change below ``folder``."""
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event not in WRITES or not str(arguments[0]).startswith(str(folder)):
            return
        if event == "open" and not (isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")):
            return
        seen += 1
        if seen > number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def main() -> None:
    mode, *arguments = sys.argv[1:]
    if mode == "build":
        options = BuildOptions(save_interval=1, workers=1)
        update_index(Path(arguments[1]), TextPage(), [Path(arguments[0])], options=options)
        return
    for number in map(int, arguments[1].split(",")):
        folder = Path(arguments[0]) / str(number)
        child = os.fork()
        if child == 0:
            crash_at(number, folder)
            steps(folder)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{number} {'killed' if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)}\n")


if __name__ == "__main__":
    main()
