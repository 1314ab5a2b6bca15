"""Lays a crop back onto the page that it was cut from, so that a page is read sharp where it was looked at closely.

The reader knows the box that it asked for and sees the crop, but neither the page's own pixels nor the padding that was
added. What both pictures show tells the rest: lines of the same text fix the scale and the offset.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from demo.reading.layout import Line, Sheet
from demo.reading.words import normalise
from vrag.geometry import Box, Size, whole

#: Padding on each side of a crop where nothing tells better, as a share of the page's longer side: 56 pixels of a page at
#: 144 dpi.
USUAL_PADDING = 0.036
_SAME_TEXT = 0.8


@dataclass(frozen=True, slots=True)
class Fit:
    """Maps pixels of a crop to pixels of the sheet it was cut from: ``x * scale + dx``, ``y * scale + dy``."""

    scale: float
    dx: float
    dy: float

    def box(self, box: Box) -> Box:
        s = self.scale
        return Box(box.x1 * s + self.dx, box.y1 * s + self.dy, box.x2 * s + self.dx, box.y2 * s + self.dy)


def fit(page: Sheet, crop: Sheet, asked: Box) -> Fit:
    """Where a crop lies on its page; ``asked`` is the box that was asked for, in pixels of the page as displayed."""
    guess = _guess(page.size, crop.size, asked)
    area = guess.box(whole(crop.size))
    inside = [line for line in page.lines if _centre_in(line.box, area.padded(0.05 * max(page.size)))]
    pairs = _pairs(inside, crop.lines)
    if not pairs:
        return guess
    scale = guess.scale
    if len(pairs) >= 2:
        ratios = []
        for i, (a, b) in enumerate(pairs):
            for c, d in pairs[i + 1 :]:
                for axis in (0, 1):
                    apart = _centre(d)[axis] - _centre(b)[axis]
                    if abs(apart) > 0.15 * crop.size[axis]:
                        ratios.append((_centre(c)[axis] - _centre(a)[axis]) / apart)
        ratios = [ratio for ratio in ratios if 0.5 * scale < ratio < 2 * scale]
        scale = statistics.median(ratios) if ratios else scale
    dx = statistics.median(_centre(a)[0] - scale * _centre(b)[0] for a, b in pairs)
    dy = statistics.median(_centre(a)[1] - scale * _centre(b)[1] for a, b in pairs)
    return Fit(scale, dx, dy)


def merge(page: Sheet, crop: Sheet, asked: Box) -> tuple[Sheet, Box]:
    """The page with the crop's lines in place of its own, and the part of the page that the crop shows.

    Lines that the crop cuts off, or does not have, stay as the page has them.
    """
    place = fit(page, crop, asked)
    area = place.box(whole(crop.size)).clamped(whole(page.size))
    sharp = [replace(line, box=place.box(line.box)) for line in crop.lines]
    kept = []
    for line in page.lines:
        inside = area.intersection(line.box) >= 0.9 * line.box.area
        if not inside or not any(_shares(line.box, other.box) for other in sharp):
            kept.append(line)
    sharp = [line for line in sharp if not any(_shares(line.box, other.box) for other in kept)]
    return Sheet(page.size, (*kept, *sharp)), area


def _guess(page: Size, crop: Size, asked: Box) -> Fit:
    area = asked.padded(USUAL_PADDING * max(page)).clamped(whole(page))
    scale = max(1e-6, (area.width / crop[0] * area.height / crop[1]) ** 0.5)
    return Fit(scale, area.x1, area.y1)


def _pairs(lines: Sequence[Line], others: Sequence[Line]) -> list[tuple[Box, Box]]:
    """Boxes of lines that have the same text in both pictures and in neither a double."""
    left, right = _by_text(lines), _by_text(others)
    found = []
    for text, box in left.items():
        if box is None:
            continue
        if text in right:
            match = right[text]
        elif len(text) >= 6:
            close = [
                b for t, b in right.items() if len(t) >= 6 and SequenceMatcher(None, text, t).ratio() >= _SAME_TEXT
            ]
            match = close[0] if len(close) == 1 else None
        else:
            match = None
        if match is not None:
            found.append((box, match))
    return found


def _by_text(lines: Sequence[Line]) -> dict[str, Box | None]:
    found: dict[str, Box | None] = {}
    for line in lines:
        text = normalise(line.text).replace(" ", "")
        found[text] = None if text in found else line.box
    return found


def _shares(a: Box, b: Box) -> bool:
    return a.intersection(b) >= 0.4 * max(1e-9, min(a.area, b.area))


def _centre(box: Box) -> tuple[float, float]:
    return (box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2


def _centre_in(box: Box, area: Box) -> bool:
    x, y = _centre(box)
    return area.x1 <= x <= area.x2 and area.y1 <= y <= area.y2
