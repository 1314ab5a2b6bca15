"""The steps of a run as a person reads them: thoughts, searches, pages with the box drawn, the answer with its sources."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import streamlit as st

from demo.ui import pictures
from vrag.events import (
    Answered,
    CropRequested,
    Delta,
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


def plain(text: str) -> str:
    """Model text as literal text: nothing in it is read as Markdown, HTML or a formula."""
    for mark in "\\`*_{}[]<>()#+-.!|~$:":
        text = text.replace(mark, "\\" + mark)
    return text.replace("\n", "  \n")


def finished_events(events: Sequence[Event]) -> list[Event]:
    """Everything but the streamed pieces of replies."""
    return [event for event in events if not isinstance(event, Delta)]


def streaming_text(events: Sequence[Event]) -> str:
    """The reply that is being written right now: the deltas since the last finished event."""
    pieces: list[str] = []
    for event in reversed(events):
        if not isinstance(event, Delta):
            break
        pieces.append(event.text)
    return "".join(reversed(pieces))


def draw(events: Sequence[Event], search_url: str, key: str) -> None:
    """All steps of a run; ``key`` tells the widgets of several runs on one page apart."""
    steps = groupby(finished_events(events), key=lambda event: event.step)
    for step, group in steps:
        body = [event for event in group if not isinstance(event, Usage | Answered | Failed)]
        if not body:
            continue
        with st.container(border=True):
            if step:
                st.caption(f"Step {step}")
            for number, event in enumerate(body):
                draw_event(event, search_url, f"{key}-{step}-{number}")


def draw_event(event: Event, search_url: str, key: str) -> None:
    if isinstance(event, Thought):
        st.markdown(f":material/lightbulb: {plain(event.text)}")
    elif isinstance(event, SearchStarted):
        st.markdown(f":material/search: **Search** :blue-background[{plain(event.query)}]")
    elif isinstance(event, SearchResults):
        draw_results(event)
    elif isinstance(event, CropRequested):
        st.markdown(":material/crop_free: **Look closer** at the marked region")
    elif isinstance(event, ViewShown):
        draw_view(event, search_url)
    elif isinstance(event, Memorized):
        st.markdown(f":material/account_tree: **Remember** {plain(event.summary)}")
    elif isinstance(event, Note):
        st.markdown(f":material/info: :gray[{plain(event.text)}]")


def draw_results(event: SearchResults) -> None:
    if not event.hits:
        st.caption("Nothing was found.")
        return
    rows = []
    for rank, hit in enumerate(event.hits, 1):
        shown = " :green-badge[looked at]" if hit.item.id in event.shown else ""
        rows.append(f"{rank}. {plain(hit.item.label)}{shown}")
    st.markdown("\n".join(rows))


def draw_view(event: ViewShown, search_url: str) -> None:
    view = event.view
    size = f"{view.size[0]} x {view.size[1]} px"
    if event.source == "crop":
        left, right = st.columns([2, 3])
        with left:
            pictures.show(search_url, view.item, view.box, "page", f"{view.item.label}: the region")
        with right:
            pictures.show(search_url, view.item, view.box, "region", f"As the model sees it, {size}")
    else:
        pictures.show(search_url, view.item, caption=f"{view.item.label}, shown to the model at {size}")


def draw_end(end: Answered | Failed, search_url: str, key: str) -> None:
    """The answer with its sources, or what went wrong and what to do about it."""
    if isinstance(end, Failed):
        st.error(end.text, icon=":material/error:")
        return
    with st.container(border=True):
        st.markdown("##### :material/check_circle: Answer")
        st.markdown(plain(end.text))
        if end.reason in ("forced_answer", "fallback"):
            st.caption("The step limit was reached; this is what the model said when asked to answer at once.")
        draw_citations(end, search_url, key)


def draw_citations(end: Answered, search_url: str, key: str) -> None:
    if not end.citations:
        st.caption("The answer cites no page.")
        return
    labels = [
        f"{number}. {citation.item.label}" + (" (region)" if citation.box else "")
        for number, citation in enumerate(end.citations, 1)
    ]
    chosen = st.pills("Sources", labels, default=labels[0], key=f"{key}-source")
    if chosen is None:
        return
    citation = end.citations[labels.index(chosen)]
    if citation.box is not None:
        pictures.show(search_url, citation.item, citation.box, "region", "The region it was read from")
    pictures.show(search_url, citation.item, citation.box, "page")


def totals(events: Sequence[Event]) -> dict[str, float]:
    """What a run has cost so far."""
    usages = [event for event in events if isinstance(event, Usage)]
    return {
        "calls": len(usages),
        "tokens": sum(usage.prompt_tokens + usage.completion_tokens for usage in usages),
        "pixels": sum(usage.image_pixels for usage in usages),
        "seconds": sum(usage.seconds for usage in usages),
    }
