"""A recorded run, step by step: a slider over its moments, buttons to go on and back, and a film of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from demo.ui.live import Snapshot
from vrag.events import Event, GraphChanged, Usage, ViewShown
from vrag.records import EventEntry, Record

#: Seconds that the film rests on a moment.
EVERY = 1.2
#: What belongs to the moment before it and makes none of its own.
_FOLLOWS = (Usage, GraphChanged, ViewShown)


def moments(events: Sequence[Event]) -> list[int]:
    """How many events have happened at each moment; the first moment is that before all of them."""
    seen = [at for at, event in enumerate(events) if not isinstance(event, _FOLLOWS)]
    return [0, *seen[1:], len(events)] if events else [0]


def snapshot(record: Record, count: int) -> Snapshot:
    """The run as it stood after its first ``count`` events."""
    entries = [entry for entry in record.entries if isinstance(entry, EventEntry)]
    whole = count >= len(entries)
    last = record.entries[-1].at if whole and record.entries else entries[count - 1].at if count else 0.0
    events = tuple(entry.event for entry in entries[:count])
    return Snapshot(question=record.question, events=events, done=whole, seconds=last)


def play(record: Record, key: str, draw: Callable[[Snapshot], None]) -> None:
    """The controls, and the run as it stood at the chosen moment, drawn by ``draw``; it opens at the end."""
    marks = moments(record.events)
    last = len(marks) - 1
    if last < 1:
        draw(snapshot(record, len(record.events)))
        return
    at, running = f"{key}-moment", f"{key}-playing"

    def go(to: int) -> None:
        st.session_state[at] = max(0, min(last, to))

    def toggle() -> None:
        playing = not st.session_state.get(running, False)
        st.session_state[running] = playing
        if playing and st.session_state.get(at, last) >= last:
            go(0)

    @st.fragment(run_every=EVERY if st.session_state.get(running) else None)
    def film() -> None:
        playing = st.session_state.get(running, False)
        st.session_state.setdefault(at, last)
        if playing and st.session_state.get(f"{key}-shown") == st.session_state[at]:
            go(st.session_state[at] + 1)  # the moment before has had its time
        now = st.session_state[at]
        with st.container(horizontal=True, vertical_alignment="center", key=f"{key}-replay"):
            st.button(
                "Back",
                icon=":material/skip_previous:",
                key=f"{key}-back",
                on_click=go,
                args=(now - 1,),
                disabled=not now,
            )
            words, icon = ("Pause", ":material/pause:") if playing else ("Play", ":material/play_arrow:")
            if st.button(words, icon=icon, key=f"{key}-play", on_click=toggle):
                st.rerun()  # the timer is set by the whole page
            st.button(
                "Next",
                icon=":material/skip_next:",
                key=f"{key}-next",
                on_click=go,
                args=(now + 1,),
                disabled=now == last,
            )
            st.slider("Moment", 0, last, key=at, label_visibility="collapsed", width="stretch")
            st.caption(f"{now} / {last}", width="content")
        draw(snapshot(record, marks[now]))
        st.session_state[f"{key}-shown"] = now
        if playing and now == last:
            st.session_state[running] = False
            st.rerun()

    film()
