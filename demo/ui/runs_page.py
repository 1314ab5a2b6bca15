"""Past runs, opened again from their records."""

from __future__ import annotations

import streamlit as st

from demo.ui import timeline
from vrag.errors import RecordError
from vrag.events import Answered, Failed
from vrag.records import list_runs, read_record
from vrag.settings import Settings


def page(settings: Settings) -> None:
    st.title("Past runs")
    if settings.record_dir is None:
        st.info("Runs are not recorded: set VRAG_RECORD_DIR to a folder to keep them.")
        return
    found = list_runs(settings.record_dir)
    if not found:
        st.info("No run has been recorded yet. Ask a question first.")
        return
    labels = {run.path: f"{run.started:%Y-%m-%d %H:%M:%S}  {run.question[:90]}" for run in found}
    chosen = st.selectbox("Run", list(labels), format_func=labels.__getitem__)
    if chosen is None:
        return
    try:
        record = read_record(chosen)
    except RecordError as error:
        st.error(str(error))
        return
    st.markdown(f"**{timeline.plain(record.question)}**")
    cost = timeline.totals(record.events)
    st.caption(
        f"{cost['calls']:.0f} model calls · {cost['tokens']:.0f} tokens · {cost['pixels'] / 1e6:.1f} MP looked at"
    )
    st.download_button("Download the record", chosen.read_bytes(), file_name=chosen.name, icon=":material/download:")
    end = next((event for event in reversed(record.events) if isinstance(event, Answered | Failed)), None)
    if end is not None:
        timeline.draw_end(end, settings.search_url, "past")
    else:
        st.warning("This run was cut off before it ended; what it did until then is below.")
    timeline.draw(record.events, settings.search_url, "past")
