"""Pictures of a run for the web page: a page with a box drawn on it, and the part inside the box."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Literal

import streamlit as st
from PIL import Image, ImageDraw

from demo.ui import health
from demo.ui.text import literal, plain
from vrag.errors import MediaError, VragError
from vrag.geometry import Box, to_displayed, whole
from vrag.items import Item
from vrag.pages import decode_rgb, open_page, view_of
from vrag.retriever import HttpRetriever
from vrag.settings import SearchSettings, Settings
from vrag.vimrag_options import VimragOptions

#: Area at which pages are drawn; sharp on a projector, light on the wire.
MAX_PIXELS = 1_600_000
ACCENT = (232, 93, 4)

Part = Literal["page", "region"]


@dataclass(frozen=True)
class Source:
    """Where pictures come from. ``version`` is that of the index: with another one, an id may mean another page."""

    search_url: str
    version: str
    up: bool

    @classmethod
    def of(cls, settings: SearchSettings) -> Source:
        status = health.search(settings)
        return cls(settings.search_url, status.version, status.up)


@st.cache_resource(show_spinner=False)
def _retriever(search_url: str) -> HttpRetriever:
    """One client for all sessions: it may be used from several threads at once."""
    # A page that does not come at once is a page that is missing; the script must not hang on it.
    return HttpRetriever(Settings(search_url=search_url, search_retries=0, search_timeout=10))


@st.cache_data(show_spinner=False, max_entries=48)
def _stored(search_url: str, version: str, item_id: str) -> bytes:
    return _retriever(search_url).image(item_id)


@st.cache_data(show_spinner=False, max_entries=24)
def _frames(search_url: str, version: str, item_id: str) -> list[tuple[float, bytes]]:
    limits = VimragOptions  # the moments that a record names are among the frames that were sampled so
    found = _retriever(search_url).frames(item_id, limits.fps, limits.max_frames, limits.max_pixels_video)
    return [(frame.seconds, frame.image) for frame in found]


def frames(source: Source, item_id: str, timestamps: tuple[float, ...]) -> list[tuple[float, bytes]]:
    """Seconds and JPEG of the frames of a clip nearest to ``timestamps``; without any, its first.

    Raises VragError for a clip that cannot be had.
    """
    found = _frames(source.search_url, source.version, item_id)
    if not found:
        raise MediaError("the clip has no frames")
    return [min(found, key=lambda frame: abs(frame[0] - wanted)) for wanted in timestamps or (found[0][0],)]


@st.cache_data(show_spinner=False, max_entries=192)
def _drawn(
    search_url: str, version: str, item_id: str, size: tuple[int | None, int | None], box: Box | None, part: Part
) -> bytes:
    item = Item(id=item_id, kind="image", document=item_id, width=size[0], height=size[1])
    return draw(_stored(search_url, version, item_id), item, box, part)


def draw(data: bytes, item: Item, box: Box | None, part: Part) -> bytes:
    """The stored image of an item as JPEG: the whole page with ``box`` (page pixels) marked, or the region inside it.

    Raises MediaError for an image that cannot be used.
    """
    page = open_page(data, item)
    if part == "region":
        return view_of(page, box, 1, MAX_PIXELS).jpeg()
    view = view_of(page, None, 1, MAX_PIXELS)
    if box is None or box.covers(page.box):
        return view.jpeg()
    picture = decode_rgb(view.jpeg())
    mark(picture, to_displayed(box, picture.size, page.box))
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=88, subsampling=0)  # colours at full resolution: thin lines stay what they are
    return out.getvalue()


def mark(picture: Image.Image, box: Box) -> None:
    """Draw a box (pixels of ``picture``) so that it is seen from the back of a room; the rest is slightly dimmed."""
    inside = box.clamped(whole(picture.size))
    left, top = int(inside.x1), int(inside.y1)
    corners = left, top, max(left + 1, int(inside.x2)), max(top + 1, int(inside.y2))
    bright = picture.crop(corners)
    picture.paste(Image.blend(picture, Image.new("RGB", picture.size, (120, 120, 130)), 0.2))
    picture.paste(bright, (left, top))
    line = max(3, picture.width // 250)
    around = left - line, top - line, corners[2] + line - 1, corners[3] + line - 1  # the line covers no print
    ImageDraw.Draw(picture).rectangle(around, outline=ACCENT, width=line)


def show(source: Source, item: Item, box: Box | None = None, part: Part = "page", caption: str | None = None) -> None:
    """Draw an item: its picture, the passage where it is a text, or in words why it cannot be had."""
    caption = item.label if caption is None else caption
    if item.kind == "text":
        st.html(f'<blockquote class="v-quote">{literal(item.content or "", 1500)}</blockquote>')
        st.caption(plain(caption))
        return
    if not source.up:
        missing(caption, "The search service, which keeps the pictures, does not answer.")
        return
    try:
        picture = _drawn(source.search_url, source.version, item.id, (item.width, item.height), box, part)
    except (VragError, OSError, ValueError) as error:  # ValueError: a record may hold a box that is none
        missing(caption, f"The picture cannot be shown: {error}")
        return
    st.image(picture, caption=plain(caption), width="stretch")


def missing(caption: str, why: str) -> None:
    """What stands where a picture would be."""
    st.html(f'<div class="v-missing"><b>{literal(caption)}</b><br>{literal(why)}</div>')
