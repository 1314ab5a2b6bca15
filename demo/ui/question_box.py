"""Where a question is asked: the field, and example questions that a click asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from demo.ui.text import plain

MAX_CHARS = 2000


def draw(ask: Callable[[str], None], examples: Sequence[str], key: str, compact: bool) -> None:
    """``ask`` is called with a question, after which the page is drawn anew.

    ``compact``: a run is on show, so the examples wait behind a button. (A popover would stay open over the run.)
    """
    unfolded = f"{key}-examples-shown"

    def take(question: str) -> None:
        st.session_state[unfolded] = False
        ask(question)

    def unfold() -> None:
        st.session_state[unfolded] = not st.session_state.get(unfolded, False)

    with st.container(horizontal=True, vertical_alignment="center", key="ask"):
        asked = st.chat_input("Ask about the documents", key=f"{key}-question", max_chars=MAX_CHARS)
        if compact and examples:
            st.button("Examples", key=f"{key}-unfold", icon=":material/lightbulb:", on_click=unfold)
    if asked and asked.strip():
        take(asked.strip())
        st.rerun()
    if not examples or (compact and not st.session_state.get(unfolded, False)):
        return
    st.caption("One of these, for example:" if compact else "Or try one of these:")
    with st.container(horizontal=True, gap="small", key="examples"):
        for number, question in enumerate(examples):
            st.button(plain(question), key=f"{key}-example-{number}", on_click=take, args=(question,))
