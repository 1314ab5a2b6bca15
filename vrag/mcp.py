"""The corpus for any assistant: a server of the Model Context Protocol over a running search service.

    python -m vrag.mcp                          # stdio: for a client that starts it
    python -m vrag.mcp --http --port 8003       # streamable HTTP at http://127.0.0.1:8003/mcp

Tools: ``search`` finds pages, pictures, clips and passages, ``get_page`` shows one as a picture, ``crop`` shows a part of
it, cut from the page at its full resolution. Needs the ``mcp`` package: ``pip install 'vrag[mcp]'``.
"""

from __future__ import annotations

import argparse
import hmac
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio.to_thread
from pydantic import BaseModel, Field

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Context, Image
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError as error:
    raise ImportError("The MCP server needs the package mcp, 2.3 or newer: pip install 'vrag[mcp]'.") from error

from vrag import __version__
from vrag.errors import VragError
from vrag.geometry import CROP_PADDING, Box
from vrag.items import Hit, Item
from vrag.pages import PageImage, View, open_page, padded_on_page, view_of
from vrag.retriever import AsyncHttpRetriever
from vrag.settings import SearchSettings, is_loopback

log = logging.getLogger(__name__)

#: Area of a picture unless the caller says otherwise (a page is legible), and at most.
DEFAULT_PIXELS, MOST_PIXELS = 1_003_520, 4_014_080
MAX_TOP_K = 50
#: The environment variable with the key that callers over HTTP have to bear; without one, only loopback is served.
KEY_VARIABLE = "VRAG_MCP_API_KEY"

INSTRUCTIONS = """Search a collection of documents (pages, pictures, clips, passages) and look at what is found.
search returns ids; get_page shows the page with such an id; crop shows a part of it enlarged.
Boxes are x1, y1, x2, y2 in page pixels, the origin at the upper left: the size of the page in these pixels comes with
every result, and a picture may be shown smaller than the page."""


class FoundItem(BaseModel):
    """A hit of a search."""

    id: str
    type: str = Field(description="image (a page or a picture), video or text")
    label: str = Field(description="what a person would call it, e.g. report.pdf, page 3")
    document: str
    page: int | None = None
    score: float = Field(description="higher is better; comparable within one search")
    width: int | None = Field(default=None, description="page pixels")
    height: int | None = Field(default=None, description="page pixels")
    duration: float | None = Field(default=None, description="seconds, for a clip")
    content: str | None = Field(default=None, description="the passage itself, for text")


class Found(BaseModel):
    """What a search found, best first."""

    hits: list[FoundItem]


def build(settings: SearchSettings) -> MCPServer[AsyncHttpRetriever]:
    """The server over the search service that ``settings`` names. Nothing is asked of it before the first call."""

    @asynccontextmanager
    async def lifespan(_: MCPServer[AsyncHttpRetriever]) -> AsyncIterator[AsyncHttpRetriever]:
        async with AsyncHttpRetriever(settings) as retriever:
            yield retriever

    server = MCPServer[AsyncHttpRetriever](
        "vrag",
        title="Document search",
        instructions=INSTRUCTIONS,
        version=__version__,
        lifespan=lifespan,
        log_level="WARNING",
    )
    server.tool()(search)
    server.tool()(get_page)
    server.tool()(crop)
    return server


ServerContext = Context[AsyncHttpRetriever]
PageId = Annotated[str, Field(min_length=1, description="the id of a search result")]
Side = Annotated[float, Field(allow_inf_nan=False)]
Pixels = Annotated[int, Field(ge=1, le=MOST_PIXELS, description="area of the picture at most; nothing is enlarged")]


async def search(
    ctx: ServerContext,
    query: Annotated[str, Field(min_length=1, max_length=4_000, description="what to look for")],
    top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K, description="hits at most")] = 5,
    corpus: Annotated[str | None, Field(description="only this named corpus")] = None,
    documents: Annotated[list[str] | None, Field(description="only these files, by name")] = None,
) -> Found:
    """Find the pages, pictures, clips and passages that fit a query best."""
    try:
        ranked = await _retriever(ctx).search([query], top_k, corpus=corpus, documents=documents)
    except VragError as error:
        raise ToolError(str(error)) from error
    return Found(hits=[_found(hit) for hit in ranked[0]])


async def get_page(ctx: ServerContext, id: PageId, max_pixels: Pixels = DEFAULT_PIXELS) -> list[str | Image]:
    """Show a page or a picture as a whole, after its size in page pixels."""
    page = await _page(ctx, id)
    return await _shown(page, page.box, max_pixels)


