"""Both agents on one page, as ``./run_demo.sh`` shows them: ``streamlit run demo/both_app.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import streamlit as st

HERE = Path(__file__).resolve().parent
ROOT = str(HERE.parent)
ICON = HERE / "ui" / "icon.svg"
if ROOT not in sys.path:  # Streamlit puts the script's folder on the path, not the project's root
    sys.path.insert(0, ROOT)

from demo import defaults  # noqa: E402
from demo.ui import ask_page, documents_page, runs_page, settings_panel, style, vimrag_page, vimrag_settings  # noqa: E402
from vrag.errors import ConfigError  # noqa: E402
from vrag.settings import Settings, VimragSettings  # noqa: E402


def main() -> None:
    # A file of our own: an icon given by name would be fetched from a font server.
    st.set_page_config(page_title="VRAG and VimRAG", page_icon=str(ICON), layout="wide")
    style.apply()
    try:
        plain, graph = Settings(), VimragSettings()
    except ConfigError as error:  # a variable of the environment that makes no sense
        st.error(str(error))
        return
    plain = plain.replace(record_dir=plain.record_dir or defaults.runs())
    graph = graph.replace(record_dir=graph.record_dir or defaults.runs())

    # Each agent has settings of its own, so every page draws its sidebar itself.
    def vrag() -> None:
        ask_page.page(settings_panel.sidebar(plain))

    def vimrag() -> None:
        vimrag_page.page(vimrag_settings.sidebar(graph))

    def documents() -> None:
        documents_page.page(settings_panel.sidebar(plain))

    def runs() -> None:
        runs_page.page(settings_panel.sidebar(plain))

    pages = [
        st.Page(vrag, title="VRAG", icon=":material/search:", default=True),
        st.Page(vimrag, title="VimRAG", icon=":material/account_tree:"),
        st.Page(documents, title="My documents", icon=":material/upload_file:"),
        st.Page(runs, title="Past runs", icon=":material/history:"),
    ]
    st.navigation(pages, position="top").run()


main()
