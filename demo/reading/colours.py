"""The colours around a line of text: the mark of a legend's entry, and the bar or slice that a number belongs to.

A chart says which series a number is of by colour alone. All functions take the image as an array (height, width, 3) of
8-bit RGB and a box in its pixels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from demo.reading.layout import Colour
from vrag.geometry import Box

Pixels = NDArray[np.uint8]

#: Colours closer than this (Euclidean, 8-bit RGB) count as the same: JPEG and scaling blur them by about half of it.
SAME = 36.0
#: How far apart the channels of a colour are that is not grey.
VIVID = 45
#: Where the end of a bar is looked for left of its number: from, to, in heights of the number.
LEFT_OF = ((0.15, 1.2), (1.2, 2.4), (2.4, 3.6))


def distance(a: Colour, b: Colour) -> float:
    return float(np.linalg.norm(np.subtract(a, b, dtype=np.float64)))


def dominant(pixels: Pixels, box: Box, apart_from: tuple[Colour, ...] = (), share: float = 0.3) -> Colour | None:
    """The commonest colour inside ``box`` that is none of ``apart_from``; None if it takes less than ``share`` of the box."""
    height, width = pixels.shape[:2]
    x1, x2 = max(0, round(box.x1)), min(width, round(box.x2))
    y1, y2 = max(0, round(box.y1)), min(height, round(box.y2))
    patch = pixels[y1:y2, x1:x2].reshape(-1, 3)
    count = len(patch)
    if count == 0:
        return None
    if count > 4096:
        patch = patch[:: count // 4096 + 1]
        count = len(patch)
    for other in apart_from:
        patch = patch[np.linalg.norm(patch.astype(np.float32) - np.array(other, np.float32), axis=1) > SAME]
    if len(patch) == 0:
        return None
    keys = (patch >> 5).astype(np.int32) @ np.array([64, 8, 1], np.int32)
    best = int(np.bincount(keys).argmax())
    middle = np.median(patch[keys == best], axis=0)
    near = np.linalg.norm(patch.astype(np.float32) - middle.astype(np.float32), axis=1) <= SAME
    if near.sum() < share * count:
        return None
    r, g, b = (int(value) for value in np.median(patch[near], axis=0))
    return (r, g, b)


def vivid(pixels: Pixels, box: Box, apart_from: tuple[Colour, ...], share: float = 0.08) -> Colour | None:
    """The strongest colour inside ``box``, without the blur of its edges; None where there is next to none but grey.

    Nothing where one of ``apart_from`` is as strong: then the patch is of that colour, or an edge of it.
    """
    height, width = pixels.shape[:2]
    x1, x2 = max(0, round(box.x1)), min(width, round(box.x2))
    y1, y2 = max(0, round(box.y1)), min(height, round(box.y2))
    patch = pixels[y1:y2, x1:x2].reshape(-1, 3)
    if not len(patch):
        return None
    strength = patch.max(axis=1).astype(np.int16) - patch.min(axis=1)
    if (strength >= VIVID).mean() < share:
        return None
    strongest = patch[strength >= max(VIVID, 0.75 * float(strength.max()))]
    r, g, b = (int(value) for value in np.median(strongest, axis=0))
    return None if any(max(other) - min(other) >= VIVID for other in apart_from) else (r, g, b)


def background(pixels: Pixels) -> Colour:
    """The commonest colour of the whole image."""
    height, width = pixels.shape[:2]
    return dominant(pixels, Box(0, 0, width, height), share=0.0) or (255, 255, 255)


def swatch(pixels: Pixels, box: Box, paper: Colour) -> Colour | None:
    """The colour of the small mark left of a legend's text, if there is one.

    What reaches further left, up or down than a mark would is a bar, a rule or a panel, not a mark.
    """
    inside = _mark_inside(pixels, box, paper)
    if inside is not None:
        return inside
    h = box.height
    mark = Box(box.x1 - 1.8 * h, box.y1 + 0.1 * h, box.x1 - 0.1 * h, box.y2 - 0.1 * h)
    own = dominant(pixels, box, share=0.3)
    papers = (paper,) if own is None or distance(own, paper) <= SAME else (paper, own)
    colour = vivid(pixels, mark, papers) or dominant(pixels, mark, papers, share=0.08)
    if colour is None or distance(colour, paper) < 2 * SAME:
        return None
    beyond = (
        Box(box.x1 - 5 * h, box.y1, box.x1 - 3.2 * h, box.y2),
        Box(mark.x1, box.y1 - 0.9 * h, mark.x2, box.y1 - 0.4 * h),
        Box(mark.x1, box.y2 + 0.4 * h, mark.x2, box.y2 + 0.9 * h),
    )
    reaches = [dominant(pixels, place, papers, share=0.08 if index else 0.5) for index, place in enumerate(beyond)]
    if reaches[0] is not None and distance(reaches[0], colour) <= SAME:
        return None
    # A legend's entries may stand one under the other; a rule passes through both sides.
    return None if all(other is not None and distance(other, colour) <= SAME for other in reaches[1:]) else colour


def _mark_inside(pixels: Pixels, box: Box, paper: Colour) -> Colour | None:
    """The mark where the recogniser took it into the text's box: a solid patch at the left, of another colour than the letters."""
    h = box.height
    if box.width < 2 * h:
        return None
    own = dominant(pixels, box, share=0.3)
    papers = (paper,) if own is None else (paper, own)
    letters = dominant(pixels, Box(box.x1 + 1.3 * h, box.y1, box.x2, box.y2), papers, share=0.03)
    if letters is None:
        return None
    place = Box(box.x1, box.y1 + 0.15 * h, box.x1 + 0.9 * h, box.y2 - 0.15 * h)
    colour = vivid(pixels, place, papers) or dominant(pixels, place, (*papers, letters), share=0.2)
    if colour is None or distance(colour, paper) < 2 * SAME:
        return None
    tint = ink(pixels, Box(box.x1 + 1.3 * h, box.y1, box.x2, box.y2), paper)
    return None if tint is not None and distance(colour, tint) <= 2 * SAME else colour


def ink(pixels: Pixels, box: Box, paper: Colour) -> Colour | None:
    """The colour of a text's letters, if it is a colour rather than black, grey or white: charts colour labels by series."""
    own = dominant(pixels, box, share=0.3)
    colour = dominant(pixels, box, (paper,) if own is None else (paper, own), share=0.04)
    return colour if colour is not None and max(colour) - min(colour) >= 70 else None


def bars(pixels: Pixels, box: Box, paper: Colour) -> tuple[Colour, ...]:
    """The colours of the shapes that a number stands in, beside or on, likeliest first."""
    h = max(1.0, box.height)
    around = [
        Box(box.x1, box.y1, box.x2, box.y2),
        *(Box(box.x1 - far * h, box.y1 + 0.2 * h, box.x1 - near * h, box.y2 - 0.2 * h) for near, far in LEFT_OF),
        Box(box.x1, box.y2 + 0.1 * h, box.x2, box.y2 + 0.9 * h),
        Box(box.x2 + 0.15 * h, box.y1 + 0.2 * h, box.x2 + 1.2 * h, box.y2 - 0.2 * h),
    ]
    found: list[Colour] = []
    for index, place in enumerate(around):
        colour = dominant(pixels, place, share=0.4)
        if colour is None or distance(colour, paper) <= SAME or any(distance(colour, other) <= SAME for other in found):
            continue
        found.append(colour)
        if index == 0:  # it stands inside a coloured shape: that is the one
            break
    return tuple(found)
