"""Protocol servers for tests: what stands at the other end of a connection is scripted, the connection itself is real.

with serve(ScriptedModel(["<think>..</think><search>..</search>", ...]).app) as url: ...
with serve(TinyRetriever([page("report_1", "solar power")]).app) as url: ...
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from PIL import Image, ImageDraw

Json = dict[str, Any]


@contextmanager
def serve(app: Any) -> Iterator[str]:
    """Run an ASGI app under uvicorn on a free loopback port, in a thread; gives its URL without a final slash."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", lifespan="off", ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError("the test server did not start")
            time.sleep(0.005)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()


def dead_url() -> str:
    """A URL at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


# The model


@dataclass
class Say:
    """One reply of the scripted model, and how it travels."""

    text: str = ""
    reasoning: str = ""
    reasoning_field: str = "reasoning_content"
    tool_calls: Sequence[Json] = ()
    usage: tuple[int, int] | None = (100, 20)
    piece: int = 7
    """Characters per streamed chunk."""
    finish: str | None = "stop"


@dataclass
class Fault:
    """Something else than a reply. ``body`` travels as it is when it is bytes or a string, else as JSON."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    """Seconds of silence before anything is sent."""
    pieces: Sequence[str] = ()
    """Streamed chunks of content before ``sse``, then the connection is cut, unless ``sse`` ends the stream."""
    sse: Sequence[str] | None = None
    """Data lines that follow the pieces, after which the stream ends in order."""
    pings: bool = False
    """Nothing but what keeps a connection alive, for ten seconds: comments of a stream, blanks before a body of JSON."""


Scripted = str | Say | Fault


class ScriptedModel:
    """An OpenAI-compatible server whose replies are a script: a list, or a function of the request's JSON.

    It is as strict as real servers are: wrong shapes get 422, so a test that passes has spoken the protocol.
    """

    def __init__(
        self, script: Iterable[Scripted] | Callable[[Json], Scripted], models: Sequence[str] = ("scripted",)
    ) -> None:
        lines: Iterator[Scripted] = iter(()) if callable(script) else iter(script)
        self._next = script if callable(script) else lambda _: next(lines)
        self.models = list(models)
        self.requests: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self.open = 0
        """Streams that are being sent right now."""
        self.app = FastAPI()
        self.app.get("/v1/models")(self._models)
        self.app.post("/v1/chat/completions")(self._complete)

    async def _models(self) -> Json:
        return {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        if problem := problem_of(body):
            return JSONResponse({"error": {"message": problem, "type": "invalid_request_error"}}, 422)
        try:
            said = self._next(body)
        except StopIteration:
            return JSONResponse({"error": {"message": "the script of this test has ended"}}, 418)
        said = Say(said) if isinstance(said, str) else said
        if isinstance(said, Fault):
            return await self._fail(said)
        if not body.get("stream"):
            return JSONResponse(_whole(said, body["model"]))
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return StreamingResponse(self._counted(_chunks(said, body["model"], usage)), media_type="text/event-stream")

    async def _fail(self, fault: Fault) -> Response:
        if fault.delay:
            await asyncio.sleep(fault.delay)
        if fault.pings:
            return StreamingResponse(self._pings(), media_type="text/event-stream")
        if fault.pieces or fault.sse is not None:
            return StreamingResponse(self._counted(_broken(fault)), media_type="text/event-stream")
        if isinstance(fault.body, str | bytes):
            return Response(fault.body, fault.status, fault.headers, media_type="application/json")
        return JSONResponse(fault.body, fault.status, fault.headers)

    async def _pings(self) -> Any:
        for _ in range(200):
            yield ": still here\n\n"
            await asyncio.sleep(0.05)

    async def _counted(self, lines: Iterable[str]) -> Any:
        self.open += 1
        try:
            for line in lines:
                yield line
                await asyncio.sleep(0)
        finally:
            self.open -= 1


def problem_of(body: Json) -> str | None:
    """What a strict server would refuse about the request."""
    if not isinstance(body.get("model"), str) or not body["model"]:
        return "model: a string is required"
    for turn in body.get("messages") or [{}]:
        content = turn.get("content")
        if turn.get("role") not in ("system", "user", "assistant", "tool"):
            return f"unknown role {turn.get('role')!r}"
        if turn["role"] in ("assistant", "tool", "system") and not isinstance(content, str):
            return f"content of the {turn['role']} must be a string"
        for part in content if isinstance(content, list) else ():
            if part["type"] == "image_url":
                head, _, data = part["image_url"]["url"].partition(",")
                if head != "data:image/jpeg;base64":
                    return f"not a JPEG data URL: {head[:40]}"
                with Image.open(io.BytesIO(base64.b64decode(data, validate=True))) as image:
                    image.load()
            elif part["type"] != "text" or not isinstance(part["text"], str):
                return f"unknown part {part['type']!r}"
    return None


def pictures(body: Json) -> list[tuple[int, int]]:
    """Sizes of the pictures in a request."""
    sizes = []
    for turn in body["messages"]:
        for part in turn["content"] if isinstance(turn["content"], list) else ():
            if part["type"] == "image_url":
                data = base64.b64decode(part["image_url"]["url"].partition(",")[2])
                with Image.open(io.BytesIO(data)) as image:
                    sizes.append(image.size)
    return sizes


def _whole(said: Say, model: str) -> Json:
    message: Json = {"role": "assistant", "content": said.text}
    if said.reasoning:
        message[said.reasoning_field] = said.reasoning
    if said.tool_calls:
        message["tool_calls"] = list(said.tool_calls)
    out: Json = {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": said.finish}],
    }
    if said.usage:
        out["usage"] = _usage(said.usage)
    return out


def _usage(usage: tuple[int, int]) -> Json:
    return {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}


def _event(model: str, delta: Json | None, finish: str | None = None, usage: tuple[int, int] | None = None) -> str:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    chunk: Json = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": model, "choices": choices}
    if usage is not None:
        chunk["usage"] = _usage(usage)
    return f"data: {json.dumps(chunk)}\n\n"


def _chunks(said: Say, model: str, usage: bool) -> Iterator[str]:
    yield _event(model, {"role": "assistant", "content": ""})
    for name, text in ((said.reasoning_field, said.reasoning), ("content", said.text)):
        for start in range(0, len(text), said.piece):
            yield _event(model, {name: text[start : start + said.piece]})
    for index, call in enumerate(said.tool_calls):
        function = call["function"]
        first = {"index": index, "id": call["id"], "type": "function", "function": {"name": function["name"]}}
        yield _event(model, {"tool_calls": [first]})
        arguments = function["arguments"]
        for start in range(0, len(arguments), said.piece):
            part = {"index": index, "function": {"arguments": arguments[start : start + said.piece]}}
            yield _event(model, {"tool_calls": [part]})
    if said.finish is not None:
        yield _event(model, {}, finish=said.finish)
    if usage and said.usage:
        yield _event(model, None, usage=said.usage)
    yield "data: [DONE]\n\n"


def _broken(fault: Fault) -> Iterator[str]:
    for piece in fault.pieces:
        yield _event("scripted", {"content": piece})
    if fault.sse is None:
        raise ConnectionAbortedError("the script cuts the connection here")
    for line in fault.sse:
        yield f"data: {line}\n\n"


# The retriever


@dataclass
class Entry:
    """An item of the tiny retriever: its wire form, the words that find it, its image."""

    data: Json
    words: str
    image: bytes = b""
    image_type: str = "image/jpeg"
    frames: Sequence[tuple[float, bytes]] = ()
    """Of a clip: seconds and JPEG."""


def page_image(text: str = "", size: tuple[int, int] = (800, 1000), colour: str = "white") -> bytes:
    """A page with some print on it, as JPEG."""
    image = Image.new("RGB", size, colour)
    draw = ImageDraw.Draw(image)
    for row in range(0, size[1], 40):
        draw.text((20, row + 10), text or "lorem ipsum", fill="black")
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def page(item_id: str, words: str, size: tuple[int, int] = (800, 1000)) -> Entry:
    document, _, number = item_id.rpartition("_")
    data = {
        "type": "image",
        "id": item_id,
        "document": f"{document}.pdf",
        "page": int(number),
        "width": size[0],
        "height": size[1],
        "file_path": f"/items/{item_id}/image",
        "metadata": {},
    }
    return Entry(data, words, page_image(words, size))


class TinyRetriever:
    """The search service's wire with a ranking by shared words. ``faults`` are answered first, one per request."""

    def __init__(self, entries: Iterable[Entry], api_key: str | None = None) -> None:
        self.entries = {entry.data["id"]: entry for entry in entries}
        self.api_key = api_key
        self.faults: list[Fault | None] = []
        self.requests: list[Json] = []
        """Bodies of the searches."""
        self.loaded: list[str] = []
        """Ids of the images that were asked for."""
        self.app = FastAPI()
        self.app.post("/search")(self._search)
        self.app.get("/items/{item_id:path}/image")(self._image)
        self.app.get("/items/{item_id:path}/frames")(self._frames)

    async def _refused(self, request: Request) -> Response | None:
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            if fault.delay:
                await asyncio.sleep(fault.delay)
            if isinstance(fault.body, str | bytes):
                return Response(fault.body, fault.status, fault.headers, media_type="application/json")
            return JSONResponse(fault.body, fault.status, fault.headers)
        if self.api_key is not None and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return JSONResponse({"detail": "This service asks for an API key."}, 401)
        return None

    async def _search(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        if refused := await self._refused(request):
            return refused
        return JSONResponse({"results": [self._ranking(query, body) for query in body["queries"]]})

    def _ranking(self, query: str, body: Json) -> Json:
        asked = set(re.findall(r"\w+", query.lower()))
        only = body.get("documents")
        scored = [
            (float(len(asked & set(re.findall(r"\w+", entry.words.lower())))), entry.data)
            for entry in self.entries.values()
            if not only or entry.data["document"] in only
        ]
        best = sorted(scored, key=lambda pair: -pair[0])[: body.get("top_k", 3)]
        return {
            "score": [score for score, _ in best],
            "indice": list(range(len(best))),
            "data": [data for _, data in best],
        }

    async def _image(self, item_id: str, request: Request) -> Response:
        self.loaded.append(item_id)
        if refused := await self._refused(request):
            return refused
        entry = self.entries.get(item_id)
        if entry is None:
            return JSONResponse({"detail": f"There is no item {item_id!r}."}, 404)
        return Response(entry.image, media_type=entry.image_type)

    async def _frames(
        self, item_id: str, request: Request, fps: float = 1.0, max_frames: int = 32, max_pixels: int = 401_408
    ) -> Response:
        self.loaded.append(item_id)
        if refused := await self._refused(request):
            return refused
        entry = self.entries.get(item_id)
        if entry is None or entry.data["type"] != "video":
            return JSONResponse({"detail": f"There is no clip {item_id!r}."}, 404)
        frames = [{"t": at, "image": base64.b64encode(image).decode()} for at, image in entry.frames[:max_frames]]
        return JSONResponse({"frames": frames})


def clip(item_id: str, words: str, frames: int = 8, size: tuple[int, int] = (640, 360)) -> Entry:
    """A clip with a frame every second, each with its number on it."""
    data = {"type": "video", "id": item_id, "document": f"{item_id}.mp4", "duration": float(frames), "metadata": {}}
    pictures = [(float(number), page_image(f"{words} {number}", size)) for number in range(frames)]
    return Entry(data, words, frames=pictures)


def passage(item_id: str, text: str) -> Entry:
    return Entry({"type": "text", "id": item_id, "document": f"{item_id}.md", "content": text, "metadata": {}}, text)
