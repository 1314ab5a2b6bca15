"""The sidebar: which services and limits the next question is asked with, and whether the services answer."""

from __future__ import annotations

import httpx
import streamlit as st

from vrag.settings import Settings

READER = "extractive-reader"


@st.cache_data(ttl=10, show_spinner=False)
def health(url: str) -> tuple[bool, str]:
    """Whether a service answers, and a few words about it."""
    try:
        answer = httpx.get(url, timeout=3, trust_env=False)
    except httpx.HTTPError as error:
        return False, f"does not answer ({type(error).__name__})"
    if not answer.is_success:
        return False, f"answers with status {answer.status_code}"
    try:
        body = answer.json()
    except ValueError:
        return True, "answers"
    if isinstance(body, dict) and "items" in body:
        return True, f"{body['items']} items"
    if isinstance(body, dict) and isinstance(body.get("data"), list):
        return True, ", ".join(str(model.get("id")) for model in body["data"][:3] if isinstance(model, dict))
    return True, "answers"


def light(name: str, url: str) -> None:
    up, words = health(url)
    colour = "green" if up else "red"
    st.markdown(f":{colour}[:material/circle:] {name}: {words}")


def sidebar(defaults: Settings) -> Settings:
    """Draw the settings; return those that the next question uses."""
    with st.sidebar:
        st.header("Settings")
        model = st.text_input("Model", defaults.model)
        base_url = st.text_input("Model server", defaults.base_url)
        search_url = st.text_input("Search service", defaults.search_url)
        max_steps = st.slider("Max steps", 3, 20, min(20, max(3, defaults.max_steps)))
        top_k = st.slider("Search top-k", 1, 10, min(10, max(1, defaults.top_k)))
        light("Search", search_url.removesuffix("/search") + "/health")
        light("Model", base_url.rstrip("/") + "/models")
        if model == READER:
            st.info(
                "The answers come from the extractive reader: it finds and reads lines on the pages by OCR. It is not a "
                "language model, and it cannot reason over what it reads.",
                icon=":material/info:",
            )
    return defaults.replace(
        model=model.strip(),
        base_url=base_url.strip(),
        search_url=search_url.strip(),
        max_steps=max_steps,
        top_k=top_k,
    )
