"""Which text of a PDF page to believe: its text layer, OCR, or both.

A text layer is exact where there is one and costs nothing. It is missing on scans, incomplete where text stands in
pictures, and wrong where a font has no usable encoding or a scanner's own OCR failed. OCR is right nearly everywhere
but costs about a second. So:

* no layer -> OCR, if there is any ink;
* a layer that looks wrong (:func:`doubt`) -> OCR, and the one that holds up is kept (:func:`preferred`);
* a layer, and what looks like writing outside of it (:func:`writing_outside`) -> the layer, and OCR of the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from search_engine.documents import Line, PageText
from vrag.geometry import Box

Reader = Callable[[Image.Image], tuple[Line, ...]]

#: Share of the page covered with writing-like patterns outside the layer, from which on it is read by OCR as well.
OUTSIDE_SHARE = 0.01
#: Share of unreadable characters above which a layer is in doubt.
UNREADABLE_SHARE = 0.05
#: Share of vowels below which Latin letters are in doubt, if there are some; in the languages of Europe it is 0.35 to 0.5.
VOWEL_SHARE = 0.25
FEWEST_LETTERS = 40
#: A layer in doubt is kept when this share of its words is in what OCR reads.
AGREEMENT = 0.5

# The picture is analysed at about this many pixels, in square tiles.
_ANALYSED_PIXELS = 500_000
_TILE = 16
# A tile looks like writing when this share of its pixels differs this much from its neighbours in both directions.
_EDGE, _EDGE_SHARE = 40, 0.06

# A word, or a character of a script that is written without blanks.
_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff]|(?:(?![\u3040-\u30ff\u3400-\u9fff])[^\\W\\d_])+")
_LATIN_WORD = re.compile(r"[a-z]{4,}")
_VOWEL = re.compile(r"[aeiouy]")
# Scripts that the OCR models cannot read; a layer in one of them is believed.
_UNREAD_SCRIPT = re.compile("[\u0370-\u1fff]")


def page_text(image: Image.Image, layer: Sequence[Line], hidden: bool, read: Reader | None) -> PageText:
    """The text of a page whose picture is ``image`` and whose text layer is ``layer``.

    ``hidden``: the layer is invisible, so it is somebody else's OCR. ``read`` is the OCR, None to do without.
    """
    if read is None:
        return PageText(tuple(layer), "layer" if layer else "none")
    if not layer:
        lines = read(image)
        return PageText(lines, "ocr" if lines else "none")
    if hidden or doubt(layer):
        return preferred(tuple(layer), read(image))
    if writing_outside(image, [line.box for line in layer]) < OUTSIDE_SHARE:
        return PageText(tuple(layer), "layer")
    extra = read(without(image, layer))
    return PageText((*layer, *extra), "layer+ocr" if extra else "layer")


def doubt(layer: Sequence[Line]) -> bool:
    """Whether the text of a layer looks wrong: characters that are none, or words that no language has."""
    text = "".join(line.text for line in layer).replace(" ", "")
    unreadable = sum(c == "\ufffd" or "\ue000" <= c <= "\uf8ff" for c in text)
    if unreadable > UNREADABLE_SHARE * len(text):
        return True
    letters = "".join(word for line in layer for word in _LATIN_WORD.findall(line.text.lower()))
    return len(letters) >= FEWEST_LETTERS and len(_VOWEL.findall(letters)) < VOWEL_SHARE * len(letters)


def preferred(layer: tuple[Line, ...], found: tuple[Line, ...]) -> PageText:
    """Of a layer in doubt and what OCR found, the one to keep."""
    said, read = _words(layer), _words(found)
    confirmed = sum(word in read for word in said) >= AGREEMENT * len(said)
    foreign = _UNREAD_SCRIPT.search("".join(said)) is not None
    if not read or (said and (confirmed or foreign)):
        return PageText(layer, "layer")
    return PageText(found, "ocr")


def writing_outside(image: Image.Image, boxes: Sequence[Box]) -> float:
    """The share of the page (0 to 1) that looks like writing and is outside of ``boxes`` (pixels of ``image``).

    Writing has edges in both directions close together; rules, bars and shades have not. Photographs often look like it.
    """
    factor = max(1, round((image.width * image.height / _ANALYSED_PIXELS) ** 0.5))
    grey: NDArray[np.int16] = np.asarray(image.convert("L").reduce(factor)).astype(np.int16)
    across = np.abs(np.diff(grey, axis=1))[:-1] > _EDGE
    down = np.abs(np.diff(grey, axis=0))[:, :-1] > _EDGE
    rows, columns = across.shape[0] // _TILE, across.shape[1] // _TILE
    if not rows or not columns:
        return 1.0 if across.any() and not boxes else 0.0

    def share(edges: NDArray[np.bool_]) -> NDArray[np.float64]:
        tiles = edges[: rows * _TILE, : columns * _TILE].reshape(rows, _TILE, columns, _TILE)
        means: NDArray[np.float64] = tiles.mean(axis=(1, 3))
        return means

    writing = (share(across) > _EDGE_SHARE) & (share(down) > _EDGE_SHARE)
    side = factor * _TILE
    for box in boxes:
        top, left = max(0, int(box.y1 / side - 0.5)), max(0, int(box.x1 / side - 0.5))
        writing[top : int(box.y2 / side + 0.5) + 1, left : int(box.x2 / side + 0.5) + 1] = False
    return float(writing.mean())


def without(image: Image.Image, lines: Sequence[Line]) -> Image.Image:
    """The picture with ``lines`` painted over in the colour around each, so that OCR sees only the rest."""
    picture = image.copy()
    draw = ImageDraw.Draw(picture)
    for line in lines:
        for box in line.words or (line.box,):
            x1, y1 = max(0, int(box.x1) - 1), max(0, int(box.y1) - 1)
            x2, y2 = min(image.width - 1, int(box.x2) + 1), min(image.height - 1, int(box.y2) + 1)
            corners = [image.getpixel(point) for point in ((x1, y1), (x2, y1), (x1, y2), (x2, y2))]
            draw.rectangle((x1, y1, x2, y2), fill=tuple(sorted(values)[1] for values in zip(*corners, strict=True)))
    return picture


def _words(lines: Sequence[Line]) -> set[str]:
    return {word for line in lines for word in _WORD.findall(line.text.lower())}
