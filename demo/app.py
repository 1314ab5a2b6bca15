"""The VRAG demo: ``streamlit run demo/app.py``. Ask and watch, add your own documents, open past runs again."""

from __future__ import annotations

import streamlit as st

from demo.ui import ask_page, documents_page, runs_page, style
from demo.ui.settings_panel import sidebar
from vrag.settings import Settings


def main() -> None:
    st.set_page_config(page_title="VRAG", page_icon=":material/find_in_page:", layout="wide")
    style.apply()
    settings = sidebar(Settings())
    pages = [
        st.Page(lambda: ask_page.page(settings), title="Ask", icon=":material/search:", url_path="ask", default=True),
        st.Page(
            lambda: documents_page.page(settings), title="My documents", icon=":material/upload_file:", url_path="documents"
        ),
        st.Page(lambda: runs_page.page(settings), title="Past runs", icon=":material/history:", url_path="runs"),
    ]
    st.navigation(pages, position="top").run()


main()
