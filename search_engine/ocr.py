"""Optical character recognition by RapidOCR (PP-OCR, English and Chinese, models in its wheel), once per picture.

One engine per process, made when first needed. :func:`read_lines` reads a picture; :class:`OcrCache` does the same but
keeps what it read in small JSON files, named by the content of the picture and all that the result depends on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import threading
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from search_engine.documents import Line
from search_engine.files import write_atomic
from vrag.errors import MediaError
from vrag.geometry import Box, whole

#: The detector sees pictures with their longer side scaled down to this; `scripts/bench ocr` measures what is read.
DETECTION_SIDE = 1280
#: Lines that the recogniser is less sure of than this are dropped.
MIN_SCORE = 0.5
#: Sides above this are scaled down before anything else; a longer, thinner picture is read window by window instead.
MAX_SIDE = 2000
MAX_ASPECT = 2.5
#: The networks are too small to gain from more.
MAX_THREADS = 4

# How onnxruntime, OpenCV and C++ say it.
_OUT_OF_MEMORY = re.compile("bad_alloc|allocate|insufficient memory", re.IGNORECASE)

_lock = threading.Lock()
_threads: int | None = None


def limit_threads(count: int) -> None:
    """How many threads the engine of this process may use (half the cores by default, 4 at most).

    Has to be called before the first picture is read.
    """
    global _threads
    _threads = count


@cache
def fingerprint() -> str:
    """Everything beside the picture that the result depends on."""
    return f"rapidocr {version('rapidocr')} det {DETECTION_SIDE} side {MAX_SIDE} score {MIN_SCORE}"


def read_lines(image: Image.Image) -> tuple[Line, ...]:
    """The lines of text in a picture, top to bottom, boxes in its pixels. Raises MediaError when it cannot be read.

    May be called from several threads: the pictures are then read one after the other.
    """
    picture = image if image.mode == "RGB" else image.convert("RGB")
    if min(picture.size) < 4 or len(picture.getcolors(1) or ()) == 1:  # nothing can stand there
        return ()
    try:
        with _lock:
            return tuple(line for window in _windows(picture.size) for line in _read_window(picture, *window))
    except MemoryError:
        raise
    except Exception as error:  # the engine raises what its three libraries raise
        if _OUT_OF_MEMORY.search(str(error)):
            raise MemoryError(str(error)) from error
        raise MediaError(f"the picture cannot be read by OCR ({type(error).__name__}: {error})") from error


class OcrCache:
    """:func:`read_lines` with a memory on disk that outlives the process and is shared between processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read_lines(self, image: Image.Image) -> tuple[Line, ...]:
        """As :func:`read_lines`; the same pixels are never read twice."""
        picture = image if image.mode == "RGB" else image.convert("RGB")
        path = self._path(picture)
        lines = _load(path)
        if lines is None:
            lines = read_lines(picture)
            rows = [[line.text, *(round(value, 1) for value in line.box.as_list())] for line in lines]
            data = json.dumps({"ocr": fingerprint(), "size": picture.size, "lines": rows}, ensure_ascii=False)
            write_atomic(path, data.encode(), self.folder)
        return lines

    def _path(self, picture: Image.Image) -> Path:
        digest = hashlib.sha256(f"{fingerprint()} {picture.size}".encode())
        digest.update(picture.tobytes())
        name = digest.hexdigest()
        return self.folder / name[:2] / f"{name}.json"


def _load(path: Path) -> tuple[Line, ...] | None:
    """What was read earlier; None where there is nothing, or nothing usable."""
    try:
        rows = json.loads(path.read_bytes())["lines"]
        return tuple(Line(str(text), Box(float(x1), float(y1), float(x2), float(y2))) for text, x1, y1, x2, y2 in rows)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _windows(size: tuple[int, int]) -> list[tuple[Box, Box]]:
    """Windows to read one by one, each with the part of it whose lines count; one window for pictures of usual shape.

    Windows overlap by a tenth, and a line counts where its middle lies, so that no line is cut and none is read twice.
    """
    width, height = size
    short, long = sorted(size)
    if long <= MAX_ASPECT * short or long <= MAX_SIDE:
        return [(whole(size), whole(size))]
    step = max(int(1.5 * short), 640)
    overlap = step // 10
    starts = list(range(0, max(1, long - overlap), step))
    result = []
    for index, start in enumerate(starts):
        end = long if index == len(starts) - 1 else min(long, start + step + overlap)
        first = start + overlap / 2 if index else 0.0
        last = end - overlap / 2 if index < len(starts) - 1 else float(long)
        if width >= height:
            result.append((Box(start, 0, end, height), Box(first, 0, last, height)))
        else:
            result.append((Box(0, start, width, end), Box(0, first, width, last)))
    return result


def _read_window(picture: Image.Image, window: Box, counted: Box) -> list[Line]:
    part = picture
    if window != whole(picture.size):
        part = picture.crop((int(window.x1), int(window.y1), int(window.x2), int(window.y2)))
    result = _engine()(np.ascontiguousarray(np.asarray(part)[:, :, ::-1]))
    if result.txts is None or result.boxes is None:
        return []
    lines = []
    for text, corners in zip(result.txts, result.boxes, strict=True):
        x, y = corners[:, 0], corners[:, 1]
        box = Box(float(x.min()), float(y.min()), float(x.max()), float(y.max())).clamped(whole(part.size))
        box = Box(box.x1 + window.x1, box.y1 + window.y1, box.x2 + window.x1, box.y2 + window.y1)
        middle_x, middle_y = (box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2
        inside = counted.x1 <= middle_x <= counted.x2 and counted.y1 <= middle_y <= counted.y2
        if text.strip() and box.area > 0 and inside:
            lines.append(Line(" ".join(text.split()), box))
    return lines


@cache
def _engine() -> Any:
    import cv2
    import rapidocr

    logging.getLogger("RapidOCR").setLevel(logging.ERROR)
    cores = os.cpu_count() or 1
    # The threads of onnxruntime wait for each other spinning: as many as cores cost twice the time once anything else runs.
    threads = max(1, min(_threads or cores // 2, MAX_THREADS, cores))
    cv2.setNumThreads(threads)
    return rapidocr.RapidOCR(
        params={
            "Global.log_level": "error",
            "Global.text_score": MIN_SCORE,
            "Global.max_side_len": MAX_SIDE,
            # Upside-down lines are not worth a third network on every page.
            "Global.use_cls": False,
            "Det.limit_type": "max",
            "Det.limit_side_len": DETECTION_SIDE,
            # One line at a time: a batch is padded to its longest line, which costs more than it saves.
            "Rec.rec_batch_num": 1,
            "EngineConfig.onnxruntime.intra_op_num_threads": threads,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )
