"""The page where VimRAG is asked and its graph is watched while it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import streamlit as st

from demo.ui import export, graph_component, health, question_box, vimrag_view
from demo.ui.ask_page import EVERY, EXAMPLE_CORPUS, examples
from demo.ui.live import LiveRun
from demo.ui.pictures import Source
from demo.ui.text import plain
from demo.ui.vimrag_settings import Chosen
from demo.vimrag_agent import DASHSCOPE_KEY
from vrag.events import Event
from vrag.records import list_runs

_KEY = "vimrag-live"


def start(question: str, chosen: Chosen) -> None:
    """Begin a run in the background; one that still goes on in this browser tab is stopped."""
    agent = chosen.agent

    def stream(should_stop: Callable[[], bool]) -> Iterator[Event]:
        return agent.stream(question, should_stop=should_stop)

    previous: LiveRun | None = st.session_state.get("vimrag-run")
    if previous is not None:
        previous.stop()
    st.session_state["vimrag-began"] = datetime.now(timezone.utc)
    st.session_state["vimrag-run"] = LiveRun(question, stream)
    for name in (f"{_KEY}-source", "vimrag-record"):  # those of the run before
        st.session_state.pop(name, None)
    graph_component.follow(_KEY)


def page(chosen: Chosen) -> None:
    vimrag_view.style()
    run: LiveRun | None = st.session_state.get("vimrag-run")
    if run is None:
        st.title("Reason on a memory graph", anchor=False)
        st.caption(
            "The agent plans searches, judges what each of them brings, keeps the evidence that matters in a graph, and "
            "answers from its critical path."
        )
    offered = examples() if EXAMPLE_CORPUS in health.search(chosen.settings).corpora else []
    question_box.draw(lambda question: start(question, chosen), offered, "vimrag", compact=run is not None)
    if run is None:
        advise(chosen)
    else:
        watch(run, chosen)


def advise(chosen: Chosen) -> None:
    """Before the first question: what is missing or not running, and what to do about it."""
    settings = chosen.settings
    search, model = health.search(settings), health.model(settings)
    if not search.up:
        st.warning(
            f"The search service at {plain(settings.search_url)} {plain(search.words)}. Start it with "
            "`./run_demo.sh search`, or with `python search_engine/search_engine_api.py`.",
            icon=":material/cloud_off:",
        )
    if chosen.lacks_key:
        st.warning(
            f"The endpoint asks for an API key. Enter it on the left, or set `{DASHSCOPE_KEY}` and start again. Without a "
            "key, `./run_demo.sh` shows both agents with the extractive reader.",
            icon=":material/key:",
        )
    elif not model.up:
        st.warning(
            f"The model server at {plain(settings.base_url)} {plain(model.words)}. Correct the API Base URL or the key on "
            "the left, or start `./run_demo.sh vimrag --base-url URL` with a server that answers.",
            icon=":material/cloud_off:",
        )


def watch(run: LiveRun, chosen: Chosen) -> None:
    """Draw the run; while it goes on, draw it again and again."""
    going = not run.done
    settings = chosen.settings
    prices = settings.input_price, settings.output_price

    @st.fragment(run_every=EVERY if going else None)
    def live() -> None:
        snapshot = run.snapshot()
        if going and snapshot.done:
            st.rerun()  # once more, without the timer
        vimrag_view.draw(snapshot, Source.of(settings), _KEY, run.stop, prices)

    live()
    if not going and (path := recorded(run, settings.record_dir)) is not None:
        export.buttons(path, settings, _KEY)


def recorded(run: LiveRun, folder: Path | None) -> Path | None:
    """The record of a run of this tab."""
    if "vimrag-record" not in st.session_state:
        began = st.session_state["vimrag-began"]
        found = list_runs(folder) if folder is not None and folder.is_dir() else []
        ours = [one for one in found if one.agent == "vimrag" and one.question == run.question and one.started >= began]
        st.session_state["vimrag-record"] = ours[-1].path if ours else None
    path: Path | None = st.session_state["vimrag-record"]
    return path if path is not None and path.is_file() else None
