"""PDFs by PyMuPDF: opening, the picture of a page, and its text layer in the pixels of that picture."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymupdf
from PIL import Image

from search_engine.documents import Line, union
from vrag.errors import MediaError
from vrag.geometry import Box, Size, whole

pymupdf.TOOLS.mupdf_display_errors(False)
pymupdf.TOOLS.mupdf_display_warnings(False)

POINTS_PER_INCH = 72
#: Small pages (slides of 10 x 6 cm) are rendered finer than asked for, up to this, so that small print can be read.
FINEST_DPI = 300
#: The longest side of a rendered page, in pixels; JPEG itself ends at 65,535.
LONGEST_SIDE = 16_000
#: Two pieces of one line further apart than this many line heights are cells or columns, not words.
CELL_GAP = 1.2
#: A page whose pictures cover more than this share of it may be a scan.
SCAN_SHARE = 0.6

# Ligatures are taken apart; a glyph without a known character becomes U+FFFD instead of an arbitrary number.
_WORD_FLAGS = pymupdf.TEXT_PRESERVE_WHITESPACE | pymupdf.TEXT_MEDIABOX_CLIP
# Bits of a span's char_flags: its glyphs are filled, or stroked.
_FILLED, _STROKED = 16, 32
_OUT_OF_MEMORY = re.compile(r"\b[mc]alloc\b|out of memory|bad_alloc", re.IGNORECASE)
#: x1, y1, x2, y2, text, number of the block, of the line in it, of the word in that.
_Word = tuple[float, float, float, float, str, int, int, int]
# PyMuPDF carries no types.
Document = Any
Page = Any


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """How pages become pictures."""

    dpi: int = 144
    """Resolution, as long as the area lies between the two limits below."""
    min_pixels: int = 1_500_000
    """Pages with fewer pixels are rendered finer, up to 300 dpi."""
    max_pixels: int = 6_000_000
    """Pages with more pixels are rendered coarser: a poster costs no more than a page."""


def open_pdf(path: Path, max_pages: int) -> Document:
    """Open a PDF for reading. Raises MediaError with the reason when no page of it can be read."""
    if path.stat().st_size == 0:
        raise MediaError("the file is empty (0 bytes)")
    try:
        document = pymupdf.open(path, filetype="pdf")
    except Exception as error:  # MuPDF's errors have no common type that is part of its interface
        raise _failure("it is not a PDF, or is damaged beyond repair", error, path) from error
    try:
        if not document.is_pdf:
            raise MediaError("it is not a PDF, whatever its name says")
        if document.needs_pass:
            raise MediaError("it is encrypted; save a copy without the password")
        if document.page_count == 0:
            raise MediaError("it has no pages" + (" that could be recovered" if document.is_repaired else ""))
        if document.page_count > max_pages:
            raise MediaError(f"it has {document.page_count:,} pages, more than the {max_pages:,} allowed; split it")
    except BaseException:
        document.close()
        raise
    return document


def load_page(document: Document, number: int) -> Page:
    """Page ``number``, counted from 1. Raises MediaError when it is broken or has no area."""
    try:
        page = document.load_page(number - 1)
    except Exception as error:  # see open_pdf
        raise _failure("it cannot be read", error) from error
    width, height = page.rect.width, page.rect.height
    if not (math.isfinite(width) and math.isfinite(height) and width > 0 and height > 0):
        raise MediaError("it has no area")
    return page


def rendering_scale(width: float, height: float, options: RenderOptions) -> tuple[float, float]:
    """Pixels per point in both directions for a page of ``width`` x ``height`` points."""
    area = width * height
    scale = options.dpi / POINTS_PER_INCH
    if area * scale * scale > options.max_pixels:
        scale = math.sqrt(options.max_pixels / area)
    elif area * scale * scale < options.min_pixels:
        scale = max(scale, min(math.sqrt(options.min_pixels / area), FINEST_DPI / POINTS_PER_INCH))
    scale = min(scale, LONGEST_SIDE / max(width, height))
    # No side below one pixel, however thin the page.
    return max(scale, 1 / width), max(scale, 1 / height)


def render(page: Page, options: RenderOptions) -> Image.Image:
    """The page as it is shown (crop box, rotation, annotations), in RGB on white. Raises MediaError."""
    scale_x, scale_y = rendering_scale(page.rect.width, page.rect.height, options)
    try:
        pixmap = page.get_pixmap(matrix=(scale_x, 0, 0, scale_y, 0, 0), colorspace=pymupdf.csRGB, alpha=False)
        return Image.frombytes("RGB", (pixmap.width, pixmap.height), pixmap.samples)
    except Exception as error:  # see open_pdf
        raise _failure("it cannot be rendered", error) from error


def layer_lines(page: Page, size: Size) -> tuple[Line, ...]:
    """The text layer, line by line in the order of the file, in pixels of the picture of ``size``. Raises MediaError.

    Text outside of the picture is left out. Cells of a table row are lines of their own.
    """
    try:
        words: list[_Word] = page.get_text("words", flags=_WORD_FLAGS)
    except Exception as error:  # see open_pdf
        raise _failure("its text layer cannot be read", error) from error
    # Words come in the coordinates of the page before its rotation, with the crop box's corner as origin.
    a, b, c, d, e, f = page.rotation_matrix
    scale_x, scale_y = size[0] / page.rect.width, size[1] / page.rect.height
    sheet = whole(size)
    lines = []
    for group in _grouped(words):
        texts, boxes = [], []
        for x1, y1, x2, y2, text, *_ in group:
            text = _clean(text)
            left, right = sorted(((a * x1 + c * y1 + e) * scale_x, (a * x2 + c * y2 + e) * scale_x))
            top, bottom = sorted(((b * x1 + d * y1 + f) * scale_y, (b * x2 + d * y2 + f) * scale_y))
            placed = Box(left, top, right, bottom)
            seen = placed.clamped(sheet)
            if text and placed.area > 0 and seen.area >= 0.5 * placed.area:
                texts.append(text)
                boxes.append(Box(*(round(value, 1) for value in seen.as_list())))
        if texts:
            lines.append(Line(" ".join(texts), union(boxes), tuple(boxes)))
    return tuple(lines)


def is_scan_with_text(page: Page) -> bool:
    """Whether the page is a picture with an invisible text layer: what a scanner's own OCR made of it."""
    try:
        pictures = sum(abs(pymupdf.Rect(info["bbox"])) for info in page.get_image_info())
        return pictures > SCAN_SHARE * abs(page.rect) and _is_invisible(page)
    except MemoryError:
        raise
    except Exception:  # see open_pdf; then it is judged by its text alone
        return False


