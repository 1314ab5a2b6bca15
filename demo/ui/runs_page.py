"""Past runs: the list of those that were recorded, and each of them opened again, replayed step by step, and exported."""

from __future__ import annotations

import streamlit as st

from demo.ui import export, replay, run_view, vimrag_view
from demo.ui.live import Snapshot
from demo.ui.pictures import Source
from demo.ui.text import plain
from vrag.errors import RecordError
from vrag.records import RunSummary, list_runs, read_record
from vrag.settings import Settings, VimragSettings

#: Runs that are listed at once.
PAGE = 25
ICONS = {"answer": ":material/check_circle:", "error": ":material/error:", "stopped": ":material/stop_circle:"}


def page(settings: Settings | VimragSettings) -> None:
    folder = settings.record_dir
    found = list_runs(folder) if folder is not None and folder.is_dir() else []
    wanted = st.query_params.get("run")
    if wanted is None:
        choose(found)
        return
    # The name comes from the address bar: it is looked up among the runs, never used as a path.
    chosen = next((run for run in found if run.id == wanted), None)
    if st.button("All runs", icon=":material/arrow_back:", type="tertiary"):
        st.query_params.clear()
        st.rerun()
    if chosen is None:
        st.info("There is no such run. It may have been deleted.")
        return
    open_run(chosen, settings)


def choose(found: list[RunSummary]) -> None:
    st.title("Past runs", anchor=False)
    if not found:
        st.info("No run has been recorded yet. Ask a question first.")
        return
    shown = int(st.session_state.get("runs-shown", PAGE))
    for run in found[:shown]:
        with st.container(border=True, key=f"run-{run.id}"):
            if st.button(
                plain(run.question, 160),
                key=f"open-{run.id}",
                icon=ICONS.get(run.reason or "", ":material/help:" if run.reason else ":material/content_cut:"),
                type="tertiary",
            ):
                st.query_params["run"] = run.id
                st.rerun()
            st.caption(f"{describe(run)}  \n{plain(run.answer, 160)}" if run.answer else describe(run))
    if len(found) > shown and st.button(f"Show more of {len(found):,}"):
        st.session_state["runs-shown"] = shown + PAGE
        st.rerun()


def describe(run: RunSummary) -> str:
    """When, with which model, how long."""
    when = run.started.astimezone()
    parts = [f"{when:%Y-%m-%d %H:%M}", plain(run.model) if run.model else ""]
    if run.reason is None:
        parts.append("not finished")
    else:
        parts += [f"{run.steps} step{'' if run.steps == 1 else 's'}", f"{run.seconds:.0f} s"]
    return " · ".join(part for part in parts if part)


def open_run(chosen: RunSummary, settings: Settings | VimragSettings) -> None:
    try:
        record = read_record(chosen.path)
    except RecordError as error:
        st.error(plain(str(error)))
        return
    source, key = Source.of(settings), f"past-{chosen.id}"
    graph = record.header.agent == "vimrag"
    if graph:
        vimrag_view.style()
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.caption(describe(chosen), width="content")
        export.buttons(chosen.path, settings, key)

    def draw(run: Snapshot) -> None:
        if graph:
            vimrag_view.draw(run, source, key, prices=vimrag_view.prices_of(record.header.settings))
        else:
            run_view.draw(run, source, key)

    replay.play(record, key, draw)
