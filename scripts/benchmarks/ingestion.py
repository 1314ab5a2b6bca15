"""PDFs to page images and text, against the published way (pdf2image at its defaults), on the same files in one run.

The published way renders with poppler at 200 dpi in one thread and saves JPEGs; it reads no text. Here poppler is given ten
pages at a time, which is faster than one call per page and needs less memory than one per document. Ours stores page
images *and* reads the text layers with word boxes; OCR is reported apart, with an empty cache and again with a full one.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from search_engine.documents import SourceFile, discover
from search_engine.ingest import IngestOptions, Ingestor
from vrag.errors import ConfigError

#: Pages that poppler renders in one call.
RUN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="a folder with PDFs, at any depth")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="worker processes of ours (1 2)")
    parser.add_argument("--limit", type=int, help="only the first N PDFs")
    parser.add_argument("--ocr", action="store_true", help="also with OCR: about a second for a page that needs it")


def run(args: argparse.Namespace) -> dict[str, Any]:
    sources = [source for source in discover(args.data)[0] if source.kind == "pdf"][: args.limit]
    if not sources:
        raise ConfigError(f"there is no PDF in {args.data}")
    with tempfile.TemporaryDirectory() as scratch:
        pages, seconds = published(sources, Path(scratch) / "published")
        base = pages / seconds
        rows = [row("pdf2image, defaults (200 dpi)", 1, pages, seconds, base)]
        for workers in args.workers:
            plain = IngestOptions(ocr=False)
            rows.append(ours("ours, text layer", sources, Path(scratch) / f"a{workers}", plain, workers, base))
        finer = IngestOptions(ocr=False, dpi=200, min_pixels=1, max_pixels=100_000_000)
        workers = args.workers[-1]
        rows.append(ours("ours, text layer, 200 dpi", sources, Path(scratch) / "finer", finer, workers, base))
        if args.ocr:
            for state in ("empty", "full"):
                name = f"ours, text layer and OCR, cache {state}"
                rows.append(ours(name, sources, Path(scratch) / "ocr", IngestOptions(), workers, base))
    return {"rows": rows, "documents": [source.document for source in sources]}


def published(sources: Sequence[SourceFile], folder: Path) -> tuple[int, float]:
    """Pages and seconds of the published way."""
    from pdf2image import convert_from_path, pdfinfo_from_path

    folder.mkdir()
    count = 0
    started = time.perf_counter()
    for source in sources:
        pages = int(pdfinfo_from_path(source.path)["Pages"])
        for first in range(1, pages + 1, RUN):
            images = convert_from_path(source.path, first_page=first, last_page=min(first + RUN - 1, pages))
            for number, image in enumerate(images, start=first):
                image.save(folder / f"{source.id}_{number}.jpg", "JPEG")
            count += len(images)
    return count, time.perf_counter() - started


def ours(
    name: str, sources: Sequence[SourceFile], folder: Path, options: IngestOptions, workers: int, base: float
) -> dict[str, Any]:
    started = time.perf_counter()
    results = list(Ingestor(folder / "pages", folder / "cache", options).run(sources, workers))
    seconds = time.perf_counter() - started
    extracted = [one for result in results for one in result.extracted]
    read = sum("ocr" in one.text.source for one in extracted)
    problems = sum(len(result.problems) for result in results)
    return row(name, workers, len(extracted), seconds, base) | {"by OCR": read, "problems": problems}


def row(name: str, workers: int, pages: int, seconds: float, base: float) -> dict[str, Any]:
    return {
        "method": name,
        "workers": workers,
        "pages": pages,
        "seconds": round(seconds, 2),
        "pages/s": round(pages / seconds, 2),
        "ratio": round(pages / seconds / base, 2),
    }
