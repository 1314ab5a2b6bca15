"""Boxes on pages, sizes under a pixel budget, and the two-way map between what is displayed and the page.

Every view of a page is a *box on that page* shown at some size. A model names a region in the pixels of the image it was
shown; :func:`to_page` carries it to the page, so a crop of a crop is exact and nothing is ever mapped twice.

Conventions: sizes are ``(width, height)`` in pixels; boxes are ``x1, y1, x2, y2`` with the origin at the top left, the right
and bottom edges exclusive.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

Size = tuple[int, int]

#: The published area limits of one displayed image (VRAG-RL: 256 and 512 visual tokens of 28 x 28 pixels).
MIN_PIXELS = 256 * 28 * 28
MAX_PIXELS = 512 * 28 * 28
#: The published padding of a crop, in page pixels.
CROP_PADDING = 56


@dataclass(frozen=True, slots=True)
class Box:
    """An axis-aligned rectangle, in the pixels that the field holding it names (page pixels unless it says otherwise)."""

    x1: float
    y1: float
    x2: float
    y2: float

    @property
    def width(self) -> float:
        return self.x2 - self.x1

    @property
    def height(self) -> float:
        return self.y2 - self.y1

    @property
    def area(self) -> float:
        return max(0.0, self.width) * max(0.0, self.height)

    def padded(self, padding: float) -> Box:
        return Box(self.x1 - padding, self.y1 - padding, self.x2 + padding, self.y2 + padding)

    def clamped(self, bounds: Box) -> Box:
        """The part inside ``bounds``; a box wholly outside collapses onto the nearest edge (area 0)."""
        return Box(
            min(max(self.x1, bounds.x1), bounds.x2),
            min(max(self.y1, bounds.y1), bounds.y2),
            min(max(self.x2, bounds.x1), bounds.x2),
            min(max(self.y2, bounds.y1), bounds.y2),
        )

    def intersection(self, other: Box) -> float:
        """Area shared with ``other``, in square pixels."""
        width = min(self.x2, other.x2) - max(self.x1, other.x1)
        height = min(self.y2, other.y2) - max(self.y1, other.y1)
        return max(0.0, width) * max(0.0, height)

    def covers(self, other: Box, share: float = 0.99) -> bool:
        """Whether at least ``share`` of ``other`` lies inside this box."""
        return other.area > 0 and self.intersection(other) >= share * other.area

    def as_list(self) -> list[float]:
        return [self.x1, self.y1, self.x2, self.y2]


def whole(size: Size) -> Box:
    """The box of a whole image of ``size``."""
    return Box(0.0, 0.0, float(size[0]), float(size[1]))


def fit_area(size: tuple[float, float], min_pixels: int, max_pixels: int) -> Size:
    """The size, aspect kept, whose area lies between the limits: ``scale = sqrt(limit / area)``, both sides truncated.

    The published rule (VRAG-RL, ``process_image``). The result never exceeds ``max_pixels`` and no side is ever 0; an
    area below ``min_pixels`` is scaled up to it (less the truncation). A very long, thin image keeps its one-pixel side,
    and its long side is cut so that the area still fits.
    """
    width, height = size
    if not (width > 0 and height > 0 and math.isfinite(width) and math.isfinite(height)):
        raise ValueError(f"a size must be positive and finite, not {size}")
    area = width * height
    scale = 1.0
    if area > max_pixels:
        scale = math.sqrt(max_pixels / area)
    elif area < min_pixels:
        scale = math.sqrt(min_pixels / area)
    out_width = max(1, int(width * scale))
    out_height = max(1, int(height * scale))
    if out_width * out_height > max_pixels:
        if out_width >= out_height:
            out_width = max(1, max_pixels // out_height)
        else:
            out_height = max(1, max_pixels // out_width)
    return out_width, out_height


def to_page(displayed: Box, displayed_size: Size, view: Box) -> Box:
    """Carry a box from the pixels of a displayed image to page pixels; ``view`` is the page box that the image shows.

    VRAG-RL eq. 2, for any view: each coordinate is multiplied by ``view side / displayed side`` and shifted by the view's
    origin.
    """
    scale_x = view.width / displayed_size[0]
    scale_y = view.height / displayed_size[1]
    return Box(
        view.x1 + displayed.x1 * scale_x,
        view.y1 + displayed.y1 * scale_y,
        view.x1 + displayed.x2 * scale_x,
        view.y1 + displayed.y2 * scale_y,
    )


def to_displayed(page: Box, displayed_size: Size, view: Box) -> Box:
    """The inverse of :func:`to_page`."""
    scale_x = displayed_size[0] / view.width
    scale_y = displayed_size[1] / view.height
    return Box(
        (page.x1 - view.x1) * scale_x,
        (page.y1 - view.y1) * scale_y,
        (page.x2 - view.x1) * scale_x,
        (page.y2 - view.y1) * scale_y,
    )
