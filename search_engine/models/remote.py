"""Embeddings from a server that speaks OpenAI's protocol, such as ``vllm serve … --runner pooling``.

With ``style="messages"`` (vLLM's extension for chat models) the server gets the very messages that
:mod:`search_engine.models.qwen3_vl` builds, and pictures already resized as that module resizes them, without loss; its vectors are
then those of the local model. With ``style="input"`` it gets plain strings, as any text embedding server takes them.

The pixel limits travel with every picture too, for servers that let a request set them (vLLM: ``--trust-request-mm-kwargs``). Another
one has to be started with them, or it enlarges small pictures by limits of its own:
``--mm-processor-kwargs '{"size": {"shortest_edge": 4096, "longest_edge": 1843200}}'``.

A server samples clips by rules of its own. Their vectors would not be comparable with local ones, so a clip is refused unless
``clips=True`` says that the whole index comes from this server.
"""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import numpy as np
from PIL import Image

from search_engine.models.base import Document, Embedded, Query, Vectors
from search_engine.models.instructions import DOCUMENT_INSTRUCTION, QUERY_INSTRUCTION, punctuated
from search_engine.models.resizing import Area, ImageSource, open_image, rgb_at, smart_resize
from vrag.errors import ConfigError, MediaError, ModelError

log = logging.getLogger(__name__)

_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT = 30.0


class RemoteEmbedder:
    """:class:`search_engine.models.base.Embedder` over ``{base_url}/embeddings``.

    ``model``: the name that the server knows it by (default: the only one that ``/models`` lists). ``concurrency``: requests under way
    at once. ``timeout``: seconds for one answer. ``retries``: how often a request is repeated that failed for want of a server,
    with doubling pauses or as long as the server asks for. ``dimension``: keep the first so many numbers. ``factor`` is the side of a
    visual token in pixels.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        api_key: str = "EMPTY",
        style: Literal["messages", "input"] = "messages",
        dimension: int | None = None,
        query_instruction: str | None = QUERY_INSTRUCTION,
        document_instruction: str = DOCUMENT_INSTRUCTION,
        image_tokens: tuple[int, int] = (4, 1800),
        factor: int = 32,
        text_with_media: bool = False,
        clips: bool = False,
        concurrency: int = 8,
        timeout: float = 120.0,
        retries: int = 4,
        pause: float = 0.5,
    ) -> None:
        if urlsplit(base_url).scheme not in ("http", "https") or not urlsplit(base_url).netloc:
            raise ConfigError(f"{base_url} is not the address of a server, such as http://127.0.0.1:8003/v1.")
        if style not in ("messages", "input"):
            raise ConfigError(f"style has to be messages or input, not {style!r}.")
        if concurrency < 1 or retries < 0:
            raise ConfigError("concurrency has to be at least 1 and retries not negative.")
        self.base_url = base_url.rstrip("/")
        self.style = style
        self.query_instruction, self.document_instruction = query_instruction, document_instruction
        self.text_with_media, self.clips = text_with_media, clips
        self._wanted_dimension = dimension
        self._area = Area(image_tokens[0] * factor**2, image_tokens[1] * factor**2)
        self._factor = factor
        self._retries, self._pause = retries, pause
        self._slots = threading.BoundedSemaphore(concurrency)
        self._concurrency = concurrency
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(timeout, connect=min(timeout, 10.0)),
            limits=httpx.Limits(max_connections=concurrency),
        )
        self._model = model
        self._sends_limits = True

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> RemoteEmbedder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @cached_property
    def model(self) -> str:
        if self._model is not None:
            return self._model
        listed = [entry.get("id") for entry in self._request("GET", "/models", None).get("data", [])]
        if len(listed) != 1 or not isinstance(listed[0], str):
            raise ConfigError(f"{self.base_url} serves {len(listed)} models ({listed}); say which one with model=.")
        return listed[0]

    @property
    def name(self) -> str:
        return self.model.rstrip("/").rsplit("/", 1)[-1]

    @cached_property
    def dimension(self) -> int:
        full = len(self._embed(self._body("NULL", None, None, self.document_instruction)))
        return self._kept(full)

    @property
    def sees_pictures(self) -> bool:
        return self.style == "messages"

    @property
    def fingerprint(self) -> str:
        if self.style == "input":
            return "remote:input"
        instruction = hashlib.sha256(self.document_instruction.encode()).hexdigest()[:8]
        extra = ",text+media" if self.text_with_media else ""
        return f"remote:messages,instruction={instruction},image={self._area.least}-{self._area.most}{extra}"

    def embed_documents(self, documents: Sequence[Document]) -> Embedded:
        """A document that the server refuses fails alone. Raises ModelError when the server itself is out of reach."""
        vectors = np.zeros((len(documents), self.dimension), dtype=np.float32)
        failed: dict[int, str] = {}

        def one(row: int) -> None:
            document = documents[row]
            media = document.image is not None or document.video is not None
            text = document.text if self.text_with_media or not media else None
            try:
                vectors[row] = self._vector(text, document.image, document.video, self.document_instruction)
            except MediaError as error:
                failed[row] = str(error)

        self._each(one, len(documents))
        return Embedded(vectors, failed)

    def embed_queries(self, queries: Sequence[Query]) -> Vectors:
        """Raises MediaError for a query that the server refuses, ModelError when it is out of reach."""
        vectors = np.zeros((len(queries), self.dimension), dtype=np.float32)
        instruction = punctuated(self.query_instruction) or self.document_instruction

        def one(row: int) -> None:
            vectors[row] = self._vector(queries[row].text, queries[row].image, None, instruction)

        self._each(one, len(queries))
        return vectors

    def _each(self, work: Any, count: int) -> None:
        """Several at once; the first error stops what has not begun."""
        with ThreadPoolExecutor(self._concurrency) as pool:
            futures = [pool.submit(work, row) for row in range(count)]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _vector(self, text: str | None, image: ImageSource | None, video: Path | None, instruction: str) -> Vectors:
        vector = np.asarray(self._embed(self._body(text, image, video, instruction)), dtype=np.float32)
        vector = vector[: self._kept(len(vector))]
        norm = float(np.linalg.norm(vector))
        if not np.isfinite(norm) or norm == 0:
            raise MediaError("the server answered with a vector that cannot be normalised.")
        if len(vector) != self.dimension:
            raise ModelError(
                f"{self.base_url} answered with {len(vector)} numbers after {self.dimension}; is it one model?"
            )
        scaled: Vectors = vector / norm
        return scaled

    def _kept(self, full: int) -> int:
        wanted = self._wanted_dimension
        if wanted is not None and not 1 <= wanted <= full:
            raise ConfigError(f"{self.name} has {full} dimensions; {wanted} cannot be kept of them.")
        return wanted or full

    def _body(
        self, text: str | None, image: ImageSource | None, video: Path | None, instruction: str
    ) -> dict[str, Any]:
        if self.style == "input":
            if image is not None or video is not None:
                raise MediaError("this server is used for text only; style='messages' also sends pictures.")
            return {"model": self.model, "input": text or "", "encoding_format": "base64"}
        content: list[dict[str, Any]] = []
        if video is not None:
            if not self.clips:
                raise MediaError(
                    "a server samples clips in its own way, and their vectors would not match local ones; clips=True accepts that."
                )
            content.append(
                {"type": "video_url", "video_url": {"url": _data_url(Path(video).read_bytes(), "video/mp4")}}
            )
        if image is not None:
            content.append({"type": "image_url", "image_url": {"url": self._picture(image)}})
        if text or not content:
            content.append({"type": "text", "text": text or "NULL"})
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": instruction}]},
                {"role": "user", "content": content},
            ],
            "add_generation_prompt": True,
            "encoding_format": "base64",
        }
        if image is not None and self._sends_limits:
            # The server's own limits may be others; within these nothing is resized again.
            body["mm_processor_kwargs"] = {"size": {"shortest_edge": self._area.least, "longest_edge": self._area.most}}
        return body

    def _picture(self, image: ImageSource) -> str:
        opened = open_image(image)
        size = smart_resize(*opened.size, self._factor, self._area)
        if opened is not image:
            opened.close()
        buffer = io.BytesIO()
        resized: Image.Image = rgb_at(image, [size])
        resized.save(buffer, "PNG", compress_level=1)
        return _data_url(buffer.getvalue(), "image/png")

    def _embed(self, body: dict[str, Any]) -> list[float] | Vectors:
        try:
            answer = self._request("POST", "/embeddings", body)
        except MediaError as error:
            if "mm_processor_kwargs" not in body or "mm_processor_kwargs" not in str(error):
                raise
            if self._sends_limits:
                self._sends_limits = False
                log.warning(
                    '%s lets no request set pixel limits; start it with --mm-processor-kwargs \'{"size": {"shortest_edge": %d, '
                    '"longest_edge": %d}}\' so that small pictures are not enlarged.',
                    self.base_url,
                    self._area.least,
                    self._area.most,
                )
            answer = self._request("POST", "/embeddings", {k: v for k, v in body.items() if k != "mm_processor_kwargs"})
        try:
            value = answer["data"][0]["embedding"]
            if isinstance(value, str):
                vector: Vectors = np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4")
                return vector
            if not isinstance(value, list) or not value:
                raise ValueError("the embedding is no list of numbers")
            return [float(number) for number in value]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ModelError(
                f"{self.base_url}/embeddings answered something else than an embedding: {error}"
            ) from error

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """One request, repeated while the server is away or busy. 4xx about the content is the content's fault: MediaError."""
        reason = ""
        for attempt in range(self._retries + 1):
            wait = self._pause * 2**attempt * (0.5 + random.random())
            try:
                with self._slots:
                    response = self._client.request(method, self.base_url + path, json=body)
            except httpx.HTTPError as error:
                reason = str(error) or type(error).__name__
            else:
                if response.status_code < 300:
                    return _object(response, self.base_url + path)
                reason = f"{response.status_code}: {_detail(response)}"
                if response.status_code in (400, 413, 415, 422):
                    raise MediaError(f"the embeddings server refuses it ({reason})")
                if response.status_code not in _RETRIED:
                    raise ModelError(f"{self.base_url}{path} answers {reason}. Check address, model and key.")
                wait = _asked_wait(response) or wait
            if attempt < self._retries:
                log.warning("%s%s: %s; trying again", self.base_url, path, reason)
                time.sleep(min(wait, _LONGEST_WAIT))
        raise ModelError(
            f"{self.base_url}{path} did not answer in {self._retries + 1} tries ({reason}). Is the server up?"
        )


def _data_url(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _object(response: httpx.Response, address: str) -> dict[str, Any]:
    try:
        value = response.json()
    except ValueError as error:
        raise ModelError(f"{address} answered something else than JSON; is it an embeddings server?") from error
    if not isinstance(value, dict):
        raise ModelError(f"{address} answered JSON that is no object; is it an embeddings server?")
    return value


def _detail(response: httpx.Response) -> str:
    try:
        value = response.json()
        error = value.get("error", value)
        detail = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        detail = response.text
    return str(detail)[:300]


def _asked_wait(response: httpx.Response) -> float:
    """Seconds of a ``Retry-After`` header, in either of its two forms; 0 without one."""
    header = response.headers.get("retry-after", "")
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (TypeError, ValueError):
        return 0.0
