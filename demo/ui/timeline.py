"""The steps of a run as a person reads them: thoughts, searches, pages with the box drawn, what was noted on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import streamlit as st

from demo.ui import pictures
from demo.ui.pictures import Source
from demo.ui.text import literal, plain, row
from vrag.events import (
    Answered,
    CropRequested,
    Event,
    Failed,
    Memorized,
    Note,
    SearchResults,
    SearchStarted,
    Thought,
    Usage,
    ViewShown,
)

__all__ = ["Cost", "cost", "draw", "lines", "plain", "steps"]


@dataclass(frozen=True)
class Cost:
    """What a run has cost so far."""

    calls: int = 0
    tokens: int = 0
    images: int = 0
    pixels: int = 0

    def words(self, seconds: float) -> str:
        parts = [
            f"{seconds:.0f} s",
            f"{self.calls} model call{'' if self.calls == 1 else 's'}",
            f"{self.tokens:,} tokens",
            f"{self.pixels / 1e6:.1f} MP looked at",
        ]
        return " · ".join(parts)


def cost(events: Sequence[Event]) -> Cost:
    usages = [event for event in events if isinstance(event, Usage)]
    return Cost(
        calls=len(usages),
        tokens=sum(usage.prompt_tokens + usage.completion_tokens for usage in usages),
        images=sum(usage.images for usage in usages),
        pixels=sum(usage.image_pixels for usage in usages),
    )


def steps(events: Sequence[Event]) -> Iterator[tuple[int, list[Event]]]:
    """The events that are drawn, by step; steps in which nothing is to be seen are left out."""
    drawn = (event for event in events if not isinstance(event, Usage | Answered | Failed))
    for step, group in groupby(drawn, key=lambda event: event.step):
        if body := [event for event in group if lines(event) or isinstance(event, ViewShown)]:
            yield step, body


def draw(events: Sequence[Event], source: Source, key: str) -> None:
    """All steps of a run; ``key`` tells the runs on one page apart."""
    for step, body in steps(events):
        views = [event for event in body if isinstance(event, ViewShown)]
        text = f'<div class="v-step">Step {step}</div>' if step else ""
        text += "".join(lines(event) for event in body)
        with st.container(border=True, key=f"{key}-step-{step}"):
            if not views:
                st.html(text)
                continue
            left, right = st.columns([3, 2], gap="medium")
            with left:
                st.html(text)
                for view in views:
                    draw_crop(view, source)
            with right:
                for view in views:
                    draw_page(view, source)


def lines(event: Event) -> str:
    """What an event says in words, as HTML; empty for events that have no words."""
    if isinstance(event, Thought):
        return row("lightbulb", literal(event.text), "v-thought")
    if isinstance(event, SearchStarted):
        return row("search", f'<b>Search</b> <span class="v-query">{literal(event.query)}</span>')
    if isinstance(event, SearchResults):
        return row("description", _results(event))
    if isinstance(event, CropRequested):
        box = ", ".join(f"{side:.0f}" for side in event.page_box.as_list())
        return row("crop_free", f'<b>Look closer</b> at the marked region <span class="v-faint">[{box}]</span>')
    if isinstance(event, Memorized):
        return row("account_tree", f"<b>Remember</b> {literal(event.summary)}")
    if isinstance(event, Note):
        return row("info", literal(event.text), "v-note")
    return ""


def _results(event: SearchResults) -> str:
    if not event.hits:
        return "Nothing was found."
    found = []
    for hit in event.hits:
        shown = hit.item.id in event.shown
        mark = ' <span class="v-badge">looked at</span>' if shown else ""
        passage = (
            f'<blockquote class="v-quote">{literal(hit.item.content, 600)}</blockquote>'
            if shown and hit.item.content
            else ""
        )
        found.append(f"<li>{literal(hit.item.label, 200)}{mark}{passage}</li>")
    return f'<ol class="v-hits">{"".join(found)}</ol>'


def draw_page(event: ViewShown, source: Source) -> None:
    """The page; for a crop with the region marked on it."""
    item = event.view.item
    if event.source == "crop":
        pictures.show(source, item, event.view.box, "page", f"{item.label}: where it looks closer")
    else:
        pictures.show(source, item)


def draw_crop(event: ViewShown, source: Source) -> None:
    """The region of a crop, as the model sees it."""
    if event.source == "crop":
        width, height = event.view.size
        pictures.show(source, event.view.item, event.view.box, "region", f"The region, {width} × {height} pixels")
