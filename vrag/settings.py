"""Every setting of a run, typed: constructor arguments > environment ``VRAG_*`` > the defaults below.

    Settings(max_steps=6)                   # the rest from VRAG_BASE_URL, VRAG_MODEL, ..., else the defaults
    ChatSettings(base_url=..., model=...)   # only what a chat client needs (the agent's model, or a judge)

Each default stands in one place: here, or with the episode for what it defines. A value that makes no sense is a
:class:`vrag.errors.ConfigError` whose message names the setting, the environment variable and what is wrong.
"""

from __future__ import annotations

import difflib
import ipaddress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from vrag.errors import ConfigError
from vrag.graph_energy import MIN_PICTURE_PIXELS, PRESETS, EnergyModel
from vrag.pages import MAX_PAGE_BYTES
from vrag.vimrag_options import VimragOptions, VimragPrompts
from vrag.vrag_episode import VragOptions, VragPrompts

if TYPE_CHECKING:
    from typing_extensions import Self

ENV_PREFIX = "VRAG_"
#: What the published snippets pass where a server asks for no key.
NO_KEY = "EMPTY"


class _Settings(BaseSettings):
    """Shared by all groups: the environment's prefix, errors as sentences. An argument of None counts as not given."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, allow_inf_nan=False
    )

    def __init__(self, **values: Any) -> None:
        given = {name: value for name, value in values.items() if value is not None}
        known = type(self).model_fields
        for name in given:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(sorted(known))}."
                raise ConfigError(f"There is no setting {name!r}; {hint}")
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise ConfigError(_explain(error, given, self.model_config["env_prefix"])) from None
        except SettingsError as error:
            prefix = self.model_config["env_prefix"]
            raise ConfigError(f"An environment variable {prefix}* is not the JSON it must be: {error}.") from None

    def replace(self, **changes: Any) -> Self:
        """The same settings but for ``changes``, checked again."""
        given = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**given, **changes})

    def public(self) -> dict[str, Any]:
        """The settings as JSON values, without the secrets: what a record may keep."""
        return {
            name: value
            for name, value in self.model_dump(mode="json").items()
            if not isinstance(getattr(self, name), SecretStr)
        }

    def secrets(self) -> tuple[str, ...]:
        """The values that must never reach a record or a message."""
        values = (getattr(self, name) for name in type(self).model_fields)
        return tuple(
            value.get_secret_value()
            for value in values
            if isinstance(value, SecretStr) and value.get_secret_value() not in ("", NO_KEY)
        )


class ChatSettings(_Settings):
    """How to speak to an OpenAI-compatible chat endpoint."""

    base_url: str = Field(default="http://127.0.0.1:8002/v1", description="the endpoint, up to and including /v1")
    model: str = Field(default="", description="the model's name on the server; empty: the one model that it serves")
    api_key: SecretStr = Field(default=SecretStr(NO_KEY), description="the key, where the endpoint asks for one")
    temperature: float = Field(default=0.0, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = None
    max_tokens: int = Field(default=2048, ge=1, description="tokens of one reply")
    thinking: bool | None = Field(
        default=None, description="switch a hybrid model's thinking on or off; None sends nothing"
    )
    thinking_switch: Literal["auto", "dashscope", "template"] = Field(
        default="auto",
        description="how the switch travels: DashScope's top-level field, vLLM's template argument, or by the host",
    )
    extra_body: dict[str, Any] = Field(default_factory=dict, description="further fields of the request, as they are")
    streaming: bool = True
    connect_timeout: float = Field(default=5.0, gt=0, description="seconds")
    read_timeout: float = Field(default=180.0, gt=0, description="seconds without a sign from the server")
    reply_timeout: float = Field(default=600.0, gt=0, description="seconds for one whole reply")
    retries: int = Field(
        default=2, ge=0, le=10, description="further attempts at a request that was refused or never answered"
    )
    max_reply_chars: int = Field(default=100_000, ge=1, description="a longer reply is cut off there")

    @field_validator("base_url")
    @classmethod
    def _base_url(cls, value: str) -> str:
        return client_url(value)


class SearchSettings(_Settings):
    """How to speak to the search service."""

    search_url: str = Field(default="http://127.0.0.1:8001/search", description="the service's search endpoint")
    search_api_key: SecretStr = Field(default=SecretStr(NO_KEY), description="the key, where the service asks for one")
    corpus: str | tuple[str, ...] | None = Field(default=None, description="search only this named corpus, or these")
    documents: str | tuple[str, ...] | None = Field(default=None, description="search only these files, by name")
    rerank: bool | int = Field(
        default=False,
        union_mode="left_to_right",
        description="let the service's reranker look again at the best hits, or at so many; needs one there",
    )
    search_timeout: float = Field(default=30.0, gt=0, description="seconds for one request")
    search_retries: int = Field(
        default=3, ge=0, le=10, description="further attempts when the service is busy or restarting"
    )
    max_image_bytes: int = Field(default=MAX_PAGE_BYTES, ge=1, description="a larger image is refused")

    @field_validator("search_url")
    @classmethod
    def _search_url(cls, value: str) -> str:
        return client_url(value).removesuffix("/search") + "/search"


class Settings(ChatSettings, SearchSettings):
    """A whole run: the model, the retriever and the episode."""

    max_steps: int = Field(default=VragOptions.max_steps, ge=1, le=1000, description="turns in which the model may act")
    top_k: int = Field(default=VragOptions.top_k, ge=1, le=100, description="hits per search")
    pages_per_search: int = Field(default=VragOptions.pages_per_search, ge=1, le=100, description="of them shown")
    min_pixels: int = Field(default=VragOptions.min_pixels, ge=1, description="least area of a displayed image")
    max_pixels: int = Field(default=VragOptions.max_pixels, ge=1, description="largest area of a displayed image")
    crop_padding: float = Field(
        default=VragOptions.crop_padding, ge=0, description="page pixels on each side of a crop"
    )
    time_budget: float | None = Field(default=VragOptions.max_seconds, gt=0, description="seconds for one question")
    token_budget: int | None = Field(default=VragOptions.max_tokens, ge=1, description="tokens for one question")
    prompts: Path | None = Field(default=None, description="a folder of prompt files that replace the built-in ones")
    record_dir: Path | None = Field(default=None, description="a folder that keeps the record of every run")

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if self.min_pixels > self.max_pixels:
            raise ValueError(
                f"min_pixels ({self.min_pixels}) is above max_pixels ({self.max_pixels}); change one of them"
            )
        return self

    def vrag_options(self) -> VragOptions:
        """The episode's part of the settings; reads the prompt files."""
        return VragOptions(
            max_steps=self.max_steps,
            top_k=self.top_k,
            pages_per_search=self.pages_per_search,
            min_pixels=self.min_pixels,
            max_pixels=self.max_pixels,
            crop_padding=self.crop_padding,
            max_seconds=self.time_budget,
            max_tokens=self.token_budget,
            prompts=VragPrompts.load(self.prompts),
        )


