"""A run on the page, while it goes on and afterwards: the stage on top, the steps below.

The stage has two halves of constant height, so that nothing jumps when the answer comes: on the left what the agent is
doing or its answer with the sources, on the right the page that it looks at or the one that it cites.
"""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from demo.ui import pictures, timeline
from demo.ui.live import Snapshot
from demo.ui.pictures import Source
from demo.ui.text import literal, plain, row, untagged
from vrag.events import Answered, Citation, CropRequested, Event, Failed, SearchResults, SearchStarted, ViewShown

#: Of a reply that is being written: its end.
TAIL_CHARS = 600
ENDS = {
    "forced_answer": "The step limit was reached; this is what the model answered when it was asked to answer at once.",
    "fallback": "The step limit was reached; this is what the model said when it was asked for plain text.",
    "time": "The time for one question was up; this is what the model answered then.",
    "tokens": "The tokens for one question were used up; this is what the model answered then.",
}


def draw(run: Snapshot, source: Source, key: str, stop: Callable[[], None] | None = None) -> None:
    """Draw a run; ``stop`` is what the stop button does, ``key`` tells the runs on one page apart."""
    st.html(f'<h2 class="v-question">{literal(run.question, 1000)}</h2>')
    # A run that ended with nothing to see needs no room for it.
    bare = run.done and not isinstance(run.end, Answered) and last_view(run.events) is None
    with st.container(border=True, key=f"{key}-{'end' if bare else 'stage'}"):
        left, right = st.columns([1, 1], gap="medium")
        with left:
            cited = None
            if run.done:
                cited = _answer(run, source, key)
            else:
                _progress(run, key, stop)
            st.caption(timeline.cost(run.events).words(run.seconds))
        with right:
            _picture(run, source, cited)
    if run.events and any(timeline.steps(run.events)):
        st.html('<h3 class="v-section">Steps</h3>')
        timeline.draw(run.events, source, key)


def _progress(run: Snapshot, key: str, stop: Callable[[], None] | None) -> None:
    text = untagged(run.writing)[-TAIL_CHARS:]
    now = row("edit", literal(text)) if text else recent(run.events)
    st.html(
        f'<div class="v-doing"><span class="v-pulse"></span>{literal(doing(run))}</div>'
        f'<div class="v-now"><div>{now}</div></div>'
    )
    if stop is not None:
        st.button("Stop", key=f"{key}-stop", icon=":material/stop_circle:", disabled=run.stopping, on_click=stop)


def recent(events: tuple[Event, ...]) -> str:
    """The newest step in words, as HTML."""
    steps = list(timeline.steps(events))
    return "".join(timeline.lines(event) for event in steps[-1][1]) if steps else ""


def doing(run: Snapshot) -> str:
    """What the agent is at, in a few words."""
    if run.stopping:
        return "Stopping ..."
    if run.writing:
        return "Writing ..."
    for event in reversed(run.events):
        if isinstance(event, SearchStarted):
            return "Searching ..."
        if isinstance(event, SearchResults):
            return "Opening the page ..." if event.shown else "Thinking ..."
        if isinstance(event, CropRequested):
            return "Looking closer ..."
        if isinstance(event, ViewShown):
            return f"Reading {event.view.item.label} ..."
    return "Thinking ..."


def _answer(run: Snapshot, source: Source, key: str) -> Citation | None:
    """The end of the run in words; returns the citation that is to be seen."""
    end = run.end
    if end is None:
        st.html(row("content_cut", "The run was cut off before it ended. What it did until then is below.", "v-note"))
        return None
    if isinstance(end, Failed):
        icon, words = ("stop_circle", "Stopped") if end.reason == "stopped" else ("error", "No answer")
        st.html(
            f'<div class="v-doing v-failed"><span class="v-icon" translate="no">{icon}</span>{words}</div>'
            f'<div class="v-reason" role="alert">{literal(end.text)}</div>'
        )
        return None
    st.html(
        '<div class="v-doing v-answered"><span class="v-icon" translate="no">check_circle</span>Answer</div>'
        f'<div class="v-answer{" v-long" if len(end.text) > 240 else ""}">{literal(end.text)}</div>'
    )
    if end.reason in ENDS:
        st.caption(ENDS[end.reason])
    return _sources(end, source, key)


def _sources(end: Answered, source: Source, key: str) -> Citation | None:
    if not end.citations:
        st.caption("The answer cites no page.")
        return None
    labels = [plain(name(citation)) for citation in end.citations]
    numbers = list(range(len(labels)))
    chosen = st.pills("Sources", numbers, format_func=labels.__getitem__, default=0, key=f"{key}-source")
    citation = end.citations[chosen or 0]  # a second click on the first takes the choice back; it stays on show
    if citation.box is not None:
        pictures.show(source, citation.item, citation.box, "region", "Read here")
    return citation


def name(citation: Citation) -> str:
    return citation.item.label + (" · region" if citation.box is not None else "")


def _picture(run: Snapshot, source: Source, cited: Citation | None) -> None:
    if cited is not None:
        pictures.show(source, cited.item, cited.box)
        return
    view = last_view(run.events)
    if view is not None:
        timeline.draw_page(view, source)
    elif not run.done:
        st.html('<div class="v-missing v-empty">The pages that the agent looks at appear here.</div>')


def last_view(events: tuple[Event, ...]) -> ViewShown | None:
    return next((event for event in reversed(events) if isinstance(event, ViewShown)), None)