def _is_invisible(page: Page) -> bool:
    """Whether most of the text is drawn without ink."""
    shown = hidden = 0
    for block in page.get_text("dict", flags=_WORD_FLAGS)["blocks"]:
        for line in block.get("lines", ()):
            for span in line["spans"]:
                length = len(span["text"].strip())
                if span["alpha"] and span["char_flags"] & (_FILLED | _STROKED):
                    shown += length
                else:
                    hidden += length
    return hidden > shown


def _grouped(words: list[_Word]) -> Iterator[list[_Word]]:
    """The words of each line. MuPDF ends a line at a wide gap; pieces close on one baseline are joined again."""
    group: list[_Word] = []
    for _, piece in itertools.groupby(words, key=lambda word: (word[5], word[6])):
        for word in piece:
            if group and not _continues(group[-1], word):
                yield group
                group = []
            group.append(word)
    if group:
        yield group


def _continues(last: _Word, word: _Word) -> bool:
    if last[5:7] == word[5:7]:
        return True
    height = last[3] - last[1]
    level = abs(last[1] - word[1]) < 0.2 * height and abs(last[3] - word[3]) < 0.2 * height
    return last[5] == word[5] and level and 0 <= word[0] - last[2] < CELL_GAP * height


def _clean(text: str) -> str:
    """Without control characters and lone surrogates, which are neither text nor storable, and without blanks."""
    if text.isprintable() and " " not in text:
        return text
    return "".join(c for c in text if (c.isprintable() and c != " ") or "\ue000" <= c <= "\uf8ff")


def _failure(what: str, error: Exception, path: Path | None = None) -> MemoryError | MediaError:
    """The error to raise for one of MuPDF's, whose message begins with a code and may have several lines.

    It may name the file by where it lies on this machine, which is nobody's business who reads the report.
    """
    said = str(error).strip() if path is None else str(error).strip().replace(str(path), path.name)
    first = (said.splitlines() or [type(error).__name__])[0][:200]
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(first):
        return MemoryError(first)
    return MediaError(f"{what} ({first})")