class VimragSettings(ChatSettings, SearchSettings):
    """A whole run of VimRAG: the model, the retriever, the episode and its memory graph."""

    max_tokens: int = Field(default=4096, ge=1, description="tokens of one reply")
    max_steps: int = Field(
        default=VimragOptions.max_steps, ge=1, le=1000, description="turns in which the model may act"
    )
    top_k: int = Field(default=VimragOptions.top_k, ge=1, le=100, description="hits per search")
    max_pixels_image: int = Field(
        default=VimragOptions.max_pixels_image, ge=1, description="largest area of a picture that a search brings"
    )
    max_pixels_video: int = Field(
        default=VimragOptions.max_pixels_video, ge=1, description="largest area of one frame of a clip"
    )
    fps: float = Field(default=VimragOptions.fps, gt=0, description="frames per second of a clip that are sampled")
    max_frames: int = Field(default=VimragOptions.max_frames, ge=1, le=1000, description="of a clip at most")
    memory_preset: Literal["published", "paper"] = Field(
        default="published", description="the constants of the graph's energy: the published agent's, or the paper's"
    )
    memory_pixels: int | None = Field(
        default=None, ge=0, description="area of all kept pictures together; None: the preset's"
    )
    memory_top_k: int | None = Field(default=None, ge=1, description="kept items that are shown; None: the preset's")
    memory_decay: float | None = Field(default=None, ge=0, description="lambda; None: the preset's")
    memory_feedback: float | None = Field(default=None, ge=0, description="gamma; None: the preset's")
    memory_weighting: Literal["energy", "uniform"] = Field(
        default="energy", description="by the graph's energy, or (ablation) the newest evenly"
    )
    memory_min_pixels: int = Field(default=MIN_PICTURE_PIXELS, ge=1, description="least area of a kept picture")
    memory_chars: int = Field(default=VimragOptions.memory_chars, ge=1, description="characters of kept passages")
    history: Literal["graph", "linear"] = Field(
        default=VimragOptions.history, description="the memory's form: a graph, or (ablation) a plain history"
    )
    native_tools: bool = Field(default=False, description="use the endpoint's own tool calls instead of tags")
    time_budget: float | None = Field(default=VimragOptions.max_seconds, gt=0, description="seconds for one question")
    token_budget: int | None = Field(default=VimragOptions.max_tokens, ge=1, description="tokens for one question")
    input_price: float | None = Field(default=None, ge=0, description="price of a million prompt tokens")
    output_price: float | None = Field(default=None, ge=0, description="price of a million reply tokens")
    prompts: Path | None = Field(default=None, description="a folder of prompt files that replace the built-in ones")
    record_dir: Path | None = Field(default=None, description="a folder that keeps the record of every run")

    def memory_model(self) -> EnergyModel:
        """The preset with what is set beside it."""
        changes: dict[str, Any] = {
            "pixels": self.memory_pixels,
            "top_k": self.memory_top_k,
            "decay": self.memory_decay,
            "feedback": self.memory_feedback,
            "uniform": self.memory_weighting == "uniform",
            "min_pixels": self.memory_min_pixels,
        }
        return replace(
            PRESETS[self.memory_preset], **{name: value for name, value in changes.items() if value is not None}
        )

    def vimrag_options(self) -> VimragOptions:
        """The episode's part of the settings; reads the prompt files."""
        return VimragOptions(
            max_steps=self.max_steps,
            top_k=self.top_k,
            max_pixels_image=self.max_pixels_image,
            max_pixels_video=self.max_pixels_video,
            fps=self.fps,
            max_frames=self.max_frames,
            memory=self.memory_model(),
            memory_chars=self.memory_chars,
            history=self.history,
            native_tools=self.native_tools,
            max_seconds=self.time_budget,
            max_tokens=self.token_budget,
            prompts=VimragPrompts.load(self.prompts),
        )


