"""The extractive reader: an OpenAI-compatible server that stands where vLLM would stand, without a model.

    python -m demo.reader --port 8002

It is not a language model. It sees what a model would see, the messages and the pictures in them, reads the pictures by
OCR, and writes the same tags or tool calls: it searches, crops the lines that match the question best or keeps the pages
that have them, and answers with what it read there, or says that it found nothing (:mod:`demo.reading`). It knows nothing
else: neither the index nor any file.

``POST /v1/chat/completions`` (streaming and not), ``GET /v1/models``, ``GET /health``. Pictures are taken as data URLs
only; no URL is ever fetched. Nothing is kept between requests but the OCR of pictures, by their content.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import binascii
import hmac
import json
import logging
import os
import re
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # python demo/reader.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from demo.reading import dialogue, graph, tags, tools
from demo.reading.chat import ChatMessage
from demo.reading.sight import MAX_IMAGE_BYTES, Sight
from vrag.errors import MediaError
from vrag.settings import is_loopback

logger = logging.getLogger(__name__)

MODEL = "extractive-reader"
MAX_BODY_BYTES = 96 * 2**20
MAX_MESSAGES = 1_000
MAX_TEXT_CHARS = 4_000_000
#: Pixels per visual token, as Qwen2.5-VL counts them: usage is an estimate in the units of the model that is stood in for.
PIXELS_PER_TOKEN = 28 * 28
_DATA_URL = re.compile(r"data:image/[\w.+-]*(?:;[\w.+-]+=[\w.+-]*)*;base64,", re.IGNORECASE)
_ROLES = {"system": "system", "developer": "system", "user": "user", "tool": "user", "assistant": "assistant"}


class BadRequest(Exception):
    """The client's mistake; ``str(error)`` says what to do, ``param`` which field it is about."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.status, self.code = param, status, code


@dataclass(frozen=True)
class Chat:
    """A checked request."""

    model: str
    messages: tuple[ChatMessage, ...]
    tools: tuple[dict[str, Any], ...] = ()
    stream: bool = False
    include_usage: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Completion:
    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    reasoning: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()

    @property
    def usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


def complete(chat: Chat, sight: Sight) -> Completion:
    """The reader's reply to a request. Blocking: it may read pictures. Raises MediaError for one that is damaged."""
    written = _write(chat, sight)
    text, calls, reason = written.text, written.tool_calls, "tool_calls" if written.tool_calls else "stop"
    for stop in chat.stop:
        if stop and stop in text:
            text = text[: text.index(stop)]
    arguments = "".join(call["function"]["arguments"] for call in calls)
    words = list(_tokens(arguments or text))
    if chat.max_tokens is not None and len(words) > chat.max_tokens:
        words, reason = words[: chat.max_tokens], "length"
        if calls:
            calls = ({**calls[0], "function": {**calls[0]["function"], "arguments": "".join(words)}},)
        else:
            text = "".join(words)
    prompt = sum(len(list(_tokens(message.text))) + 4 for message in chat.messages)
    prompt += sum(_visual_tokens(sight, image) for message in chat.messages for image in message.images)
    said = len(words) + len(list(_tokens(written.reasoning)))
    return Completion(text, reason, prompt, said, written.reasoning, calls)


def _write(chat: Chat, sight: Sight) -> tools.Written:
    """The reply in the grammar that the conversation speaks."""
    session = tools.read(chat.messages, chat.tools)
    if session is not None:
        return tools.write(graph.options(session.talk, sight.read), session, number=len(chat.messages))
    conversation, _ = tags.read(chat.messages)
    return tools.Written(tags.write(dialogue.decide(conversation, sight.read), conversation.demand))


def _visual_tokens(sight: Sight, image: bytes) -> int:
    width, height = sight.read(image).size
    return max(1, round(width * height / PIXELS_PER_TOKEN))


def _tokens(text: str) -> Iterator[str]:
    """Pieces of about a token: short runs of letters with the blank before them, single Chinese characters, signs."""
    return (match.group() for match in re.finditer(r"\s?[A-Za-z]{1,6}|\s?\d{1,3}|\s+|[^A-Za-z\d\s]", text))


