"""The retriever as an episode's driver sees it, and its HTTP clients: search, and the pictures of an item by its id.

    with HttpRetriever(SearchSettings(search_url=...)) as retriever:
        hits = retriever.search(["travel apps"], top_k=3)[0]
        data = retriever.image(hits[0].item.id)

The frames of a clip come from ``GET /items/{id}/frames?fps=1.0&max_frames=32&max_pixels=401408`` as
``{"frames": [{"t": seconds, "image": "base64 of a JPEG"}, ...]}``.

A busy or restarting service is asked again, a bounded number of times with growing pauses; all requests only read, so
asking twice does no harm. What the service answers is checked before anything is built on it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import math
import random
import re
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlencode

import httpx
from pydantic import BaseModel, ValidationError

from vrag.episode import Frame
from vrag.errors import ConfigError, MediaError, RetrieverError, VragError
from vrag.geometry import MAX_PIXELS
from vrag.items import Hit, Item
from vrag.settings import NO_KEY, SearchSettings, is_loopback

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

#: Statuses of a service that is busy or coming up.
BUSY = frozenset({429, 502, 503, 504})
#: A search answer holds ids, not pictures; more than this is not one.
MAX_ANSWER_BYTES = 32 * 2**20
#: Pauses before further attempts, in seconds: the first, and the longest that a Retry-After is obeyed for.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0

Names = str | Sequence[str] | None


class Retriever(Protocol):
    """Blocking retriever. A service that cannot be used raises :class:`vrag.errors.RetrieverError`."""

    def search(self, queries: Sequence[str], top_k: int, corpus: str | None = None) -> list[list[Hit]]:
        """One ranked list of at most ``top_k`` hits per query, best first."""

    def image(self, item_id: str) -> bytes:
        """The encoded image of a page or picture. Raises MediaError where this one item has none that can be used."""

    def frames(self, item_id: str, fps: float, max_frames: int, max_pixels: int) -> list[Frame]:
        """Frames of a clip, spread evenly over it, in the order of time (see :class:`vrag.episode.FetchFrames`).

        Raises MediaError where this one item has none.
        """


class AsyncRetriever(Protocol):
    """The same, awaitable."""

    async def search(self, queries: Sequence[str], top_k: int, corpus: str | None = None) -> list[list[Hit]]: ...

    async def image(self, item_id: str) -> bytes: ...

    async def frames(self, item_id: str, fps: float, max_frames: int, max_pixels: int) -> list[Frame]: ...


class _Ranking(BaseModel):
    """The wire form of one query's hits; further fields are the service's own business."""

    score: list[float]
    data: list[dict[str, Any]]


class _Answer(BaseModel):
    results: list[_Ranking]
    notes: list[str] | None = None


class _FrameForm(BaseModel):
    t: float
    image: str


class _FramesAnswer(BaseModel):
    frames: list[_FrameForm]


class _Http:
    """What the two clients share: requests, checks and the rule for asking again."""

    def __init__(self, settings: SearchSettings | str | None) -> None:
        self.settings = (
            SearchSettings(search_url=settings) if isinstance(settings, str) else settings or SearchSettings()
        )
        self.base_url = self.settings.search_url.removesuffix("/search")

    def _options(self) -> dict[str, Any]:
        """Arguments of the httpx client. No proxy stands between us and a service on this machine."""
        key = self.settings.search_api_key.get_secret_value()
        return {
            "headers": {"Authorization": f"Bearer {key}"} if key not in ("", NO_KEY) else {},
            "timeout": self.settings.search_timeout,
            "trust_env": not is_loopback(self.base_url),
        }

    def _search_request(self, queries: Sequence[str], top_k: int, corpus: Names, documents: Names) -> dict[str, Any]:
        if isinstance(queries, str):
            raise ConfigError("queries must be a list of strings, not one string.")
        body: dict[str, Any] = {"queries": list(queries), "top_k": top_k}
        corpus = self.settings.corpus if corpus is None else corpus
        documents = self.settings.documents if documents is None else documents
        if corpus is not None:
            body["search_corpus"] = corpus if isinstance(corpus, str) else list(corpus)
        if self.settings.rerank is not False:
            body["rerank"] = self.settings.rerank
        if documents is not None:
            body["documents"] = [documents] if isinstance(documents, str) else list(documents)
        return body

    def _image_url(self, item_id: str) -> str:
        return f"{self._item_url(item_id)}/image"

    def _frames_url(self, item_id: str, fps: float, max_frames: int, max_pixels: int) -> str:
        asked = urlencode({"fps": f"{fps:g}", "max_frames": max_frames, "max_pixels": max_pixels})
        return f"{self._item_url(item_id)}/frames?{asked}"

    def _item_url(self, item_id: str) -> str:
        name = quote(item_id, safe="")
        if not name.strip("."):  # "." and ".." would climb the path instead of naming an item
            name = name.replace(".", "%2E")
        if not name:
            raise MediaError("An item without an id has no image.")
        return f"{self.base_url}/items/{name}"

    def _frames(self, content: bytes, item_id: str, max_frames: int) -> list[Frame]:
        """Check and convert a frames answer. Raises MediaError where there is no frame in it that can be used."""
        try:
            answer = _FramesAnswer.model_validate(json.loads(content))
            found = [Frame(one.t, base64.b64decode(one.image, validate=True)) for one in answer.frames]
        except (ValueError, RecursionError) as error:
            raise MediaError(
                f"{item_id}: {self.base_url} answered with something that is no list of frames."
            ) from error
        frames = sorted((one for one in found if math.isfinite(one.seconds)), key=lambda one: one.seconds)
        if not frames:
            raise MediaError(f"{item_id}: the clip has no frames.")
        return frames[:max_frames]

    def _hits(self, content: bytes, queries: int, top_k: int) -> list[list[Hit]]:
        """Check and convert a search answer. A damaged entry is left out; an answer of nothing else is an error."""
        try:
            answer = _Answer.model_validate(json.loads(content))
        except (ValueError, RecursionError) as error:
            said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else type(error).__name__
            raise RetrieverError(
                f"The service at {self.settings.search_url} answered with something that is no search result ({said}). "
                "Does search_url name a search service of this project?"
            ) from error
        for note in answer.notes or ():
            log.warning("%s: %s", self.settings.search_url, note[:500])
        if len(answer.results) != queries:
            raise RetrieverError(
                f"{self.settings.search_url} answered {len(answer.results)} lists of hits to {queries} queries."
            )
        return [self._ranking(ranking)[:top_k] for ranking in answer.results]

    def _ranking(self, ranking: _Ranking) -> list[Hit]:
        if len(ranking.score) != len(ranking.data):
            raise RetrieverError(
                f"{self.settings.search_url} answered {len(ranking.data)} hits, but {len(ranking.score)} scores."
            )
        hits: list[Hit] = []
        for score, entry in zip(ranking.score, ranking.data, strict=True):
            try:
                item = Item.model_validate({**entry, "kind": entry.get("kind", entry.get("type"))})
            except ValidationError as error:
                log.warning("left out a damaged hit of %s: %s", self.settings.search_url, error.errors()[0]["msg"])
                continue
            if item.id and math.isfinite(score):
                hits.append(Hit(item=item, score=score))
        if ranking.data and not hits:
            raise RetrieverError(
                f"No hit that the service at {self.settings.search_url} returned can be used: items need an id and "
                "a type. Does search_url name a search service of this project?"
            )
        return hits

    def _refusal(self, response: httpx.Response, content: bytes, item_id: str | None) -> VragError:
        """A status that is no success, as a sentence."""
        try:
            body = json.loads(content)
            said = str(body.get("detail", body)) if isinstance(body, dict) else str(body)
        except (ValueError, RecursionError):
            said = content[:300].decode("utf-8", "replace")
        said = " ".join(said.split())[:300]
        for secret in self.settings.secrets():
            said = said.replace(secret, "***")
        status = response.status_code
        head = f"The search service at {self.base_url} answered {status}" + (f": {said}" if said else "")
        head = head if head.endswith((".", "!", "?")) else head + "."
        if status in (401, 403):
            head += " Set its key: search_api_key=... or VRAG_SEARCH_API_KEY."
        elif item_id is not None and (400 <= status < 500 or status == 501) and status not in BUSY:
            return MediaError(f"{head} So there is no picture of {item_id!r}; was the index changed since the search?")
        elif status == 404:
            head += " Does search_url end with the path of the search endpoint, /search?"
        elif status in BUSY:
            head += f" It stayed busy over {self.settings.search_retries + 1} attempts; try again in a moment."
        elif status >= 500:
            head += " The fault is the service's; see its log."
        return RetrieverError(head)

    def _failure(self, error: httpx.HTTPError) -> RetrieverError:
        """A request that brought no answer, as a sentence."""
        if isinstance(error, httpx.ConnectError):
            # Blocking and async sockets word a refused connection differently.
            refused = re.search(r"refused|all connection attempts failed", str(error), re.I)
            reason = "connection refused" if refused else str(error)
            return RetrieverError(
                f"Nothing answers at {self.base_url} ({reason}). Is the search service running? Start it with "
                "./run_demo.sh search, or set search_url (VRAG_SEARCH_URL) to one that runs."
            )
        if isinstance(error, httpx.TimeoutException):
            return RetrieverError(
                f"The search service at {self.base_url} did not answer within {self.settings.search_timeout:g} s. "
                "It may be building or overloaded: look at its log, or raise search_timeout (VRAG_SEARCH_TIMEOUT)."
            )
        return RetrieverError(
            f"The connection to the search service at {self.base_url} broke ({error or type(error).__name__}). "
            "It was stopped or restarted; see its log, then ask again."
        )

    def _image_type(self, response: httpx.Response, item_id: str) -> None:
        kind = response.headers.get("content-type", "").split(";")[0].strip()
        if not kind.startswith("image/"):
            raise MediaError(f"{self.base_url} answered {kind or 'no content type'}, not an image, for {item_id!r}.")

    def _too_large(self, limit: int, item_id: str | None) -> VragError:
        if item_id is not None:
            return MediaError(f"The image of {item_id!r} has more than the {limit:,} bytes allowed (max_image_bytes).")
        return RetrieverError(f"{self.settings.search_url} answered with more than {limit:,} bytes: no search result.")

    def _pause(self, attempt: int, outcome: httpx.Response | httpx.HTTPError) -> float | None:
        """Seconds until attempt ``attempt + 1`` (from 0), or None when there is no use in another."""
        if attempt >= self.settings.search_retries:
            return None
        if isinstance(outcome, httpx.Response):
            if outcome.status_code not in BUSY:
                return None
            try:
                asked = float(outcome.headers.get("retry-after", ""))
            except ValueError:
                asked = -1.0
            if math.isfinite(asked) and asked >= 0:
                return asked if asked <= LONGEST_PAUSE else None
        elif isinstance(outcome, httpx.ReadTimeout | httpx.WriteTimeout | httpx.PoolTimeout):
            return None  # slow stays slow
        elif not isinstance(outcome, httpx.TransportError):
            return None
        return float(min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE) * random.uniform(0.75, 1.0))


class HttpRetriever(_Http):
    """A blocking client; safe to share between threads. Close it, or use it as a context manager."""

    def __init__(self, settings: SearchSettings | str | None = None) -> None:
        """``settings``, or only the search URL, or neither (then the environment and the defaults decide)."""
        super().__init__(settings)
        self._client = httpx.Client(**self._options())

    def search(
        self, queries: Sequence[str], top_k: int, corpus: Names = None, documents: Names = None
    ) -> list[list[Hit]]:
        """One ranked list of at most ``top_k`` hits per query; corpus and documents are the settings' unless given."""
        body = self._search_request(queries, top_k, corpus, documents)
        _, content = self._ask("POST", self.settings.search_url, MAX_ANSWER_BYTES, json=body)
        return self._hits(content, len(queries), top_k)

    def image(self, item_id: str) -> bytes:
        """The encoded image of an item."""
        url = self._image_url(item_id)
        response, content = self._ask("GET", url, self.settings.max_image_bytes, item_id=item_id)
        self._image_type(response, item_id)
        return content

    def frames(self, item_id: str, fps: float = 1.0, max_frames: int = 32, max_pixels: int = MAX_PIXELS) -> list[Frame]:
        """Frames of a clip, spread evenly over it; JPEGs of at most ``max_pixels``."""
        url = self._frames_url(item_id, fps, max_frames, max_pixels)
        _, content = self._ask("GET", url, self.settings.max_image_bytes, item_id=item_id)
        return self._frames(content, item_id, max_frames)

    def _ask(
        self, method: str, url: str, limit: int, item_id: str | None = None, json: Any = None
    ) -> tuple[httpx.Response, bytes]:
        for attempt in range(self.settings.search_retries + 1):
            outcome: httpx.Response | httpx.HTTPError
            try:
                with self._client.stream(method, url, json=json) as outcome:
                    content = bytearray()
                    for part in outcome.iter_bytes():
                        content += part
                        if len(content) > limit:
                            raise self._too_large(limit, item_id)
                if outcome.is_success:
                    return outcome, bytes(content)
                problem = self._refusal(outcome, bytes(content), item_id)
            except httpx.HTTPError as error:
                problem = self._failure(error)
                outcome = error
            pause = self._pause(attempt, outcome)
            if pause is None:
                raise problem
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncHttpRetriever(_Http):
    """The awaitable client; belongs to one event loop. Close it, or use it as an async context manager."""

    def __init__(self, settings: SearchSettings | str | None = None) -> None:
        """``settings``, or only the search URL, or neither (then the environment and the defaults decide)."""
        super().__init__(settings)
        self._client = httpx.AsyncClient(**self._options())

    async def search(
        self, queries: Sequence[str], top_k: int, corpus: Names = None, documents: Names = None
    ) -> list[list[Hit]]:
        """As :meth:`HttpRetriever.search`."""
        body = self._search_request(queries, top_k, corpus, documents)
        _, content = await self._ask("POST", self.settings.search_url, MAX_ANSWER_BYTES, json=body)
        return self._hits(content, len(queries), top_k)

    async def image(self, item_id: str) -> bytes:
        """The encoded image of an item."""
        url = self._image_url(item_id)
        response, content = await self._ask("GET", url, self.settings.max_image_bytes, item_id=item_id)
        self._image_type(response, item_id)
        return content

    async def frames(
        self, item_id: str, fps: float = 1.0, max_frames: int = 32, max_pixels: int = MAX_PIXELS
    ) -> list[Frame]:
        """As :meth:`HttpRetriever.frames`."""
        url = self._frames_url(item_id, fps, max_frames, max_pixels)
        _, content = await self._ask("GET", url, self.settings.max_image_bytes, item_id=item_id)
        return self._frames(content, item_id, max_frames)

    async def _ask(
        self, method: str, url: str, limit: int, item_id: str | None = None, json: Any = None
    ) -> tuple[httpx.Response, bytes]:
        for attempt in range(self.settings.search_retries + 1):
            outcome: httpx.Response | httpx.HTTPError
            try:
                async with self._client.stream(method, url, json=json) as outcome:
                    content = bytearray()
                    async for part in outcome.aiter_bytes():
                        content += part
                        if len(content) > limit:
                            raise self._too_large(limit, item_id)
                if outcome.is_success:
                    return outcome, bytes(content)
                problem = self._refusal(outcome, bytes(content), item_id)
            except httpx.HTTPError as error:
                problem = self._failure(error)
                outcome = error
            pause = self._pause(attempt, outcome)
            if pause is None:
                raise problem
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
