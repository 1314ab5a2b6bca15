"""Whether the services of the demo answer, and what they say about themselves. Asked at most every few seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx
import streamlit as st

from vrag.settings import NO_KEY, ChatSettings, SearchSettings, is_loopback

SECONDS = 5


@dataclass(frozen=True)
class Status:
    """A service as it was a moment ago; ``words`` are fit to show."""

    up: bool
    words: str
    version: str = ""
    """Of the index that a search service serves: changes whenever it changes."""
    corpora: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


def search(settings: SearchSettings) -> Status:
    base = settings.search_url.removesuffix("/search")
    return _search(base)


def model(settings: ChatSettings) -> Status:
    return _model(settings.base_url, settings.api_key.get_secret_value())


def forget() -> None:
    """Ask the search service anew at the next look."""
    _search.clear()


@st.cache_data(ttl=SECONDS, show_spinner=False)
def _search(base: str) -> Status:
    answer, words = _get(base + "/health")
    body = _json(answer)
    if answer is None or not body:
        return Status(False, words)
    index = body.get("index")
    if not answer.is_success or not isinstance(index, dict):
        return Status(False, str(body.get("detail") or f"is {body.get('status', 'not ready')}"))
    items = index.get("items")
    return Status(
        True,
        f"{items:,} pages" if isinstance(items, int) else "answers",
        version=str(index.get("version", "")),
        corpora=tuple(str(name) for name in index.get("corpora") or ()),
    )


@st.cache_data(ttl=SECONDS, show_spinner=False)
def _model(base_url: str, key: str) -> Status:
    answer, words = _get(base_url + "/models", key)
    if answer is None:
        return Status(False, words)
    if answer.status_code in (401, 403):
        return Status(False, "asks for an API key" if key in ("", NO_KEY) else "refuses the API key")
    if answer.status_code == 404:  # an endpoint that lists no models may still speak
        return Status(True, "answers")
    if not answer.is_success:
        return Status(False, words)
    listed = _json(answer).get("data")
    models = tuple(str(model.get("id")) for model in listed if isinstance(model, dict)) if listed else ()
    return Status(True, models[0] if len(models) == 1 else f"{len(models)} models", models=models)


def _get(url: str, key: str = "") -> tuple[httpx.Response | None, str]:
    headers = {"Authorization": f"Bearer {key}"} if key not in ("", NO_KEY) else {}
    try:
        answer = httpx.get(url, timeout=3, headers=headers, trust_env=not is_loopback(url))
    except httpx.TimeoutException:
        return None, "does not answer in time"
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):  # a key that no header can hold is a ValueError
        return None, "does not answer"
    return answer, f"answers with status {answer.status_code}"


def _json(answer: httpx.Response | None) -> dict[str, Any]:
    try:
        body = answer.json() if answer is not None else None
    except ValueError:
        body = None
    return body if isinstance(body, dict) else {}
