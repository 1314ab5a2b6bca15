"""Past runs: the list of those that were recorded, and each of them opened again."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from demo.ui import run_view
from demo.ui.live import Snapshot
from demo.ui.pictures import Source
from demo.ui.text import plain
from vrag.errors import RecordError
from vrag.records import Record, RunSummary, list_runs, read_record
from vrag.settings import Settings

#: Runs that are listed at once.
PAGE = 25
ICONS = {"answer": ":material/check_circle:", "error": ":material/error:", "stopped": ":material/stop_circle:"}


def page(settings: Settings) -> None:
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


def open_run(chosen: RunSummary, settings: Settings) -> None:
    try:
        record = read_record(chosen.path)
    except RecordError as error:
        st.error(plain(str(error)))
        return
    source = Source.of(settings)
    st.caption(describe(chosen))
    run_view.draw(snapshot_of(record), source, f"past-{chosen.id}")
    st.download_button(
        "Download the record",
        Path(chosen.path).read_bytes(),
        file_name=chosen.path.name,
        icon=":material/download:",
        on_click="ignore",
    )


def snapshot_of(record: Record) -> Snapshot:
    """A recorded run in the form in which runs are drawn."""
    last = record.entries[-1].at if record.entries else 0.0
    return Snapshot(question=record.question, events=tuple(record.events), seconds=last)
