"""The drawing of the memory graph on a page: an inline component (no file is fetched from anywhere) whose nodes can be
clicked, or reached with the Tab key and chosen with Enter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st
import streamlit.components.v2 as components

_HERE = Path(__file__).resolve().parent

_component = components.component(
    "vrag_memory_graph",
    html='<div class="stage"></div>',
    css=(_HERE / "graph.css").read_text(encoding="utf-8"),
    js=(_HERE / "graph.js").read_text(encoding="utf-8"),
)


def show(drawing: dict[str, Any], key: str) -> None:
    """Draw what :func:`demo.ui.graph_view.drawing` made; a click is kept for :func:`picked` of the same ``key``."""

    def keep() -> None:
        clicked = st.session_state[f"{key}-graph"].picked
        if isinstance(clicked, str):
            st.session_state[f"{key}-node"] = clicked

    _component(key=f"{key}-graph", data=drawing, on_picked_change=keep)


def picked(key: str) -> str | None:
    """The node that was clicked last; None while the drawing follows the run by itself."""
    value = st.session_state.get(f"{key}-node")
    return value if isinstance(value, str) else None


def follow(key: str) -> None:
    """Forget the choice."""
    st.session_state.pop(f"{key}-node", None)
