"""A VimRAG run on the page, while it goes on, afterwards and replayed: the log on the left, the graph on the right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from demo.ui import graph_component, graph_view, memory_log, pictures
from demo.ui.graph_view import Details, Kept
from demo.ui.live import Snapshot
from demo.ui.pictures import Source
from demo.ui.run_view import ENDS
from demo.ui.text import literal, plain, row, untagged
from vrag.errors import RecordError, VragError
from vrag.events import Answered, Citation, Event, Failed, Memorized, SearchResults, SearchStarted, ViewShown
from vrag.items import Item
from vrag.usage import Totals

#: Of a reply that is being written: its end.
TAIL_CHARS = 1500
Prices = tuple[float | None, float | None]

CSS = """
<style>
  .block-container { max-width: 1680px; padding-left: 2.4rem; padding-right: 2.4rem; }
  .m-counters { display: flex; flex-wrap: wrap; gap: .3rem 1.6rem; align-items: baseline; }
  .m-counters div { display: flex; flex-direction: column; min-width: 3.6rem; }
  .m-counters b { font-size: 1.15rem; font-weight: 650; font-variant-numeric: tabular-nums; line-height: 1.3; }
  .m-counters span { font-size: .8rem; opacity: .7; }
  .m-node { border: 1.5px solid #2a6fb0; color: #2a6fb0; border-radius: 1rem; padding: 0 .55rem; font-size: .88em;
            font-weight: 600; overflow-wrap: anywhere; }
  .m-tags { display: flex; flex-wrap: wrap; gap: .35rem; }
  .m-tag { border: 1px solid rgba(128, 128, 128, .38); border-radius: 5px; padding: .02rem .5rem; font-size: .86em;
           overflow-wrap: anywhere; background: rgba(128, 128, 128, .09); }
  .m-old { opacity: .62; } .m-hint { font-size: .92em; opacity: .75; }
  .m-card { border-left: 4px solid #2a6fb0; background: rgba(42, 111, 176, .08); border-radius: 0 6px 6px 0;
            padding: .5rem .8rem; margin: .5rem 0; line-height: 1.5; }
  .m-summary { white-space: pre-wrap; overflow-wrap: anywhere; margin: .2rem 0 .4rem; }
  .m-thought { margin: .4rem 0; } .m-thought summary { cursor: pointer; line-height: 1.5; overflow-wrap: anywhere;
            opacity: .85; } .m-thought summary .v-icon { display: inline-block; vertical-align: -.25em;
            margin: 0 .55rem 0 .2rem; color: var(--v-accent); }
  .m-thought > div, .m-live { white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.5; }
  .m-thought > div { border-left: 3px solid rgba(128, 128, 128, .35); padding-left: .8rem; margin: .4rem 0; }
  .m-live { max-height: 9.5rem; overflow: hidden; display: flex; flex-direction: column; justify-content: flex-end; }
  .m-energy { height: .45rem; border-radius: .3rem; background: rgba(128, 128, 128, .2); margin: .15rem 0 .3rem; }
  .m-energy div { height: 100%; border-radius: .3rem; background: #d2480c; }
  .m-detail { line-height: 1.5; overflow-wrap: anywhere; }
  .m-state { display: inline-block; border-radius: 1rem; padding: 0 .6rem; font-size: .82rem; font-weight: 600;
             border: 2px solid currentColor; }
  .m-searching { color: #8a6900; } .m-memorised { color: #2a6fb0; } .m-dead_end { color: #74767b; }
  .m-critical_path { color: #c2410c; }
  [class*="-graph-side"] [data-testid="stImage"] img { max-height: 17rem; width: auto !important; max-width: 100%; }
  [class*="-answer-side"] [data-testid="stImage"] img { max-height: 24rem; width: auto !important; max-width: 100%; }
  @media (min-width: 900px) {
    /* The graph stays in sight while the steps are read. */
    [class*="-graph-side"] { position: sticky; top: 4.2rem; max-height: calc(100vh - 5rem); overflow-y: auto;
                             flex-wrap: nowrap; padding: 0 .4rem .4rem 0; }
    [data-testid="stColumn"]:has([class*="-graph-side"]) { align-self: flex-start; position: sticky; top: 4.2rem; }
  }
  @media (max-width: 899px) {
    .block-container { padding-left: 1rem; padding-right: 1rem; }
    [class*="-cols"] > [data-testid="stHorizontalBlock"] { flex-direction: column; }
    [class*="-cols"] [data-testid="stColumn"] { width: 100% !important; flex: 1 1 100% !important; }
    [class*="-log"] { max-height: 55vh; overflow-y: auto; flex-wrap: nowrap; }
    [class*="-answer-side"] [data-testid="stImage"] img { max-height: 16rem; }
  }
</style>
"""


def style() -> None:
    st.html(CSS)


def draw(
    run: Snapshot, source: Source, key: str, stop: Callable[[], None] | None = None, prices: Prices = (None, None)
) -> None:
    """Draw a run; ``stop`` is what the stop button does, ``key`` tells the runs on one page apart."""
    st.html(f'<h2 class="v-question">{literal(run.question, 1000)}</h2>')
    with st.container(
        horizontal=True, vertical_alignment="center", horizontal_alignment="distribute", key=f"{key}-head"
    ):
        st.html(counters(run, prices))
        if stop is not None and not run.done:
            st.button("Stop", key=f"{key}-stop", icon=":material/stop_circle:", disabled=run.stopping, on_click=stop)
    with st.container(key=f"{key}-cols"):
        left, right = st.columns([1, 1], gap="medium")
        with left, st.container(key=f"{key}-answer-side"):
            if run.done:
                _end(run, source, key)
            else:
                _progress(run, key, live=stop is not None)
            _log(run, key)
        with right, st.container(key=f"{key}-graph-side"):
            _graph(run, source, key)


def counters(run: Snapshot, prices: Prices) -> str:
    """Time, calls, tokens, pixels and, where prices are known, the cost, as HTML."""
    totals = Totals.of(run.events)
    cost = totals.cost(*prices)
    told = [
        (f"{run.seconds:.0f} s", "time"),
        (f"{totals.calls}", "model calls"),
        (f"{totals.prompt_tokens:,}", "prompt tokens"),
        (f"{totals.completion_tokens:,}", "reply tokens"),
        (f"{totals.image_pixels / 1e6:.1f} MP", "looked at"),
        *([] if cost is None else [(f"{cost:.4f}", "cost")]),
    ]
    return (
        '<div class="m-counters">'
        + "".join(f"<div><b>{value}</b><span>{name}</span></div>" for value, name in told)
        + "</div>"
    )


def _progress(run: Snapshot, key: str, live: bool) -> None:
    st.html(f'<div class="v-doing" role="status"><span class="v-pulse"></span>{literal(doing(run))}</div>')
    if not live:  # in a replay, nothing is being written
        return
    with st.expander("Thinking", expanded=True, icon=":material/lightbulb:", key=f"{key}-thinking"):
        text = run.thinking[-TAIL_CHARS:] or untagged(run.writing)[-TAIL_CHARS:]
        st.html(f'<div class="m-live"><div>{literal(text) or "..."}</div></div>')


def doing(run: Snapshot) -> str:
    """What the agent is at, in a few words."""
    if run.stopping:
        return "Stopping ..."
    if len(run.writing) > len(run.thinking):
        return "Writing ..."
    for event in reversed(run.events):
        if run.thinking or isinstance(event, Memorized):
            break
        if isinstance(event, SearchStarted):
            return f"Searching for {event.query[:80]} ..."
        if isinstance(event, SearchResults | ViewShown):
            return "Judging what was found ..."
    return "Thinking ..."


def _end(run: Snapshot, source: Source, key: str) -> None:
    end = run.end
    if end is None:
        st.html(row("content_cut", "The run was cut off before it ended. What it did until then is below.", "v-note"))
    elif isinstance(end, Failed):
        icon, words = ("stop_circle", "Stopped") if end.reason == "stopped" else ("error", "No answer")
        st.html(
            f'<div class="v-doing v-failed"><span class="v-icon" translate="no">{icon}</span>{words}</div>'
            f'<div class="v-reason" role="alert">{literal(end.text)}</div>'
        )
    else:
        st.html(
            '<div class="v-doing v-answered"><span class="v-icon" translate="no">check_circle</span>Answer</div>'
            f'<div class="v-answer{" v-long" if len(end.text) > 240 else ""}">{literal(end.text)}</div>'
        )
        if end.reason in ENDS:
            st.caption(ENDS[end.reason])
        _sources(end, source, key)


def _sources(end: Answered, source: Source, key: str) -> None:
    if not end.citations:
        st.caption("The answer cites no page.")
        return
    labels = [plain(_where(citation)) for citation in end.citations]
    chosen = st.pills(
        "Sources", list(range(len(labels))), format_func=labels.__getitem__, default=0, key=f"{key}-source"
    )
    citation = end.citations[chosen or 0]  # a second click on the first takes the choice back; it stays on show
    _picture(source, citation.item, _where(citation), () if citation.timestamp is None else (citation.timestamp,))


def _where(citation: Citation) -> str:
    return citation.item.label + ("" if citation.timestamp is None else f", at {citation.timestamp:.1f} s")


def _log(run: Snapshot, key: str) -> None:
    drawn = list(memory_log.steps(run.events))
    if not drawn:
        return
    st.html('<h3 class="v-section">Steps</h3>')
    # While the run goes on, the newest step is the one to be seen.
    with st.container(key=f"{key}-log"):
        for number, body in drawn if run.done else reversed(drawn):
            with st.container(border=True, key=f"{key}-step-{number}"):
                st.html(body)


def _graph(run: Snapshot, source: Source, key: str) -> None:
    value = graph_view.graph_of(run.events)
    picked = graph_component.picked(key)
    try:
        chosen = graph_view.details(value, run.question, picked) if picked else None
        if chosen is None:
            chosen = graph_view.details(value, run.question, graph_view.newest(value))
        drawing = graph_view.drawing(value, run.question, chosen.id if chosen else "")
    except RecordError as error:
        st.html(row("error", literal(f"The graph cannot be drawn: {error}"), "v-note"))
        return
    graph_component.show(drawing, key)
    if chosen is not None:
        with st.container(border=True, key=f"{key}-details"):
            _details(chosen, run, source)


def _details(node: Details, run: Snapshot, source: Source) -> None:
    state = f' <span class="m-state m-{node.state}">{graph_view.STATES[node.state]}</span>'
    searched = node.id not in (graph_view.ROOT, graph_view.ANSWER)  # the question and the answer are no searches
    parts = [
        f"<div><b>{literal(node.title, 200)}</b>{state if searched else ''}</div>",
        f'<div><span class="v-query">{literal(node.query, 1000)}</span></div>' if node.query else "",
        f'<div class="m-summary">{literal(node.summary, 3000)}</div>' if node.summary else "",
    ]
    if node.id == graph_view.ANSWER and isinstance(run.end, Answered):
        parts.append(f'<div class="m-summary">{literal(run.end.text, 3000)}</div>')
    if node.parents:
        verb = "rests on" if node.id == graph_view.ANSWER else "builds on"
        parts.append(f'<div class="v-faint">{verb} {literal(", ".join(node.parents), 400)}</div>')
    st.html(f'<div class="m-detail">{"".join(parts)}</div>')
    items = items_of(run.events)
    strongest = max((one.energy or 0.0 for one in node.kept), default=0.0)
    for kept in node.kept:
        _evidence(kept, items.get(kept.item_id), source, strongest)


def _evidence(kept: Kept, item: Item | None, source: Source, strongest: float) -> None:
    share = 100 * (kept.energy or 0.0) / strongest if strongest > 0 else 0.0
    st.html(
        f'<div class="m-detail"><b>{literal(kept.label, 200)}</b> <span class="v-faint">{literal(kept.words())}</span>'
        + (f'<div class="m-energy"><div style="width: {share:.0f}%"></div></div>' if kept.energy is not None else "")
        + "</div>"
    )
    if item is not None:
        _picture(source, item, "", kept.timestamps)


def items_of(events: tuple[Event, ...]) -> dict[str, Item]:
    """Everything that a run has found or shown, by id."""
    found: dict[str, Item] = {}
    for event in events:
        if isinstance(event, SearchResults):
            found.update((hit.item.id, hit.item) for hit in event.hits)
        elif isinstance(event, ViewShown):
            found[event.view.item.id] = event.view.item
    return found


def _picture(source: Source, item: Item, caption: str, timestamps: tuple[float, ...]) -> None:
    if item.kind != "video":
        pictures.show(source, item, caption=caption)
        return
    if not source.up:
        pictures.missing(item.label, "The search service, which keeps the clips, does not answer.")
        return
    try:
        frames = pictures.frames(source, item.id, timestamps)
    except (VragError, OSError, ValueError) as error:
        pictures.missing(item.label, f"The clip cannot be shown: {error}")
        return
    st.image([image for _, image in frames], caption=[f"at {seconds:.1f} s" for seconds, _ in frames], width=200)


def prices_of(settings: Mapping[str, Any]) -> Prices:
    """The prices that a recorded run was made with."""
    read = [settings.get(name) for name in ("input_price", "output_price")]
    first, second = (float(value) if isinstance(value, int | float) else None for value in read)
    return first, second
