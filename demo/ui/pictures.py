"""Pictures of a run for the web page: a page with a box drawn on it, and the part inside the box."""

from __future__ import annotations

import io
from typing import Literal

import streamlit as st
from PIL import Image, ImageDraw

from vrag.errors import VragError
from vrag.geometry import Box, whole
from vrag.items import Item
from vrag.retriever import HttpRetriever
from vrag.settings import SearchSettings

#: Width in pixels at which pages are drawn; sharp on a projector, light on the wire.
PAGE_WIDTH = 1100
ACCENT = (232, 93, 4)


@st.cache_resource(show_spinner=False)
def retriever(search_url: str) -> HttpRetriever:
    return HttpRetriever(SearchSettings(search_url=search_url))


@st.cache_data(show_spinner=False, max_entries=64)
def page_bytes(search_url: str, item_id: str) -> bytes:
    """The stored image of a page; raises :class:`VragError` where the service has none."""
    return retriever(search_url).image(item_id)


@st.cache_data(show_spinner=False, max_entries=256)
def drawn(
    search_url: str, item_id: str, size: tuple[int, int], box: Box | None, part: Literal["page", "region"]
) -> bytes:
    """JPEG of the whole page with ``box`` marked on it, or of the region inside the box. ``size`` are the page pixels."""
    with Image.open(io.BytesIO(page_bytes(search_url, item_id))) as opened:
        picture = opened.convert("RGB")
    scale = picture.width / size[0], picture.height / size[1]
    marked = box and Box(box.x1 * scale[0], box.y1 * scale[1], box.x2 * scale[0], box.y2 * scale[1])
    if marked and part == "region":
        region = marked.clamped(whole(picture.size))
        corners = (
            int(region.x1),
            int(region.y1),
            max(int(region.x1) + 1, int(region.x2)),
            max(int(region.y1) + 1, int(region.y2)),
        )
        picture = picture.crop(corners)
    if picture.width > PAGE_WIDTH:
        factor = PAGE_WIDTH / picture.width
        picture = picture.resize((PAGE_WIDTH, max(1, round(picture.height * factor))), Image.Resampling.LANCZOS)
        marked = marked and Box(marked.x1 * factor, marked.y1 * factor, marked.x2 * factor, marked.y2 * factor)
    if marked and part == "page":
        mark(picture, marked)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=88)
    return out.getvalue()


def mark(picture: Image.Image, box: Box) -> None:
    """Draw a box so that it is seen from the back of a room, with the rest of the page slightly dimmed."""
    inside = box.clamped(whole(picture.size))
    corners = (
        int(inside.x1),
        int(inside.y1),
        max(int(inside.x1) + 1, int(inside.x2)),
        max(int(inside.y1) + 1, int(inside.y2)),
    )
    bright = picture.crop(corners)
    picture.paste(Image.blend(picture, Image.new("RGB", picture.size, (120, 120, 130)), 0.28))
    picture.paste(bright, corners[:2])
    ImageDraw.Draw(picture).rectangle(corners, outline=ACCENT, width=max(3, picture.width // 260))


def show(
    search_url: str, item: Item, box: Box | None = None, part: Literal["page", "region"] = "page", caption: str = ""
) -> None:
    """Draw a picture on the page, or say in words why it cannot be had."""
    try:
        size = (item.width or 1, item.height or 1)
        if item.width is None or item.height is None:
            with Image.open(io.BytesIO(page_bytes(search_url, item.id))) as opened:
                size = opened.size
        st.image(drawn(search_url, item.id, size, box, part), caption=caption or item.label, width="stretch")
    except (VragError, OSError) as error:
        st.warning(f"The picture of {item.label} cannot be shown: {error}")
