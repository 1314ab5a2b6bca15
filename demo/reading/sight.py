"""From the bytes of an image to a :class:`Sheet`: decoding within limits, OCR, the colours around the text; cached by content."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from demo.reading.cells import split_cells
from demo.reading.colours import background, bars, ink, swatch
from demo.reading.layout import Line, Sheet
from demo.reading.values import is_number
from vrag.geometry import Box
from vrag.pages import decode_rgb

logger = logging.getLogger(__name__)

#: Images whose longer side is below this are enlarged before OCR (by at most MAX_ENLARGEMENT), so that the small print of
#: a page shown at 0.4 megapixels is found at all.
READING_SIDE = 1280
MAX_ENLARGEMENT = 2.5
#: Single letters and signs: the marks of charts and lists rather than text.
_STRAY = re.compile(r"[A-Za-z°•·.,:;'`|/\\_~^*«»<>○●◦-]")
#: What one image may have; above it the request is refused before anything is decoded.
MAX_IMAGE_BYTES = 32 * 2**20
MAX_IMAGE_PIXELS = 40_000_000


class Sight:
    """Reads images, each content once. Safe to use from several threads; at most ``capacity`` sheets are kept.

    ``cache_dir`` keeps the OCR of images on disk as well, so that it outlives the process.
    """

    def __init__(self, cache_dir: Path | None = None, capacity: int = 512) -> None:
        self._capacity = capacity
        self._cache_dir = cache_dir
        self._sheets: OrderedDict[bytes, Sheet] = OrderedDict()
        self._guard = threading.Lock()
        self._busy: dict[bytes, threading.Lock] = {}

    def read(self, data: bytes) -> Sheet:
        """The sheet of an encoded image. Raises MediaError for what cannot be decoded or is over the limits."""
        key = hashlib.sha256(data).digest()
        with self._guard:
            if (known := self._sheets.get(key)) is not None:
                self._sheets.move_to_end(key)
                return known
            turn = self._busy.setdefault(key, threading.Lock())
        with turn:  # two requests with the same image: the second waits for what the first reads
            with self._guard:
                if (known := self._sheets.get(key)) is not None:
                    return known
            try:
                image = decode_rgb(data, max_bytes=MAX_IMAGE_BYTES, max_pixels=MAX_IMAGE_PIXELS)
                sheet = look(image, self._reader())
                with self._guard:
                    self._sheets[key] = sheet
                    while len(self._sheets) > self._capacity:
                        self._sheets.popitem(last=False)
            finally:
                with self._guard:
                    self._busy.pop(key, None)
        return sheet

    def warm(self) -> None:
        """Load the recogniser, so that the first question does not wait for it."""
        picture = Image.new("RGB", (320, 96), "white")
        picture.paste((0, 0, 0), (40, 40, 200, 56))
        look(picture, self._reader())

    def _reader(self) -> Callable[[Image.Image], Sequence[tuple[str, Box]]]:
        from search_engine.ocr import OcrCache, read_lines

        read = read_lines if self._cache_dir is None else OcrCache(self._cache_dir).read_lines
        return lambda image: [(line.text, line.box) for line in read(image)]


def look(image: Image.Image, recognise: Callable[[Image.Image], Sequence[tuple[str, Box]]]) -> Sheet:
    """Read an RGB image: ``recognise`` gives (text, box) in the pixels of the picture that it is handed."""
    enlargement = min(MAX_ENLARGEMENT, READING_SIDE / max(image.size))
    picture = image
    if enlargement > 1:
        size = (round(image.width * enlargement), round(image.height * enlargement))
        picture = image.resize(size, Image.Resampling.LANCZOS)
    scale_x, scale_y = image.width / picture.width, image.height / picture.height
    pixels = np.asarray(image)
    paper = background(pixels)
    lines = []
    for whole_text, whole_box in recognise(picture):
        if _STRAY.fullmatch(whole_text.strip()):
            continue
        for text, box in split_cells(np.asarray(picture), whole_text, whole_box):
            box = Box(box.x1 * scale_x, box.y1 * scale_y, box.x2 * scale_x, box.y2 * scale_y)
            shapes = bars(pixels, box, paper) if is_number(text) else ()
            lines.append(Line(text, box, swatch(pixels, box, paper), shapes, ink(pixels, box, paper)))
    return Sheet(image.size, tuple(lines))
