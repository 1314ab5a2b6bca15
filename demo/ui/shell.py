"""What every page of the demo has in common: its frame, the settings it starts from, and the pages beside asking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import streamlit as st

from demo import defaults
from demo.ui import documents_page, runs_page, style
from vrag.errors import ConfigError
from vrag.settings import Settings, VimragSettings

ICON = Path(__file__).with_name("icon.svg")
AnySettings = TypeVar("AnySettings", Settings, VimragSettings)


class Asking(NamedTuple):
    """A page on which questions are asked."""

    title: str
    path: str
    icon: str
    draw: Callable[[], None]


def frame(title: str) -> None:
    """Set the page up; to be called first."""
    # A file of our own: an icon given by name would be fetched from a font server.
    st.set_page_config(page_title=title, page_icon=str(ICON), layout="wide")
    style.apply()


def base(kind: type[AnySettings]) -> AnySettings:
    """The settings that the environment gives, with runs kept; ends the page with a sentence where they make no sense."""
    try:
        settings = kind()
    except ConfigError as error:
        st.error(str(error))
        st.stop()
    return settings.replace(record_dir=settings.record_dir or defaults.runs())


def navigate(asking: Sequence[Asking], settings: Callable[[], Settings | VimragSettings]) -> None:
    """Draw the chosen page: one of ``asking`` (the first by default), the documents or the past runs.

    ``settings`` is called on these two only; where each agent has a sidebar of its own, it draws one.
    """

    def documents() -> None:
        documents_page.page(settings())

    def runs() -> None:
        runs_page.page(settings())

    pages = [
        st.Page(one.draw, title=one.title, url_path=one.path, icon=one.icon, default=number == 0)
        for number, one in enumerate(asking)
    ]
    pages += [
        st.Page(documents, title="My documents", icon=":material/upload_file:"),
        st.Page(runs, title="Past runs", icon=":material/history:"),
    ]
    st.navigation(pages, position="top").run()
