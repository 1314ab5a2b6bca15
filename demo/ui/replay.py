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
    state = st.session_state
    # The moment is kept apart from the slider: a widget's own value is lost where a run of the script ends before it.
    at, running, rested, slider = f"{key}-at", f"{key}-playing", f"{key}-rested", f"{key}-moment"

    def go(to: int) -> None:
        state[at], state[rested] = max(0, min(last, to)), False

    def toggle() -> None:
        state[running] = not state.get(running, False)
        if state[running] and state.get(at, last) >= last:
            go(0)

    timed = bool(state.get(running, False))

    @st.fragment(run_every=EVERY if timed else None)
    def film() -> None:
        state.setdefault(at, last)
        if state.get(running) and state.get(rested):  # the moment on show has had its time
            go(state[at] + 1)
        now = state[at]
        if now == last:
            state[running] = False
        state[slider] = now
        with st.container(horizontal=True, vertical_alignment="center", key=f"{key}-replay"):
            back, on = ":material/skip_previous:", ":material/skip_next:"
            st.button("Back", icon=back, key=f"{key}-back", on_click=go, args=(now - 1,), disabled=not now)
            words, icon = ("Pause", ":material/pause:") if state.get(running) else ("Play", ":material/play_arrow:")
            st.button(words, icon=icon, key=f"{key}-play", on_click=toggle)
            st.button("Next", icon=on, key=f"{key}-next", on_click=go, args=(now + 1,), disabled=now == last)
            st.slider("Moment", 0, last, key=slider, on_change=lambda: go(state[slider]), label_visibility="collapsed")
            st.caption(f"{now} / {last}", width="content")
        if bool(state.get(running)) != timed:
            st.rerun()  # the timer is set by the whole page
        draw(snapshot(record, marks[now]))
        state[rested] = True

    film()
