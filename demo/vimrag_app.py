"""The VimRAG demo: ``streamlit run demo/vimrag_app.py``. Ask and watch the memory graph grow, open past runs again."""

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
from demo.ui import documents_page, runs_page, style, vimrag_page  # noqa: E402
from demo.ui.vimrag_settings import sidebar  # noqa: E402
from vrag.errors import ConfigError  # noqa: E402
from vrag.settings import VimragSettings  # noqa: E402


def main() -> None:
    # A file of our own: an icon given by name would be fetched from a font server.
    st.set_page_config(page_title="VimRAG", page_icon=str(ICON), layout="wide")
    style.apply()
    try:
        base = VimragSettings()
    except ConfigError as error:  # a variable of the environment that makes no sense
        st.error(str(error))
        return
    chosen = sidebar(base.replace(record_dir=base.record_dir or defaults.runs()))

    def ask() -> None:
        vimrag_page.page(chosen)

    def documents() -> None:
        documents_page.page(chosen.settings)

    def runs() -> None:
        runs_page.page(chosen.settings)

    pages = [
        st.Page(ask, title="Ask", icon=":material/account_tree:", default=True),
        st.Page(documents, title="My documents", icon=":material/upload_file:"),
        st.Page(runs, title="Past runs", icon=":material/history:"),
    ]
    st.navigation(pages, position="top").run()


main()
