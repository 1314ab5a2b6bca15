#!/usr/bin/env python3
"""Turn PDFs into page images that an index can be built from.

    python search_engine/corpus/pdf2images.py                      # corpus/pdf -> corpus/image
    python search_engine/corpus/pdf2images.py -i DIR -o DIR --dpi 200 --workers 4

Page 3 of report.pdf becomes report_3.jpg. The text layer of the pages is kept in the hidden folder .pages beside the images, so
that an index built from them can be searched by text without OCR. Run again, it renders only what is missing or whose PDF has
changed; it may be stopped or killed at any moment.

Exit status: 0 every page has its image; 1 some have not (they are listed); 2 nothing was done (wrong options, no PDF);
130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

HERE = Path(__file__).resolve().parent
if not __package__:
    # Run as a script: the project's root takes the place of this folder on the path.
    sys.path[:] = [str(HERE.parents[1]), *(path for path in sys.path if os.path.realpath(path or ".") != str(HERE))]

DPI, QUALITY = 144, 85


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument(
        "-i", "--input", type=Path, default=HERE / "pdf", metavar="DIR", help="PDFs: a folder, or one file"
    )
    out.add_argument("-o", "--output", type=Path, default=HERE / "image", metavar="DIR", help="where the images go")
    out.add_argument(
        "--dpi",
        type=_whole(10, 1200),
        help=f"resolution, exactly (default: {DPI}, and between 1.5 and 6 million pixels a page)",
    )
    out.add_argument(
        "--quality", type=_whole(1, 95), default=QUALITY, help=f"of the JPEGs, 1 to 95 (default: {QUALITY})"
    )
    out.add_argument("--workers", type=_whole(1, 1024), help="processes (default: one for each core)")
    out.add_argument("--overwrite", action="store_true", help="render every page again, and replace foreign images")
    out.add_argument("--progress", choices=("auto", "bar", "lines", "none"), default="auto")
    return out


def _whole(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not between {least} and {most}")
        return value

    return number


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        import pymupdf  # noqa: F401  # only to say early that it is missing

        from search_engine.page_images import render_pdfs
        from search_engine.progress import reporting
        from search_engine.reading import IngestOptions
        from vrag.errors import ConfigError, VragError
        from vrag.pages import MAX_PAGE_PIXELS
    except ImportError as error:
        _tell(f"{error}. Install what the project needs first: pip install -r {HERE.parents[1] / 'requirements.txt'}")
        return 2

    ingest = IngestOptions(dpi=DPI, jpeg_quality=options.quality)
    if options.dpi is not None:
        ingest = IngestOptions(dpi=options.dpi, min_pixels=1, max_pixels=MAX_PAGE_PIXELS, jpeg_quality=options.quality)
    lines = options.progress == "lines" or (options.progress == "auto" and not sys.stderr.isatty())
    try:
        with reporting({"auto": not lines, "bar": True}.get(options.progress, False), "Rendering") as show:
            done = render_pdfs(
                options.input,
                options.output,
                ingest,
                workers=options.workers,
                overwrite=options.overwrite,
                on_progress=show,
                on_file=(lambda name, pages: _tell(f"{name}: {pages} pages")) if lines else None,
            )
    except ConfigError as error:
        _tell(str(error))
        return 2
    except VragError as error:
        _tell(str(error))
        return 1
    except KeyboardInterrupt:
        _tell("Stopped. What was rendered is kept; run the same command again to go on.")
        return 130
    _list("Left alone", [f"{rejected.path}: {rejected.reason}" for rejected in done.ignored])
    _list("Not rendered", done.problems)
    _say(
        f"{done.rendered:,} pages of {done.pdfs:,} PDFs rendered into {options.output}, {done.kept:,} were there already."
    )
    return 1 if done.problems else 0


def _list(title: str, lines: Sequence[str]) -> None:
    if lines:
        _tell(f"{title} ({len(lines)}):")
        for line in lines:
            _tell(f"  {line}")


def _say(text: str) -> None:
    _write(sys.stdout, text)


def _tell(text: str) -> None:
    _write(sys.stderr, text)


def _write(stream: TextIO, text: str) -> None:
    # A file name may hold what the terminal cannot show.
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
