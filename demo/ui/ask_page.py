"""The page where a question is asked and its run is watched."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path

import streamlit as st

from demo.ui import health, question_box, run_view
from demo.ui.live import LiveRun
from demo.ui.pictures import Source
from demo.ui.text import plain
from demo.vrag_agent import VRAG
from vrag.events import Event
from vrag.settings import Settings

EXAMPLE = Path(__file__).resolve().parents[2] / "search_engine" / "corpus" / "example"
#: The name of the example corpus in a search service.
EXAMPLE_CORPUS = "example"
MAX_CHARS = question_box.MAX_CHARS
#: Seconds between two looks at a run.
EVERY = 0.5


@st.cache_data(show_spinner=False)
def examples() -> list[str]:
    """The questions of the example corpus that are marked for showing."""
    try:
        lines = (EXAMPLE / "questions.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError):
        return []
    return [row["query"] for row in rows if row.get("example")][:6]


def start(question: str, settings: Settings) -> None:
    """Begin a run in the background; one that still goes on in this browser tab is stopped."""

    def stream(should_stop: Callable[[], bool]) -> Generator[Event, None, object]:
        return VRAG.from_settings(settings).stream(question, should_stop=should_stop)

    previous: LiveRun | None = st.session_state.get("run")
    if previous is not None:
        previous.stop()
    st.session_state["run"] = LiveRun(question, stream)
    # The sources of the run before are not those of this one.
    st.session_state.pop("live-source", None)


def page(settings: Settings) -> None:
    run: LiveRun | None = st.session_state.get("run")
    if run is None:
        st.title("Ask your documents", anchor=False)
        st.caption("The agent searches, looks at pages, looks closer, and answers with the page and region it read.")
    offered = examples() if EXAMPLE_CORPUS in health.search(settings).corpora else []
    question_box.draw(lambda question: start(question, settings), offered, "vrag", compact=run is not None)
    if run is None:
        advise(settings)
    else:
        watch(run, settings)


def advise(settings: Settings) -> None:
    """Before the first question: what is not running, and how to start it."""
    if not health.search(settings).up:
        st.warning(
            f"The search service at {plain(settings.search_url)} {plain(health.search(settings).words)}. Start it with "
            "`./run_demo.sh search`, or with `python search_engine/search_engine_api.py`.",
            icon=":material/cloud_off:",
        )
    if not health.model(settings).up:
        st.warning(
            f"The model server at {plain(settings.base_url)} {plain(health.model(settings).words)}. "
            "`./run_demo.sh vrag` starts one or says what to do; without a GPU, `./run_demo.sh` runs everything with the "
            "extractive reader. An API key goes into the settings on the left.",
            icon=":material/cloud_off:",
        )


def watch(run: LiveRun, settings: Settings) -> None:
    """Draw the run; while it goes on, draw it again and again."""
    going = not run.done

    @st.fragment(run_every=EVERY if going else None)
    def live() -> None:
        snapshot = run.snapshot()
        if going and snapshot.done:
            st.rerun()  # once more, without the timer
        run_view.draw(snapshot, Source.of(settings), "live", run.stop)

    live()
