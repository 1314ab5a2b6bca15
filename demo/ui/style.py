"""What the theme settings cannot say: calm spacing, readable measure, nothing fetched from outside."""

from __future__ import annotations

import streamlit as st

CSS = """
<style>
  .block-container { max-width: 1180px; padding-top: 4.2rem; }
  [data-testid="stImage"] img { border-radius: 6px; border: 1px solid rgba(128, 128, 128, .25); }
  [data-testid="stVerticalBlockBorderWrapper"] p { line-height: 1.55; }
</style>
"""


def apply() -> None:
    st.html(CSS)
