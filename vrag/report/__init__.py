"""Runs as documents: one HTML file that needs nothing else, or Markdown beside its pictures.

    export_html([read_record(path)], retriever)             # the text of the file
    export_markdown([record, other], retriever)             # {"report.md": bytes, "images/...": bytes}
    write_report(record, chat, retriever)                   # a sectioned answer, which both export as well

A source is the Record of a run, a RunTrace or a Report. ``retriever`` (any with ``image`` and ``frames``) loads the
pictures; where it is None or down, or a page is gone, a sentence stands in the picture's place. From the shell:
``python -m vrag.report RECORD... --html FILE | --markdown DIR``.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from pathlib import Path

from vrag.errors import VragError
from vrag.report import html_page, markdown
from vrag.report.document import Source, document
from vrag.report.model import Report
from vrag.report.pictures import Pages, load
from vrag.report.trace import Exhibit, RunTrace
from vrag.report.writer import WriterOptions, write_report

__all__ = [
    "Exhibit",
    "Report",
    "RunTrace",
    "Source",
    "WriterOptions",
    "export_html",
    "export_markdown",
    "save_html",
    "save_markdown",
    "write_report",
    "zipped",
]


def export_html(sources: Iterable[Source], retriever: Pages | None, title: str = "") -> str:
    """One self-contained HTML file. Raises ValueError where there is no source."""
    made = document(sources, title)
    return html_page.render(made, load(made.pictures(), retriever))


def export_markdown(sources: Iterable[Source], retriever: Pages | None, title: str = "") -> dict[str, bytes]:
    """The files of a folder by their names: ``report.md``, and ``images/...`` as far as it shows them."""
    made = document(sources, title)
    return markdown.render(made, load(made.pictures(), retriever))


def save_html(sources: Iterable[Source], retriever: Pages | None, path: Path | str, title: str = "") -> Path:
    """Write the file. Raises VragError where that is not possible."""
    return _write(Path(path), export_html(sources, retriever, title).encode("utf-8"))


def save_markdown(sources: Iterable[Source], retriever: Pages | None, folder: Path | str, title: str = "") -> Path:
    """Write ``report.md`` and its pictures into ``folder`` and return the path of the former. Raises VragError."""
    files = export_markdown(sources, retriever, title)
    for name, data in files.items():
        _write(Path(folder) / name, data)
    return Path(folder) / markdown.TEXT_NAME


def zipped(files: dict[str, bytes]) -> bytes:
    """The files as one ZIP archive, to be downloaded."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def _write(path: Path, data: bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise VragError(f"{path} cannot be written ({error.strerror}). Choose another place.") from error
    return path
