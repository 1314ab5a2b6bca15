"""The pictures of a document: loaded from a retriever, cut and marked. What cannot be had becomes a sentence."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from PIL import Image, ImageDraw

from vrag.episode import Frame
from vrag.errors import MediaError, RetrieverError, VragError
from vrag.geometry import Box, Size, to_displayed, whole
from vrag.items import Item
from vrag.pages import PageImage, View, encode_jpeg, open_page, view_of
from vrag.report.model import Picture

log = logging.getLogger(__name__)

#: The colour that marks a region, and how far the rest of the page is dimmed.
ACCENT = (232, 93, 4)
_DIM, _DIM_SHARE = (120, 120, 130), 0.22
#: So many times in a row the service may fail before the rest is not asked for any more.
_FAILURES = 2
#: How clips are sampled where a frame of one is shown: as the agents do unless they are told otherwise.
_FPS, _MAX_FRAMES = 1.0, 32


class Pages(Protocol):
    """What is needed of a retriever (:class:`vrag.retriever.Retriever`)."""

    def image(self, item_id: str) -> bytes: ...

    def frames(self, item_id: str, fps: float, max_frames: int, max_pixels: int) -> list[Frame]: ...


@dataclass(frozen=True, slots=True)
class Drawn:
    """A picture as JPEG."""

    data: bytes = field(repr=False)
    size: Size


@dataclass(frozen=True, slots=True)
class Missing:
    """Why there is no picture."""

    reason: str


Pictures = dict[Picture, Drawn | Missing]


def load(wanted: Iterable[Picture], pages: Pages | None) -> Pictures:
    """Draw every picture; without ``pages``, or where they are gone, say so instead. Raises nothing of its own.

    Each page is loaded once. A service that is down is asked twice, not once for every page.
    """
    by_item: dict[tuple[str, bool], list[Picture]] = {}
    for picture in dict.fromkeys(wanted):
        by_item.setdefault((picture.item_id, picture.timestamp is not None), []).append(picture)
    out: Pictures = {}
    failures = 0
    reason = "Pictures were left out of this report."
    for (item_id, is_clip), pictures in by_item.items():
        if pages is None or failures >= _FAILURES:
            out.update((picture, Missing(reason)) for picture in pictures)
            continue
        try:
            drawn = _of_clip(pages, item_id, pictures) if is_clip else _of_page(pages, item_id, pictures)
            out.update(drawn)
            failures = 0
        except VragError as error:
            failures = failures + 1 if isinstance(error, RetrieverError) else 0
            reason = f"The picture cannot be shown: {error}"
            log.warning("left out of the report: %s", error)
            out.update((picture, Missing(reason)) for picture in pictures)
    return out


def _of_page(pages: Pages, item_id: str, pictures: list[Picture]) -> Pictures:
    page = open_page(pages.image(item_id), pictures[0].item)
    return {picture: _draw(page, picture) for picture in pictures}


def _of_clip(pages: Pages, item_id: str, pictures: list[Picture]) -> Pictures:
    frames = sampled_frames(pages, item_id, max(picture.max_pixels for picture in pictures))
    return {
        picture: _draw(nearest_frame(frames, picture.item, picture.timestamp or 0.0), picture) for picture in pictures
    }


def sampled_frames(pages: Pages, item_id: str, max_pixels: int) -> list[Frame]:
    """The frames of a clip. Raises MediaError, RetrieverError."""
    return pages.frames(item_id, _FPS, _MAX_FRAMES, max_pixels)


def nearest_frame(frames: Sequence[Frame], item: Item, seconds: float) -> PageImage:
    """The frame nearest to a moment. Raises MediaError."""
    frame = min(frames, key=lambda one: abs(one.seconds - seconds))
    # The size of a frame is its own, not that of the clip.
    return open_page(frame.image, item.model_copy(update={"width": None, "height": None}))


def _draw(page: PageImage, picture: Picture) -> Drawn | Missing:
    try:
        if picture.part == "region":
            view = view_of(page, picture.box, 1, picture.max_pixels)
        else:
            view = view_of(page, None, 1, picture.max_pixels)
            if picture.box is not None:
                return marked(view, picture.box)
        return Drawn(view.jpeg(), view.size)
    except (MediaError, ValueError) as error:  # damaged, or a box that is not on this page any more
        return Missing(f"The picture cannot be shown: {error}")


def marked(view: View, box: Box) -> Drawn:
    """The picture with ``box`` (page pixels) framed, the rest slightly dimmed."""
    with Image.open(io.BytesIO(view.jpeg())) as opened:
        picture = opened.convert("RGB")
    inside = to_displayed(box, view.size, view.box).clamped(whole(view.size))
    left, top = int(inside.x1), int(inside.y1)
    corners = left, top, max(left + 1, round(inside.x2)), max(top + 1, round(inside.y2))
    bright = picture.crop(corners)
    picture = Image.blend(picture, Image.new("RGB", picture.size, _DIM), _DIM_SHARE)
    picture.paste(bright, corners[:2])
    width = max(2, min(picture.size) // 160)
    outline = (left - width, top - width, corners[2] + width - 1, corners[3] + width - 1)
    ImageDraw.Draw(picture).rectangle(outline, outline=ACCENT, width=width)
    return Drawn(encode_jpeg(picture), picture.size)
