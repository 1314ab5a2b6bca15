"""The sidebar: which services and limits the next question is asked with, and whether the services answer."""

from __future__ import annotations

import os

import streamlit as st

from demo import defaults
from demo.ui import health
from demo.ui.text import literal, plain
from vrag.errors import ConfigError
from vrag.settings import Settings

EVERYTHING = "everything"
NOTE = (
    '<div class="v-aside">The extractive reader finds and reads lines on the pages by OCR. It is not a language model, and '
    "it cannot reason over what it reads.</div>"
)


def sidebar(base: Settings) -> Settings:
    """Draw the settings; return those that the next question uses, ``base`` where a field makes no sense."""
    with st.sidebar:
        state = st.container(gap="small")  # filled last: it depends on the fields below
        st.header("Settings", anchor=False)
        model = st.text_input("Model", base.model, placeholder="the one that is served")
        base_url = st.text_input("Model server", base.base_url)
        key = st.text_input(
            "API key",
            type="password",
            placeholder="from VRAG_API_KEY" if base.secrets() else "none",
            autocomplete="off",
        )
        search_url = st.text_input("Search service", base.search_url)
        max_steps = st.slider("Max steps", 1, max(20, base.max_steps), base.max_steps)
        top_k = st.slider("Search top-k", 1, max(10, base.top_k), base.top_k)
        try:
            settings = base.replace(
                model=model.strip(),
                base_url=base_url.strip(),
                search_url=search_url.strip(),
                api_key=key.strip() or base.api_key,
                max_steps=max_steps,
                top_k=top_k,
            )
        except ConfigError as error:
            st.error(plain(str(error), 600))
            settings = base
        search, served = health.search(settings), health.model(settings)
        if len(search.corpora) > 1:
            corpus = st.selectbox("Search in", [EVERYTHING, *search.corpora], key="corpus")
            settings = settings.replace(corpus=None if corpus == EVERYTHING else corpus)
        reader = is_reader(settings, served)
        with state:
            st.html(lamp("Search", search) + lamp("Model", served) + (NOTE if reader else ""))
    return for_reader(settings) if reader else settings


def lamp(name: str, status: health.Status) -> str:
    kind = "v-up" if status.up else "v-down"
    return f'<div class="v-lamp {kind}"><b>{name}</b> {literal(status.words, 120)}</div>'


def is_reader(settings: Settings, served: health.Status) -> bool:
    return settings.model == defaults.READER or (not settings.model and served.models == (defaults.READER,))


def for_reader(settings: Settings) -> Settings:
    """Pages at a size at which print can be read by OCR, unless the user has chosen another."""
    chosen = os.environ.get("VRAG_MAX_PIXELS")
    return settings if chosen else settings.replace(max_pixels=max(defaults.READER_MAX_PIXELS, settings.max_pixels))