async def crop(
    ctx: ServerContext,
    id: PageId,
    box: Annotated[
        list[Side],
        Field(min_length=4, max_length=4, description="[x1, y1, x2, y2] in page pixels"),
    ],
    padding: Annotated[float, Field(ge=0, le=10_000, description="page pixels around the box")] = CROP_PADDING,
    max_pixels: Pixels = DEFAULT_PIXELS,
) -> list[str | Image]:
    """Show a part of a page, cut from it at its full resolution."""
    page = await _page(ctx, id)
    x1, y1, x2, y2 = box
    inside = Box(min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)).clamped(page.box)
    if inside.width < 1 or inside.height < 1:
        raise ToolError(f"The box {box} is not on the page, which is {page.size[0]} x {page.size[1]} page pixels.")
    return await _shown(page, padded_on_page(inside, padding, page), max_pixels)


def _retriever(ctx: ServerContext) -> AsyncHttpRetriever:
    return ctx.request_context.lifespan_context


async def _page(ctx: ServerContext, item_id: str) -> PageImage:
    try:
        data = await _retriever(ctx).image(item_id)
        # The page pixels are those of the stored image, so the bytes are all that is needed to know its size.
        return open_page(data, Item(id=item_id, kind="image", document=item_id))
    except VragError as error:
        raise ToolError(str(error)) from error


async def _shown(page: PageImage, box: Box, max_pixels: int) -> list[str | Image]:
    def draw() -> View:
        return view_of(page, box, 1, max_pixels)

    try:
        view = await anyio.to_thread.run_sync(draw)
    except (VragError, ValueError) as error:
        raise ToolError(str(error)) from error
    region = ", ".join(f"{side:.0f}" for side in view.box.as_list())
    text = (
        f"{page.item.id}: the page is {page.size[0]} x {page.size[1]} page pixels; shown is the box [{region}] "
        f"at {view.size[0]} x {view.size[1]}."
    )
    return [text, Image(data=view.jpeg(), format="jpeg")]


def _found(hit: Hit) -> FoundItem:
    item = hit.item
    return FoundItem(
        id=item.id,
        type=item.kind,
        label=item.label,
        document=item.document,
        page=item.page,
        score=hit.score,
        width=item.width,
        height=item.height,
        duration=item.duration,
        content=item.content,
    )


# Serving

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class BearerKey:
    """ASGI middleware: every HTTP request has to bear the key."""

    def __init__(self, app: Any, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        given = dict(scope.get("headers") or ()).get(b"authorization", b"")
        if scope["type"] != "http" or hmac.compare_digest(given, self._expected):
            await self._app(scope, receive, send)
            return
        body = b'{"detail": "The API key is missing or wrong: send \'Authorization: Bearer KEY\'."}'
        headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def http_app(server: MCPServer[AsyncHttpRetriever], host: str = "127.0.0.1", key: str | None = None) -> Any:
    """The server as an ASGI application at ``/mcp``. Sessions are not kept: every request stands alone."""
    app = server.streamable_http_app(host=host, stateless_http=True, json_response=True)
    return BearerKey(app, key) if key else app


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m vrag.mcp",
        description="Serve the tools search, get_page and crop to assistants, over a running search service.",
        epilog=f"The search service is VRAG_SEARCH_URL unless --search-url names another; {KEY_VARIABLE} is the key that "
        "callers over HTTP have to bear.",
    )
    parser.add_argument("--search-url", metavar="URL", help="the search endpoint (http://127.0.0.1:8001/search)")
    parser.add_argument("--http", action="store_true", help="streamable HTTP instead of stdio")
    parser.add_argument(
        "--host", default="127.0.0.1", help=f"the address to listen on; any but loopback needs {KEY_VARIABLE}"
    )
    parser.add_argument("--port", type=int, default=8003)
    given = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    key = os.environ.get(KEY_VARIABLE) or None
    address = f"[{given.host}]" if ":" in given.host else given.host
    if given.http and key is None and not is_loopback(f"http://{address}"):
        print(f"{given.host} can be reached from other machines: set {KEY_VARIABLE} to a key first.", file=sys.stderr)
        return 1
    try:
        server = build(SearchSettings(search_url=given.search_url) if given.search_url else SearchSettings())
    except VragError as error:
        print(error, file=sys.stderr)
        return 1
    if not given.http:
        server.run("stdio")
        return 0
    import uvicorn

    uvicorn.run(http_app(server, given.host, key), host=given.host, port=given.port, log_level="warning")
    return 0


if __name__ == "__main__":
    sys.exit(main())
