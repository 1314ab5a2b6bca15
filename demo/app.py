"""The VRAG demo: ``streamlit run demo/app.py``. Ask and watch, add your own documents, open past runs again."""

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
from demo.ui import ask_page, documents_page, runs_page, style  # noqa: E402
from demo.ui.settings_panel import sidebar  # noqa: E402
from vrag.errors import ConfigError  # noqa: E402
from vrag.settings import Settings  # noqa: E402


def main() -> None:
    # A file of our own: an icon given by name would be fetched from a font server.
    st.set_page_config(page_title="VRAG", page_icon=str(ICON), layout="wide")
    style.apply()
    try:
        base = Settings()
    except ConfigError as error:  # a variable of the environment that makes no sense
        st.error(str(error))
        return
    settings = sidebar(base.replace(record_dir=base.record_dir or defaults.runs()))

    def ask() -> None:
        ask_page.page(settings)

    def documents() -> None:
        documents_page.page(settings)

    def runs() -> None:
        runs_page.page(settings)

    pages = [
        st.Page(ask, title="Ask", icon=":material/search:", default=True),
        st.Page(documents, title="My documents", icon=":material/upload_file:"),
        st.Page(runs, title="Past runs", icon=":material/history:"),
    ]
    st.navigation(pages, position="top").run()


main()
