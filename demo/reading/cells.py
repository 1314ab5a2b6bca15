"""Takes a recognised line apart where the cells of a table were read as one: "√ √ √  95" or "Formal  Informal"."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from demo.reading.layout import Line
from demo.reading.words import has_han
from vrag.geometry import Box

#: A blank of this many line heights stands between cells; between words it is about a third of one. Chinese punctuation
#: brings wide blanks of its own.
GAP, HAN_GAP = 0.65, 1.8
_INK = 48


def split_cells(pixels: NDArray[np.uint8], text: str, box: Box) -> list[tuple[str, Box]]:
    """The parts of a line that wide blanks separate, with their boxes; the line itself where there are none.

    ``pixels`` is the image (height, width, 3), ``box`` in its pixels. Where the blanks cannot be told from the text's own
    spacing, nothing is split.
    """
    if " " not in text.strip() or box.width < 3 * box.height:
        return [(text, box)]
    gaps = blanks(pixels, box, HAN_GAP if has_han(text) else GAP)
    if not gaps:
        return [(text, box)]
    line = Line(text, box)
    spaces = [(at, line.part(at, at + 1)) for at, char in enumerate(text) if char == " "]
    cuts: list[tuple[int, float, float]] = []
    for left, right in gaps:
        middle = (left + right) / 2
        at, place = min(spaces, key=lambda space: abs((space[1].x1 + space[1].x2) / 2 - middle))
        # The recogniser writes a wide blank as one space, so positions drift by up to the width of the blanks.
        if abs((place.x1 + place.x2) / 2 - middle) > sum(b - a for a, b in gaps) + 0.5 * box.height:
            return [(text, box)]
        if cuts and at <= cuts[-1][0]:
            continue
        cuts.append((at, left, right))
    parts: list[tuple[str, Box]] = []
    start, x = 0, box.x1
    for at, left, right in [*cuts, (len(text), box.x2, box.x2)]:
        piece = text[start:at].strip()
        if piece and left > x:
            parts.append((piece, Box(x, box.y1, left, box.y2)))
        start, x = at, right
    return parts or [(text, box)]


def blanks(pixels: NDArray[np.uint8], box: Box, least: float) -> list[tuple[float, float]]:
    """The blanks of at least ``least`` line heights inside a line, left to right, as (x1, x2) in pixels."""
    height, width = pixels.shape[:2]
    x1, x2 = max(0, round(box.x1)), min(width, round(box.x2))
    # The middle of the line only: rules above and below it are no ink of its letters.
    y1, y2 = max(0, round(box.y1 + 0.15 * box.height)), min(height, round(box.y2 - 0.15 * box.height))
    patch = pixels[y1:y2, x1:x2].astype(np.int16)
    if patch.size == 0:
        return []
    paper = np.median(patch.reshape(-1, 3), axis=0)
    ink = (np.abs(patch - paper).max(axis=2) > _INK).any(axis=0)
    columns = np.flatnonzero(ink)
    if len(columns) < 2:
        return []
    steps = np.diff(columns)
    return [
        (float(x1 + columns[i] + 1), float(x1 + columns[i + 1])) for i in np.flatnonzero(steps > least * box.height)
    ]
