"""Every setting of the search service, typed: arguments > environment ``VRAG_SEARCH_*`` > the defaults below."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from search_engine.settings import VectorKind
from vrag.errors import ConfigError

ENV_PREFIX = "VRAG_SEARCH_"
#: What a client passes where a server asks for no key; as a key it would be no secret.
NO_KEY = "EMPTY"

Paths = Annotated[tuple[Path, ...], NoDecode]


class ServiceSettings(BaseSettings):
    """How to serve which indexes. In the environment, several paths are separated as in ``PATH`` (by ``:``)."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="the address to listen on; any but this machine's own needs an API key")
    port: int = Field(8001, ge=0, le=65535, description="0 lets the system choose")
    api_key: SecretStr | None = Field(None, description="asked of every client when set (all endpoints but /health)")
    index: Paths = Field((), description="the folders of the indexes to serve; each must exist")
    optional_index: Paths = Field((), description="folders of indexes that are served too as soon as they exist")
    model: str = Field("text_page", description="the embedding model that the indexes were built with")
    vectors: VectorKind | None = Field(None, description="how vectors are searched (flat), see RetrievalSettings")
    milvus_uri: str | None = Field(None, description="where, with vectors=milvus")
    reranker: str = Field("", description="a reranker's checkpoint, for searches with rerank; empty: none")

    max_queries: int = Field(256, ge=1, description="of one request")
    max_query_chars: int = Field(8192, ge=1)
    max_images: int = Field(16, ge=1, description="pictures of one request that are searched by")
    max_image_pixels: int = Field(2**25, ge=1, description="of such a picture; it is refused before it is decoded")
    max_top_k: int = Field(100, ge=1)
    max_rerank: int = Field(100, ge=1, description="hits of one query that the reranker looks at")
    max_id_chars: int = Field(512, ge=1)
    max_body_bytes: int = Field(16 * 2**20, ge=1, description="of a request; pictures to search by travel in it")
    max_batch: int = Field(128, ge=1, description="queries that are embedded and searched together at most")
    max_waiting: int = Field(4096, ge=1, description="queries that may wait; beyond it clients are asked to come back")
    max_pause: float = Field(
        0.02, ge=0, le=1, description="seconds a batch may wait for its callers to come back, under load"
    )
    answer_seconds: float = Field(120.0, gt=0, description="a search that takes longer is given up")
    thumbnail_cache_bytes: int = Field(64 * 2**20, ge=0)
    watch_seconds: float = Field(
        0.0, ge=0, description="look for a changed index this often and swap it in; 0: on request"
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**{name: value for name, value in values.items() if value is not None})
        except ValidationError as error:
            raise ConfigError(_explain(error, values)) from None

    @field_validator("index", "optional_index", mode="before")
    @classmethod
    def _paths(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part for part in value.split(os.pathsep) if part)
        return (value,) if isinstance(value, Path) else value

    @field_validator("api_key")
    @classmethod
    def _key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None or value.get_secret_value() in ("", NO_KEY):
            return None
        if not value.get_secret_value().isascii():
            raise ValueError("must be plain ASCII, since it travels in a header")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> ServiceSettings:
        if self.api_key is None and not is_loopback(self.host):
            raise ValueError(
                f"{self.host} can be reached from other machines, so an API key is required: give one with "
                f"{ENV_PREFIX}API_KEY=..., or listen on 127.0.0.1"
            )
        if self.max_waiting < self.max_queries:
            raise ValueError("max_waiting must be at least max_queries, or a full request could never be served")
        return self


def is_loopback(host: str) -> bool:
    """Whether a server on ``host`` can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _explain(error: ValidationError, given: dict[str, Any]) -> str:
    """One sentence per wrong setting. Values are not shown: one of them is a secret."""
    sentences = []
    for problem in error.errors(include_input=False, include_url=False):
        text = problem["msg"].removeprefix("Value error, ")
        if problem["loc"]:
            name = str(problem["loc"][0])
            source = f"the argument {name}" if given.get(name) is not None else f"{ENV_PREFIX}{name.upper()}"
            text = f"{source}: {text}"
        sentences.append(text)
    return "Wrong settings of the search service. " + "; ".join(dict.fromkeys(sentences)) + "."