def client_url(url: str) -> str:
    """The URL for a client: 0.0.0.0 and [::] are where a server *listens*; on its machine, clients go to loopback."""
    parts = urlsplit(url.strip())
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("must be a full URL such as http://127.0.0.1:8002/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("must hold no user name, password, query or fragment; a key goes into the API key setting")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    netloc = f"[{host}]" if ":" in host else host
    if port is not None:
        netloc += f":{port}"
    return urlunsplit((parts.scheme, netloc, parts.path.rstrip("/"), "", ""))


def is_loopback(url: str) -> bool:
    """Whether the URL stays on this machine, so that no proxy of the environment may stand between."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _explain(error: ValidationError, given: dict[str, Any], prefix: str) -> str:
    """One sentence per wrong setting; the value is shown unless it may be a secret."""
    sentences = []
    for problem in error.errors():
        text = problem["msg"].removeprefix("Value error, ")
        if not problem["loc"]:
            sentences.append(text)
            continue
        name = str(problem["loc"][0])
        source = f"the argument {name}" if name in given else f"the environment variable {prefix}{name.upper()}"
        shown = "" if name.endswith("key") else f" (it is {problem['input']!r:.100})"
        sentences.append(f"{source}: {text}{shown}")
    return "Wrong settings. " + "; ".join(dict.fromkeys(sentences)) + "."
