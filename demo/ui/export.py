"""A finished run to take away: its record, one HTML file, or Markdown with its pictures."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from vrag.records import read_record
from vrag.report import export_html, export_markdown, zipped
from vrag.retriever import HttpRetriever
from vrag.settings import SearchSettings


def buttons(path: Path, settings: SearchSettings, key: str) -> None:
    """Three downloads of the run recorded at ``path``; the reports are made when they are asked for."""

    def reach() -> HttpRetriever:
        # A page that does not come at once is left out of the report, which says so.
        return HttpRetriever(settings.replace(search_retries=0, search_timeout=10))

    def html() -> bytes:
        with reach() as retriever:
            return export_html([read_record(path)], retriever).encode("utf-8")

    def markdown() -> bytes:
        with reach() as retriever:
            return zipped(export_markdown([read_record(path)], retriever))

    with st.container(horizontal=True, key=f"{key}-export"):
        st.download_button(
            "HTML report",
            html,
            file_name=f"{path.stem}.html",
            mime="text/html",
            icon=":material/description:",
            on_click="ignore",
            key=f"{key}-html",
        )
        st.download_button(
            "Markdown",
            markdown,
            file_name=f"{path.stem}.zip",
            mime="application/zip",
            icon=":material/folder_zip:",
            on_click="ignore",
            key=f"{key}-markdown",
        )
        st.download_button(
            "Record",
            path.read_bytes(),
            file_name=path.name,
            mime="application/jsonl",
            icon=":material/download:",
            on_click="ignore",
            key=f"{key}-record",
        )
