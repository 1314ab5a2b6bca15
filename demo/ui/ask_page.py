"""The page where a question is asked and its run is watched."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import streamlit as st

from demo.ui import timeline
from demo.ui.live import LiveRun
from demo.vrag_agent import VRAG
from vrag.events import Event
from vrag.settings import Settings

QUESTIONS = Path(__file__).resolve().parents[2] / "search_engine" / "corpus" / "example" / "questions.jsonl"


@st.cache_data(show_spinner=False)
def examples() -> list[str]:
    """The questions of the example corpus that are marked for showing."""
    try:
        rows = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError):
        return []
    return [row["query"] for row in rows if row.get("example")][:6]


def start(question: str, settings: Settings) -> None:
    def stream(stop: threading.Event) -> Iterator[Event]:
        return VRAG.from_settings(settings).stream(question, should_stop=stop.is_set)

    previous: LiveRun | None = st.session_state.get("run")
    if previous is not None:
        previous.stop()
    st.session_state["run"] = LiveRun(question, stream)


def page(settings: Settings) -> None:
    st.title("VRAG")
    st.caption(
        "Ask about the documents. The agent searches, looks at pages, looks closer, and answers with its source."
    )
    if found := examples():
        st.pills("Examples", found, key="example", on_change=take_example, label_visibility="collapsed")
    with st.form("ask", border=False):
        question = st.text_area("Question", key="question", height=80, placeholder="What would you like to know?")
        asked = st.form_submit_button("Ask", type="primary", icon=":material/send:")
    if asked:
        if question.strip():
            start(question.strip(), settings)
        else:
            st.warning("Type a question first.")
    run: LiveRun | None = st.session_state.get("run")
    if run is not None:
        watch(settings.search_url)


def take_example() -> None:
    if st.session_state.get("example"):
        st.session_state["question"] = st.session_state["example"]


def watch(search_url: str) -> None:
    """Draw the run; while it goes on, draw it again twice a second."""
    run: LiveRun = st.session_state["run"]
    every = None if run.done else 0.5

    @st.fragment(run_every=every)
    def live() -> None:
        draw_run(run, search_url)
        if every is not None and run.done:
            st.rerun()  # once more, without the timer

    live()


def draw_run(run: LiveRun, search_url: str) -> None:
    events = list(run.events)
    end = run.end
    head, button = st.columns([5, 1], vertical_alignment="center")
    cost = timeline.totals(events)
    head.markdown(f"**{timeline.plain(run.question)}**")
    head.caption(
        f"{run.seconds:.0f} s · {cost['calls']:.0f} model calls · {cost['tokens']:.0f} tokens · {cost['pixels'] / 1e6:.1f} MP looked at"
    )
    if not run.done and button.button("Stop", icon=":material/stop_circle:", disabled=run.stopping):
        run.stop()
    if end is not None:
        timeline.draw_end(end, search_url, "live")
        with st.expander("How it got there", expanded=True):
            timeline.draw(events, search_url, "live")
        return
    timeline.draw(events, search_url, "live")
    if text := timeline.streaming_text(events):
        st.markdown(f":gray[{timeline.plain(text[-2000:])}]")
    st.caption("Stopping ..." if run.stopping else "Working ...")
