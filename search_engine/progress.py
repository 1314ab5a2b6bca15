"""Showing how far a run of the workers is: a function that is told, or a bar on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from search_engine.ingest import Progress

OnProgress = Callable[["Progress"], None]


@contextmanager
def reporting(progress: OnProgress | bool | None = None, label: str = "Reading") -> Iterator[OnProgress | None]:
    """What to pass on as ``progress``: the function given, or a bar on the error output; None for nothing.

    ``progress``: a function, True or False for a bar or none, None for a bar where the error output is a terminal.
    """
    if progress is None:
        progress = sys.stderr.isatty()
    if not isinstance(progress, bool):
        yield progress
    elif progress:
        with _bar(label) as show:
            yield show
    else:
        yield None


@contextmanager
def _bar(label: str) -> Iterator[OnProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("pages, {task.fields[files]} files"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=None, files="0")
        yield lambda state: bar.update(
            task,
            completed=state.pages_done,
            total=state.pages_total,
            files=f"{state.files_done}/{state.files_total}",
        )
