"""From what the SDK raises to a sentence: what happened at which URL, what the server said, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import httpx

from vrag.errors import ModelError
from vrag.settings import ChatSettings

#: How much of a server's own words is passed on.
MAX_SERVER_WORDS = 500

_TOO_LONG = re.compile(r"context.{0,10}(length|window|size)|maximum.{0,20}(length|tokens)|max_model_len|too long", re.I)
_TOO_MANY_IMAGES = re.compile(r"at most \d+ (image|multi)|limit.mm|too many images", re.I)


def explain(error: Exception, settings: ChatSettings, served: Sequence[str] | None = None) -> ModelError:
    """The error as a ModelError. ``served`` are the models that the endpoint lists, where they were asked for."""
    import openai

    url, prefix = settings.base_url, settings.model_config["env_prefix"]
    # Older SDKs let what breaks in the middle of a stream through as the HTTP client raised it.
    if isinstance(error, openai.APITimeoutError | httpx.TimeoutException):
        return ModelError(
            f"The model at {url} did not answer within {settings.read_timeout:g} s. It may be loading or overloaded: "
            f"look at the server, or raise read_timeout ({prefix}READ_TIMEOUT)."
        )
    if isinstance(error, openai.APIConnectionError | httpx.TransportError):
        return ModelError(_connection(error, url, prefix))
    if isinstance(error, openai.APIStatusError):
        return ModelError(_status(error, settings, served))
    if isinstance(error, openai.APIError):
        said = _scrubbed(error.message, settings)
        hint = _hint(said, settings)
        return ModelError(f"The model at {url} reported an error: {said}{hint}")
    said = _scrubbed(f"{type(error).__name__}: {error}", settings)
    return ModelError(
        f"The server at {url} answered with something that is no chat completion ({said}). "
        "Is base_url that of an OpenAI-compatible server, up to and including /v1?"
    )


def _connection(error: Exception, url: str, prefix: str) -> str:
    cause: BaseException | None = error
    while cause is not None and cause.__cause__ is not None:
        cause = cause.__cause__
    said = str(cause) or type(cause).__name__
    # The two HTTP stacks word a refused connection differently.
    said = "connection refused" if re.search(r"refused|all connection attempts failed", said, re.I) else said
    if re.search(r"refused|not known|name resolution|no address|unreachable|no route", said, re.I):
        return (
            f"Nothing answers at {url} ({said}). Is the model server running? Start one with ./run_demo.sh "
            f"(everything offline) or ./run_demo.sh vrag, or set base_url ({prefix}BASE_URL) to one that runs."
        )
    return (
        f"The connection to the model at {url} broke ({said}). "
        "The server was stopped or restarted; see its log, then ask again."
    )


def _status(error: object, settings: ChatSettings, served: Sequence[str] | None) -> str:
    status: int = error.status_code  # type: ignore[attr-defined]
    said = _scrubbed(_server_words(error), settings)
    url, prefix = settings.base_url, settings.model_config["env_prefix"]
    head = f"The model server at {url} answered {status}: {said}"
    if status in (401, 403):
        return f"{head} Set the endpoint's key: api_key=... or {prefix}API_KEY."
    if status == 404:
        if served:
            return f"{head} It serves: {', '.join(served[:20])}. Set model=... or {prefix}MODEL to one of them."
        return f"{head} Check the model's name (model, {prefix}MODEL) and that base_url ends with /v1."
    if status == 429:
        return f"{head} It still says so after {settings.retries} retries: wait a moment, or ask for a higher limit."
    if status >= 500:
        return f"{head} The fault is the server's; see its log."
    return head + _hint(said, settings)


def _hint(said: str, settings: ChatSettings) -> str:
    if _TOO_MANY_IMAGES.search(said):
        return (
            " The server takes fewer pictures than the run shows: start vLLM with --limit-mm-per-prompt "
            "'{\"image\": 10}', or lower max_steps."
        )
    if _TOO_LONG.search(said):
        return (
            " The conversation does not fit: lower max_pixels, max_steps or max_tokens, or start the server with a "
            "longer context (vLLM: --max-model-len)."
        )
    return ""


def _server_words(error: object) -> str:
    """The message inside an error body, in the shapes that servers use; else the body itself."""
    body = getattr(error, "body", None)
    for key in ("error", "message", "detail"):
        if isinstance(body, dict) and body.get(key):
            body = body[key]
    if isinstance(body, dict):
        body = body.get("message") or body
    if body is None:
        body = getattr(error, "message", "")
    return str(body)


def _scrubbed(text: str, settings: ChatSettings) -> str:
    """One line of bounded length, without our keys (some servers quote them)."""
    line = " ".join(text.split())
    for secret in settings.secrets():
        line = line.replace(secret, "***")
    if len(line) > MAX_SERVER_WORDS:
        line = line[:MAX_SERVER_WORDS] + " ..."
    return line if line.endswith((".", "!", "?", "...")) else f"{line or 'no message'}."
