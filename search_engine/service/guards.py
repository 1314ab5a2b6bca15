"""What stands before every endpoint: the API key, the host name, the size of the body. Refusals are sentences.

The guards refuse by default and run before anything of the request is read, so that no endpoint can forget them and a
caller without a key costs nothing.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
from collections.abc import Collection, Mapping

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

#: What is still read, and thrown away, of a body that is too large, so that the client gets to see the refusal.
DRAIN_LIMIT = 64 * 2**20


def refusal(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, dict(headers or {}))


class RequireKey:
    """Ask every request for the key, as ``Authorization: Bearer KEY`` or ``X-API-Key``, except on ``open_paths``."""

    def __init__(self, app: ASGIApp, key: str, open_paths: Collection[str]) -> None:
        self.app = app
        self._key = key.encode()
        self._open = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in self._open or self._allows(Headers(scope=scope)):
            return await self.app(scope, receive, send)
        detail = "This service needs an API key; send it as the header 'Authorization: Bearer KEY' or 'X-API-Key: KEY'."
        await refusal(401, detail, {"WWW-Authenticate": "Bearer"})(scope, receive, send)

    def _allows(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._key)


class LocalNamesOnly:
    """Where no key protects the service, answer only to an address or ``localhost``.

    A web page elsewhere can make a browser ask a name of its own that points to this machine (DNS rebinding), and would
    read the documents; such a request carries that name as its host.
    """

    def __init__(self, app: ASGIApp, names: Collection[str] = ()) -> None:
        self.app = app
        self._names = frozenset({"localhost", *names})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_local(Headers(scope=scope).get("host", "")):
            return await self.app(scope, receive, send)
        detail = (
            "Without an API key this service answers only under 'localhost' or an IP address, not under another name."
        )
        await refusal(403, detail)(scope, receive, send)

    def _is_local(self, host: str) -> bool:
        name = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        if name.lower() in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return not name  # HTTP/1.0 needs no host
        return True


class AnswerAlways:
    """Answer 500 with a sentence when an endpoint fails in a way nobody foresaw; the log gets the details.

    Left to the server, such an error would close the connection under the client's next request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started = False

        async def watch(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except Exception:
            if started:
                raise
            log.exception("%s %s failed", scope["method"], scope["path"])
            detail = "The search service failed to answer this request; its log has the details."
            await refusal(500, detail)(scope, receive, send)


class LimitBody:
    """Refuse a body of more than ``limit`` bytes with 413, whether it announces its size or not."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self._limit:
            if headers.get("expect", "").lower() != "100-continue":  # else the client waits to be asked for its body
                await _drain(receive, 0)
            return await self._refuse(scope, receive, send)
        # The body is collected here rather than counted on its way: a limit met half-way would have to unwind the
        # endpoint.
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return None  # the client has gone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
            if size > self._limit:
                parts.clear()
                if more:
                    await _drain(receive, size)
                return await self._refuse(scope, receive, send)
        whole: Message | None = {"type": "http.request", "body": b"".join(parts), "more_body": False}

        async def replay() -> Message:
            nonlocal whole
            if whole is not None:
                message, whole = whole, None
                return message
            return await receive()

        return await self.app(scope, replay, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        detail = (
            f"The body is larger than {self._limit:,} bytes; send fewer or shorter queries and smaller pictures in one request, "
            "or let the service take more with VRAG_SEARCH_MAX_BODY_BYTES."
        )
        await refusal(413, detail, {"Connection": "close"})(scope, receive, send)


async def _drain(receive: Receive, size: int) -> None:
    while size <= DRAIN_LIMIT:
        message = await receive()
        size += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            return
