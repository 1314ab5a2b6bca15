"""The sidebar of VimRAG: the endpoint, the key, thinking and the limits of the next question, as published."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import streamlit as st

from demo import defaults
from demo.ui import health
from demo.ui.settings_panel import EVERYTHING, NOTE, lamp
from demo.ui.text import plain
from demo.vimrag_agent import DASHSCOPE_KEY, VimRAG
from vrag.errors import ConfigError
from vrag.settings import ENV_PREFIX, NO_KEY, VimragSettings

#: What the page starts with where neither the launcher nor the user says otherwise.
BASE_URL = defaults.DASHSCOPE_URL
SEARCH_URL = "http://localhost:8001/search"
MODEL = defaults.DASHSCOPE_MODEL
STEPS, TOP_K = (5, 30), (1, 10)
#: The fields that the sidebar shows; they keep their values while another page is open.
_FIELDS = ("base-url", "search-url", "model", "key", "thinking", "max-steps", "top-k", "corpus", "input", "output")


@dataclass(frozen=True)
class Chosen:
    """The agent that answers the next question, and its settings."""

    agent: VimRAG
    settings: VimragSettings
    reader: bool

    @property
    def lacks_key(self) -> bool:
        """Whether the endpoint is one that asks for a key and there is none."""
        return dashscope(self.settings.base_url) and self.settings.api_key.get_secret_value() in ("", NO_KEY)


def dashscope(base_url: str) -> bool:
    return (urlsplit(base_url).hostname or "").endswith(".aliyuncs.com")


def sidebar(base: VimragSettings) -> Chosen:
    """Draw the settings; ``base`` holds where a field makes no sense. The environment (``VRAG_*``) names the defaults."""
    for name in _FIELDS:  # else Streamlit forgets them as soon as another page is drawn
        if f"vimrag-{name}" in st.session_state:
            st.session_state[f"vimrag-{name}"] = st.session_state[f"vimrag-{name}"]
    with st.sidebar:
        state = st.container(gap="small")  # filled last: it depends on the fields below
        st.header("Settings", anchor=False)
        base_url = _text("API Base URL", "base-url", _default("base_url", BASE_URL))
        model = _text("Model", "model", _default_model(), placeholder="the one that is served")
        key = st.text_input(
            "API key",
            type="password",
            key="vimrag-key",
            placeholder=_key_hint(base),
            autocomplete="off",
            help="Used for this browser tab alone; it is never recorded.",
        )
        search_url = _text("Search URL", "search-url", _default("search_url", SEARCH_URL))
        thinking = st.toggle("Enable thinking", base.thinking is not False, key="vimrag-thinking")
        max_steps = st.slider(
            "Max steps",
            min(STEPS[0], base.max_steps),
            max(STEPS[1], base.max_steps),
            base.max_steps,
            key="vimrag-max-steps",
        )
        top_k = st.slider("Search top-k", *TOP_K, min(base.top_k, TOP_K[1]), key="vimrag-top-k")
        with st.expander("Prices"):
            st.caption("Of a million tokens, in your currency. With them, the page counts what a question costs.")
            input_price = _price("Prompt tokens", "input", base.input_price)
            output_price = _price("Reply tokens", "output", base.output_price)
        given: dict[str, Any] = {
            "base_url": base_url,
            "search_url": search_url,
            "model_name": model,
            "api_key": key.strip() or None,
            "enable_thinking": thinking,
            "max_mem_steps": max_steps,
            "search_top_k": top_k,
            "input_price": input_price,
            "output_price": output_price,
        }
        try:
            chosen = _agent(base, **given)
        except ConfigError as error:
            st.error(plain(str(error), 600))
            given = {"base_url": _default("base_url", BASE_URL), "model_name": _default_model()}
            chosen = _agent(base, **given)
        search = health.search(chosen.settings())
        if len(search.corpora) > 1:
            corpus = st.selectbox("Search in", [EVERYTHING, *search.corpora], key="vimrag-corpus")
            chosen = _agent(base, **given, corpus=None if corpus == EVERYTHING else corpus)
        settings = chosen.settings()
        served = health.model(settings)
        reader = settings.model == defaults.READER or served.models == (defaults.READER,)
        with state:
            st.html(lamp("Search", search) + lamp("Model", served) + (NOTE if reader else ""))
    if reader and not os.environ.get(f"{ENV_PREFIX}MAX_PIXELS_IMAGE"):
        # It reads by OCR: print has to be legible on a whole page.
        chosen.max_pixels_image = max(chosen.max_pixels_image, defaults.READER_MAX_PIXELS)
    return Chosen(chosen, chosen.settings(), reader)


def _agent(base: VimragSettings, **given: Any) -> VimRAG:
    """An agent with what ``base`` says about everything that the sidebar does not show."""
    kept = {
        "max_pixels_image": base.max_pixels_image,
        "max_pixels_video": base.max_pixels_video,
        "memory_buffer_pixels": base.memory_pixels,
        "fps": base.fps,
        "max_frames": base.max_frames,
        "record_dir": base.record_dir,
    }
    return VimRAG(**{**kept, **given})


def _text(label: str, name: str, value: str, **more: Any) -> str:
    return st.text_input(label, value, key=f"vimrag-{name}", **more).strip()


def _price(label: str, name: str, value: float | None) -> float | None:
    return st.number_input(label, min_value=0.0, value=value, key=f"vimrag-{name}", placeholder="not known")


def _default(name: str, published: str) -> str:
    """The environment's word, else the published default of the page."""
    return os.environ.get(f"{ENV_PREFIX}{name.upper()}") or published


def _default_model() -> str:
    """The environment's word, else the published model; of another server, the one that it serves."""
    named = os.environ.get(f"{ENV_PREFIX}MODEL", "")
    return named or (MODEL if dashscope(_default("base_url", BASE_URL)) else "")


def _key_hint(base: VimragSettings) -> str:
    if base.secrets():
        return f"from {ENV_PREFIX}API_KEY"
    return f"from {DASHSCOPE_KEY}" if os.environ.get(DASHSCOPE_KEY) else "none"
