"""The chat model client: any OpenAI-compatible endpoint (vLLM, DashScope, SGLang, llama.cpp, the extractive reader).

    with ChatModel(ChatSettings(base_url=..., model=...)) as chat:
        for piece in chat.stream(Generate(messages)):
            ...                       # Piece("content" | "reasoning", text) while it streams, then one Generation

Pictures travel as JPEG data URLs inside the request; the endpoint is never given a URL to fetch. Bounded retries and
``Retry-After`` are the SDK's. Whatever goes wrong on the way is a :class:`vrag.errors.ModelError` that says what to do;
whatever the model *says* is a reply, cut off at ``max_reply_chars``.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import anyio

from vrag.chat_errors import explain
from vrag.episode import Generate, Generation
from vrag.errors import ModelError
from vrag.messages import Message, well_formed
from vrag.settings import ChatSettings, is_loopback

if TYPE_CHECKING:
    from typing_extensions import Self

    from vrag.pages import View


class Piece(NamedTuple):
    """A part of a reply while it streams."""

    channel: Literal["reasoning", "content"]
    text: str


class Chat(Protocol):
    """What a blocking driver needs: the pieces of a reply, then the whole of it. Raises ModelError and nothing else."""

    def stream(self, request: Generate) -> Generator[Piece | Generation, None, None]: ...


class AsyncChat(Protocol):
    """The same, awaitable."""

    def stream(self, request: Generate) -> AsyncGenerator[Piece | Generation, None]: ...


class _Client:
    """What the blocking and the awaitable client share: the request's fields and the check of the model's name."""

    def __init__(self, settings: ChatSettings | None) -> None:
        self.settings = settings or ChatSettings()
        self._model = self.settings.model

    def _options(self) -> dict[str, Any]:
        """Arguments of the SDK's client. No proxy stands between us and this machine's own servers."""
        import openai

        settings = self.settings
        return {
            "base_url": settings.base_url,
            "api_key": settings.api_key.get_secret_value(),
            "timeout": openai.Timeout(settings.read_timeout, connect=settings.connect_timeout),
            "max_retries": settings.retries,
        }

    def _payload(self, request: Generate) -> dict[str, Any]:
        settings = self.settings
        payload: dict[str, Any] = {
            "messages": wire_messages(request.messages),
            "temperature": settings.temperature,
            "max_tokens": settings.max_tokens,
            "stream": settings.streaming,
        }
        if settings.streaming:
            payload["stream_options"] = {"include_usage": True}
        if settings.top_p is not None:
            payload["top_p"] = settings.top_p
        if settings.seed is not None:
            payload["seed"] = settings.seed
        if request.tools:
            payload["tools"] = list(request.tools)
        if extra := extra_body(settings):
            payload["extra_body"] = extra
        return payload

    def _only(self, served: Sequence[str]) -> str:
        """The model to use when none is named: the one that is served."""
        if len(served) == 1:
            return served[0]
        listed = ", ".join(served[:20]) or "none"
        raise ModelError(
            f"{self.settings.base_url} serves {len(served)} models ({listed}). Choose one: model=... or VRAG_MODEL."
        )


class ChatModel(_Client):
    """A blocking client; safe to share between threads. Close it, or use it as a context manager."""

    def __init__(self, settings: ChatSettings | None = None) -> None:
        super().__init__(settings)
        import openai

        local = is_loopback(self.settings.base_url)
        http = openai.DefaultHttpxClient(trust_env=not local)
        self._client = openai.OpenAI(**self._options(), http_client=http)

    def stream(self, request: Generate) -> Generator[Piece | Generation, None, None]:
        """Yield the reply's pieces as they arrive and at last the :class:`vrag.episode.Generation`.

        Closing the generator closes the connection, which stops the generation at the server.
        """
        payload = self._payload(request)
        reply = Reply(self.settings)
        try:
            if not self._model:
                self._model = self._only(self.served_models())
            response = self._client.chat.completions.create(model=self._model, **payload)
        except ModelError:
            raise
        except Exception as error:
            raise explain(error, self.settings, self._served_for(error)) from error
        if not self.settings.streaming:
            yield from reply.whole(response)
        else:
            # What keeps a connection alive, comments say, is no chunk: the clock would not be looked at.
            late = threading.Timer(reply.left, response.close)
            late.start()
            try:
                with response:
                    chunks = iter(response)
                    while not reply.full:
                        try:
                            chunk = next(chunks)
                        except StopIteration:
                            break
                        except Exception as error:
                            raise (explain(error, self.settings) if reply.left else reply.too_slow()) from error
                        yield from reply.feed(chunk)
            finally:
                late.cancel()
        yield reply.generation()

    def generate(self, request: Generate) -> Generation:
        """The whole reply at once."""
        return [part for part in self.stream(request) if isinstance(part, Generation)][-1]

    def served_models(self) -> list[str]:
        """Names of the models that the endpoint lists."""
        try:
            return [model.id for model in self._client.models.list()]
        except Exception as error:
            raise explain(error, self.settings) from error

    def _served_for(self, error: Exception) -> list[str] | None:
        if getattr(error, "status_code", None) != 404:
            return None
        try:
            return [model.id for model in self._client.with_options(timeout=5, max_retries=0).models.list()]
        except Exception:  # the list only helps to explain the first error
            return None

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncChatModel(_Client):
    """The awaitable client; belongs to one event loop. Close it, or use it as an async context manager."""

    def __init__(self, settings: ChatSettings | None = None) -> None:
        super().__init__(settings)
        import openai

        local = is_loopback(self.settings.base_url)
        http = openai.DefaultAsyncHttpxClient(trust_env=not local)
        self._client = openai.AsyncOpenAI(**self._options(), http_client=http)

    async def stream(self, request: Generate) -> AsyncGenerator[Piece | Generation, None]:
        """As :meth:`ChatModel.stream`."""
        payload = self._payload(request)
        reply = Reply(self.settings)
        try:
            if not self._model:
                self._model = self._only(await self.served_models())
            with anyio.fail_after(self.settings.reply_timeout * (self.settings.retries + 1)):
                response = await self._client.chat.completions.create(model=self._model, **payload)
        except ModelError:
            raise
        except TimeoutError as error:
            raise reply.too_slow() from error
        except Exception as error:
            raise explain(error, self.settings, await self._served_for(error)) from error
        if not self.settings.streaming:
            for piece in reply.whole(response):
                yield piece
        else:
            async with response:
                chunks = response.__aiter__()
                while not reply.full:
                    try:
                        with anyio.fail_after(reply.left):
                            chunk = await chunks.__anext__()
                    except StopAsyncIteration:
                        break
                    except TimeoutError as error:
                        raise reply.too_slow() from error
                    except Exception as error:
                        raise explain(error, self.settings) from error
                    for piece in reply.feed(chunk):
                        yield piece
        yield reply.generation()

    async def generate(self, request: Generate) -> Generation:
        """The whole reply at once."""
        return [part async for part in self.stream(request) if isinstance(part, Generation)][-1]

    async def served_models(self) -> list[str]:
        """Names of the models that the endpoint lists."""
        try:
            return [model.id async for model in self._client.models.list()]
        except Exception as error:
            raise explain(error, self.settings) from error

    async def _served_for(self, error: Exception) -> list[str] | None:
        if getattr(error, "status_code", None) != 404:
            return None
        try:
            listed = self._client.with_options(timeout=5, max_retries=0).models.list()
            return [model.id async for model in listed]
        except Exception:  # the list only helps to explain the first error
            return None

    async def close(self) -> None:
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Reply:
    """A reply as it grows: what both clients feed with what the endpoint sends."""

    def __init__(self, settings: ChatSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.full = False
        """Nothing more is taken: the reply reached ``max_reply_chars``."""
        self._settings = settings
        self._clock = clock
        self._started = clock()
        self._room = settings.max_reply_chars
        self._parts: dict[str, list[str]] = {"content": [], "reasoning": []}
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish = ""
        self._chunks = 0
        self._usage: Any = None

    @property
    def left(self) -> float:
        """Seconds until the reply is given up; 0 when that time has come."""
        return max(0.0, self._started + self._settings.reply_timeout - self._clock())

    def too_slow(self) -> ModelError:
        return ModelError(
            f"The model at {self._settings.base_url} was still writing after {self._settings.reply_timeout:g} s. "
            "Lower max_tokens, or raise reply_timeout."
        )

    def feed(self, chunk: Any) -> list[Piece]:
        """Take one streamed chunk."""
        if not self.left:
            raise self.too_slow()
        self._chunks += 1
        self._usage = getattr(chunk, "usage", None) or self._usage
        pieces: list[Piece] = []
        for choice in (getattr(chunk, "choices", None) or ())[:1]:
            pieces += self._take(choice.delta)
            self._finish = choice.finish_reason or self._finish
        return pieces

    def whole(self, response: Any) -> list[Piece]:
        """Take a response that was not streamed."""
        choices = getattr(response, "choices", None)
        if not choices or choices[0].message is None:
            said = getattr(response, "error", None) or response
            raise explain(ValueError(f"no reply in the response: {said!s:.300}"), self._settings)
        self._usage = response.usage
        pieces = self._take(choices[0].message)
        self._finish = self._finish or choices[0].finish_reason or "stop"
        return pieces

    def generation(self) -> Generation:
        """The reply, complete."""
        if not self._finish and not self._chunks:
            raise explain(ValueError("the stream is empty"), self._settings)
        if not self._finish:
            raise ModelError(
                f"The reply of the model at {self._settings.base_url} broke off before its end. "
                "The server was stopped or the connection cut; see the server's log, then ask again."
            )
        return Generation(
            text="".join(self._parts["content"]),
            reasoning="".join(self._parts["reasoning"]),
            prompt_tokens=getattr(self._usage, "prompt_tokens", None) or 0,
            completion_tokens=getattr(self._usage, "completion_tokens", None) or 0,
            seconds=self._clock() - self._started,
            tool_calls=tuple(self._calls[index] for index in sorted(self._calls)),
            finish_reason=self._finish,
        )

    def _take(self, delta: Any) -> list[Piece]:
        pieces: list[Piece] = []
        if delta is None:
            return pieces
        reasoning = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None)
        for channel, value in (("reasoning", reasoning), ("content", delta.content)):
            if text := self._fit(value):
                self._parts[channel].append(text)
                pieces.append(Piece(channel, text))  # type: ignore[arg-type]
        for position, call in enumerate(delta.tool_calls or ()):
            self._take_call(call, position)
        return pieces

    def _take_call(self, call: Any, position: int) -> None:
        """Native tool calls arrive in fragments: the id and name first, then the arguments bit by bit."""
        index = getattr(call, "index", None)
        empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        whole = self._calls.setdefault(position if index is None else index, empty)
        whole["id"] = call.id or whole["id"]
        if call.function is not None:
            whole["function"]["name"] += self._fit(call.function.name)
            whole["function"]["arguments"] += self._fit(call.function.arguments)

    def _fit(self, value: object) -> str:
        """The part of a text that still fits; a model that never stops is cut off, and that is its reply."""
        if not isinstance(value, str) or self.full:
            return ""
        value = well_formed(value)
        if len(value) > self._room:
            self.full, self._finish = True, "length"
            value = value[: self._room]
        self._room -= len(value)
        return value


def wire_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages in OpenAI's form; pictures as JPEG data URLs.

    An assistant turn is a plain string (some servers answer list-shaped assistant content with 500). A tool's result is
    text only in that protocol, so its pictures follow in a user turn.
    """
    out: list[dict[str, Any]] = []
    for turn in messages:
        if turn.role == "assistant":
            wire: dict[str, Any] = {"role": "assistant", "content": turn.text}
            if turn.tool_calls:
                wire["tool_calls"] = [dict(call) for call in turn.tool_calls]
            out.append(wire)
        elif turn.tool_call_id is not None:
            out.append({"role": "tool", "tool_call_id": turn.tool_call_id, "content": turn.text})
            if turn.views:
                out.append({"role": "user", "content": [_part(view) for view in turn.views]})
        elif turn.views:
            out.append({"role": turn.role, "content": [_part(part) for part in turn.content]})
        else:
            out.append({"role": turn.role, "content": turn.text})
    return out


def extra_body(settings: ChatSettings) -> dict[str, Any]:
    """Fields beyond OpenAI's. The thinking switch is DashScope's top-level field, or vLLM's chat template argument."""
    extra = dict(settings.extra_body)
    if settings.thinking is not None:
        host = settings.base_url.split("/")[2].rsplit(":", 1)[0]
        dashscope = settings.thinking_switch == "dashscope" or (
            settings.thinking_switch == "auto" and (host == "aliyuncs.com" or host.endswith(".aliyuncs.com"))
        )
        if dashscope:
            extra["enable_thinking"] = settings.thinking
        else:
            template = dict(extra.get("chat_template_kwargs") or {})
            extra["chat_template_kwargs"] = {**template, "enable_thinking": settings.thinking}
    return extra


def _part(part: str | View) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    encoded = base64.b64encode(part.jpeg()).decode("ascii")
    return {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{encoded}"}}