def create_app(sight: Sight | None = None, api_key: str | None = None, warm: bool = True) -> FastAPI:
    """The server as an ASGI application; ``api_key`` set means that every request but /health has to bear it."""
    sight = sight or Sight()
    # OCR uses all cores for one picture, so a second worker only serves what the cache has while the first one reads.
    workers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="reader")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if warm:
            workers.submit(_warm, sight)
        yield
        workers.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(title="Extractive reader", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    started = int(time.time())

    @app.exception_handler(BadRequest)
    async def _bad(_: Request, error: BadRequest) -> JSONResponse:
        return _error(str(error), error.status, error.param, error.code)

    @app.exception_handler(404)
    @app.exception_handler(405)
    async def _no_route(request: Request, _: Exception) -> JSONResponse:
        return _error(f"There is no {request.method} {request.url.path} here. Use POST /v1/chat/completions.", 404)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok", "model": MODEL}

    @app.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        _authorise(request, api_key)
        card = {"id": MODEL, "object": "model", "created": started, "owned_by": "vrag"}
        return {"object": "list", "data": [card]}

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        _authorise(request, api_key)
        chat = parse(await _body(request))
        try:
            done = await asyncio.get_running_loop().run_in_executor(workers, complete, chat, sight)
        except MediaError as error:
            raise BadRequest(str(error), "messages") from error
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": chat.model}
        if chat.stream:
            return StreamingResponse(_events(head, chat, done), media_type="text/event-stream")
        message: dict[str, Any] = {"role": "assistant", "content": done.text, "refusal": None}
        if done.tool_calls:
            message.update(content=None, reasoning_content=done.reasoning, tool_calls=list(done.tool_calls))
        choice = {"index": 0, "message": message, "finish_reason": done.finish_reason, "logprobs": None}
        return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": done.usage})

    return app


def parse(body: bytes) -> Chat:
    """Check a request's body. Raises BadRequest with a sentence for everything that is not as the protocol has it."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"The body is not JSON: {error}.") from error
    if not isinstance(data, dict):
        raise BadRequest("The body has to be a JSON object with 'model' and 'messages'.")
    model = data.get("model", MODEL)
    if model != MODEL:
        raise BadRequest(f"There is no model {model!r} here, only {MODEL!r}.", "model", 404, "model_not_found")
    if data.get("n") not in (None, 1):
        raise BadRequest("n has to be 1: the reader is deterministic.", "n")
    options = data.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadRequest("stream_options has to be an object.", "stream_options")
    stop = data.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(item, str) for item in stop):
        raise BadRequest("stop has to be a string or a list of strings.", "stop")
    limit = data.get("max_completion_tokens", data.get("max_tokens"))
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise BadRequest("max_tokens has to be a whole number above 0.", "max_tokens")
    stream = bool(data.get("stream"))
    return Chat(
        model=model,
        messages=_messages(data.get("messages")),
        tools=_tools(data),
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        max_tokens=limit,
        stop=tuple(stop),
    )


def _tools(data: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    given = data.get("tools") or []
    if not isinstance(given, list) or not all(isinstance(tool, dict) for tool in given):
        raise BadRequest("tools has to be a list of objects.", "tools")
    choice = data.get("tool_choice", "auto")
    if choice not in (None, "auto", "required", "none"):
        raise BadRequest("tool_choice has to be 'auto', 'required' or 'none'.", "tool_choice")
    return () if choice == "none" else tuple(given)


def _messages(messages: Any) -> tuple[ChatMessage, ...]:
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages has to be a list with at least one message.", "messages")
    if len(messages) > MAX_MESSAGES:
        raise BadRequest(f"There are {len(messages):,} messages, more than the {MAX_MESSAGES:,} allowed.", "messages")
    found = [_message(index, message) for index, message in enumerate(messages)]
    if sum(len(message.text) for message in found) > MAX_TEXT_CHARS:
        raise BadRequest(f"The messages have more than the {MAX_TEXT_CHARS:,} characters allowed.", "messages")
    return tuple(found)


def _message(index: int, message: Any) -> ChatMessage:
    where = f"messages[{index}]"
    name = message.get("role") if isinstance(message, dict) else None
    role = _ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise BadRequest(f"{where} has to be an object with a 'role' among {', '.join(_ROLES)}.", where)
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadRequest(f"{where}.tool_calls has to be a list of objects.", where)
    content = message.get("content")
    if content is None or isinstance(content, str):
        return ChatMessage(role, (content,) if content else (), tuple(calls))  # type: ignore[arg-type]
    if not isinstance(content, list):
        raise BadRequest(f"{where}.content has to be a string or a list of parts.", where)
    parts: list[str | bytes] = []
    for number, part in enumerate(content):
        place = f"{where}.content[{number}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            parts.append(part["text"])
        elif kind == "image_url":
            parts.append(_image(part.get("image_url"), place))
        else:
            raise BadRequest(f"{place} has to be a part of type 'text' or 'image_url'.", place)
    return ChatMessage(role, tuple(parts), tuple(calls))  # type: ignore[arg-type]


def _image(value: Any, place: str) -> bytes:
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str):
        raise BadRequest(f"{place}.image_url has to be an object with a 'url'.", place)
    head = _DATA_URL.match(url[:200])
    if head is None:
        raise BadRequest(
            f"{place}: pictures are taken as data URLs (data:image/jpeg;base64,...) only; none is fetched.", place
        )
    if (len(url) - head.end()) * 3 // 4 > MAX_IMAGE_BYTES + 2:
        raise BadRequest(f"{place}: the picture has more than the {MAX_IMAGE_BYTES:,} bytes allowed.", place)
    try:
        return base64.b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"{place}: the picture is not valid base64.", place) from error


async def _body(request: Request) -> bytes:
    """The whole body, given up as soon as it is longer than allowed."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise BadRequest(f"The request has more than the {MAX_BODY_BYTES:,} bytes allowed.", status=413)
    return bytes(body)


def _authorise(request: Request, api_key: str | None) -> None:
    given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    if api_key and not hmac.compare_digest(given.encode(), api_key.encode()):
        raise BadRequest(
            "The API key is missing or wrong: send 'Authorization: Bearer KEY'.", status=401, code="invalid_api_key"
        )


def _error(message: str, status: int, param: str | None = None, code: str | None = None) -> JSONResponse:
    kind = {401: "authentication_error", 404: "not_found_error"}.get(status, "invalid_request_error")
    return JSONResponse({"error": {"message": message, "type": kind, "param": param, "code": code}}, status)


async def _events(head: dict[str, Any], chat: Chat, done: Completion) -> AsyncIterator[str]:
    """The reply as server-sent events: the role, the text piece by piece, the end, and the usage if it was asked for."""

    def event(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        chunk: dict[str, Any] = {**head, "object": "chat.completion.chunk", "choices": [choice]}
        if chat.include_usage:
            chunk["usage"] = None
        return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"

    yield event({"role": "assistant", "content": ""})
    for piece in _pieces(done.reasoning):
        yield event({"reasoning_content": piece})
    for piece in _pieces(done.text):
        yield event({"content": piece})
    for index, call in enumerate(done.tool_calls):
        function = call["function"]
        yield event({"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]})
        for piece in _pieces(function["arguments"]):
            yield event({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield event({}, done.finish_reason)
    if chat.include_usage:
        chunk = {**head, "object": "chat.completion.chunk", "choices": [], "usage": done.usage}
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"


def _pieces(text: str) -> list[str]:
    return re.findall(r"\s*\S+\s*?", text) or ([text] if text else [])


def _warm(sight: Sight) -> None:
    try:
        sight.warm()
    except Exception:
        logger.exception("the recogniser could not be loaded; the first picture will say more")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m demo.reader", description="The extractive reader: no language model."
    )
    parser.add_argument("--host", default="127.0.0.1", help="any other than loopback needs an API key")
    parser.add_argument("--port", type=int, default=8002)
    parser.add_argument("--cache-dir", type=Path, help="keep the OCR of pictures in this folder")
    parser.add_argument(
        "--no-warm", action="store_true", help="load the recogniser with the first picture, not at the start"
    )
    args = parser.parse_args(argv)
    api_key = os.environ.get("VRAG_READER_API_KEY") or None
    if not is_loopback(f"http://{args.host}") and not api_key:
        print(
            f"{args.host} can be reached from other machines: set VRAG_READER_API_KEY to a key first.", file=sys.stderr
        )
        return 2
    app = create_app(Sight(args.cache_dir), api_key, warm=not args.no_warm)
    uvicorn.run(app, host=args.host, port=args.port, log_level="warning")
    return 0


if __name__ == "__main__":
    sys.exit(main())
