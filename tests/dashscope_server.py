"""A server that plays DashScope's OpenAI-compatible mode: its paths, its key, its thinking switch, its stream, its errors.

with serve(DashScope(["..."]).app) as url:
    VimRAG(base_url=f"{url}/compatible-mode/v1", api_key=KEY, thinking_switch="dashscope", ...)

What it does differently from a plain OpenAI server: thinking is a top-level field of the request and on by default for
the hybrid models; reasoning arrives in ``reasoning_content`` with ``content`` null, before the text; the usage is a chunk
of its own without choices; errors carry a ``code`` and a ``request_id``, and may arrive inside of a stream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from tests.servers import Json, problem_of

KEY = "sk-of-the-dashscope-test"
MODEL = "qwen3.5-plus"


@dataclass
class Thinks:
    """A reply: what is thought (left out when thinking is off) and said. ``cut``: the connection breaks in the middle."""

    text: str
    thought: str = "Let me see."
    usage: tuple[int, int] = (1000, 50)
    cut: bool = False
    tool: tuple[str, Json] | None = None
    """A native tool call: name and arguments."""


@dataclass
class Refuses:
    """An error: by status, or with 200 as a payload inside of the stream."""

    status: int
    code: str
    message: str
    headers: dict[str, str] | None = None


LIMITED = Refuses(429, "limit_requests", "You exceeded your current requests limit.", {"Retry-After": "0"})
INSPECTED = Refuses(200, "data_inspection_failed", "Input data may contain inappropriate content.")
TOO_LONG = Refuses(400, "invalid_parameter_error", "Range of input length should be [1, 129024]")

Line = str | Thinks | Refuses


class DashScope:
    """Plays one line of the script per request, or what a function makes of the request."""

    def __init__(self, script: Iterable[Line] | Callable[[Json], Line]) -> None:
        lines: Any = iter(()) if callable(script) else iter(script)
        self._next = script if callable(script) else lambda _: next(lines)
        self.requests: list[Json] = []
        self.app = FastAPI()
        self.app.post("/compatible-mode/v1/chat/completions")(self._complete)

    async def _complete(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return _error(Refuses(401, "invalid_api_key", "Incorrect API key provided."))
        body = await request.json()
        self.requests.append(body)
        if problem := problem_of(body):
            return _error(Refuses(400, "invalid_parameter_error", problem))
        if body["model"] != MODEL:
            return _error(Refuses(404, "model_not_found", f"The model `{body['model']}` does not exist."))
        line = self._next(body)
        line = Thinks(line) if isinstance(line, str) else line
        if isinstance(line, Refuses) and line.status != 200:
            return _error(line)
        return StreamingResponse(self._stream(line, body), media_type="text/event-stream")

    async def _stream(self, line: Thinks | Refuses, body: Json) -> AsyncIterator[str]:
        if isinstance(line, Refuses):
            yield _chunk({"content": "", "reasoning_content": None, "role": "assistant"})
            yield f"data: {json.dumps(_payload(line))}\n\n"
            return
        yield _chunk({"content": None, "reasoning_content": "", "role": "assistant"})
        if body.get("enable_thinking", True):
            for piece in _pieces(line.thought):
                yield _chunk({"content": None, "reasoning_content": piece})
        for number, piece in enumerate(_pieces(line.text)):
            if line.cut and number == 2:
                raise ConnectionAbortedError("the script cuts the connection here")
            yield _chunk({"content": piece, "reasoning_content": None})
            await asyncio.sleep(0)
        if line.tool is not None:
            name, arguments = line.tool
            call = {"index": 0, "id": "call_0123", "type": "function", "function": {"name": name, "arguments": ""}}
            yield _chunk({"content": None, "tool_calls": [call]})
            for piece in _pieces(json.dumps(arguments)):
                part = {"index": 0, "id": "", "type": "function", "function": {"name": None, "arguments": piece}}
                yield _chunk({"content": None, "tool_calls": [part]})
        yield _chunk({"content": "", "reasoning_content": None}, "tool_calls" if line.tool else "stop")
        if (body.get("stream_options") or {}).get("include_usage"):
            prompt, reply = line.usage
            usage = {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply}
            yield _chunk(None, usage=usage)
        yield "data: [DONE]\n\n"


def _pieces(text: str, size: int = 9) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _chunk(delta: Json | None, finish: str | None = None, usage: Json | None = None) -> str:
    choices = [] if delta is None else [{"delta": delta, "finish_reason": finish, "index": 0, "logprobs": None}]
    chunk = {
        "choices": choices,
        "object": "chat.completion.chunk",
        "usage": usage,
        "created": 1_760_000_000,
        "system_fingerprint": None,
        "model": MODEL,
        "id": "chatcmpl-0123",
    }
    return f"data: {json.dumps(chunk)}\n\n"


def _payload(refusal: Refuses) -> Json:
    error = {"message": refusal.message, "type": "invalid_request_error", "param": None, "code": refusal.code}
    return {"error": error, "request_id": "0123-4567"}


def _error(refusal: Refuses) -> Response:
    return JSONResponse(_payload(refusal), refusal.status, refusal.headers)
