"""The application: its parts, its life from start to end, and its errors as sentences."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from search_engine.models.base import Query
from search_engine.reranking import Reranked
from search_engine.service import docs_page, guards
from search_engine.service.batching import Batcher, Overloaded, Stopped
from search_engine.service.engines import index_marks, open_indexes
from search_engine.service.media import Thumbnails
from search_engine.service.metrics import Measure, Metrics
from search_engine.service.routes import open_router, router
from search_engine.service.settings import ServiceSettings, is_loopback
from search_engine.service.slot import Engine, EngineSlot, NotReady, OpenEngine
from search_engine.service.wire import IndexState
from vrag import __version__
from vrag.errors import ConfigError, VragError
from vrag.items import Hit

log = logging.getLogger(__name__)

#: What may run together: queries with the same engine, top_k, corpora and documents.
SearchKey = tuple[Engine, int, tuple[str, ...] | None, tuple[str, ...] | None]


def run_batch(key: SearchKey, queries: list[str | Query]) -> list[list[Hit]]:
    engine, top_k, corpora, documents = key
    return engine.retrieve(queries, top_k, corpora, documents)


@dataclass(frozen=True, eq=False)
class Candidates:
    """The hits of one query, waiting for the reranker. Each is itself alone: the same hits are looked at once per request."""

    query: str | Query
    hits: list[Hit]


def run_rerank(key: tuple[Engine, int], waiting: list[Candidates]) -> list[Reranked]:
    engine, top_k = key
    return [engine.rerank(one.query, one.hits, top_k) for one in waiting]


class Service:
    """The parts of one application, for its endpoints: ``request.app.state.service``."""

    def __init__(
        self, settings: ServiceSettings, open_engine: OpenEngine, on_failure: Callable[[], None] | None
    ) -> None:
        self.settings = settings
        self.slot = EngineSlot(open_engine)
        self.metrics = Metrics(lambda: self.batcher.depth, lambda: self.slot.state.items if self.slot.state else 0)
        self.batcher: Batcher[SearchKey, str | Query, list[Hit]] = Batcher(
            run_batch,
            max_batch=settings.max_batch,
            max_waiting=settings.max_waiting,
            max_pause=settings.max_pause,
            observe=self.metrics.batches.observe,
        )
        # A queue and a thread of its own: plain searches do not wait for the slower second look. One query at a time, since
        # the hits of one fill the model's batches already, and what a client that left had waiting is dropped in between.
        self.reranking: Batcher[tuple[Engine, int], Candidates, Reranked] = Batcher(
            run_rerank, max_batch=1, max_waiting=settings.max_waiting
        )
        self.thumbnails = Thumbnails(settings.thumbnail_cache_bytes)
        self.decoding = asyncio.Semaphore(2)  # thumbnails made at a time: each may hold a decoded page in memory
        self._on_failure = on_failure
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def search(
        self,
        engine: Engine,
        queries: Sequence[str | Query],
        top_k: int,
        corpora: Iterable[str] | None,
        documents: Iterable[str] | None,
    ) -> list[list[Hit]]:
        names = [None if given is None else tuple(sorted(set(given))) for given in (corpora, documents)]
        return await self.batcher.submit((engine, top_k, names[0], names[1]), queries)

    async def rerank(
        self, engine: Engine, queries: Sequence[str | Query], found: Sequence[list[Hit]], top_k: int
    ) -> list[Reranked]:
        """The best ``top_k`` of what was found for each query, after a second look."""
        if engine.reranker_name is None:  # nothing to wait for
            return run_rerank((engine, top_k), [Candidates(*one) for one in zip(queries, found, strict=True)])
        waiting = [Candidates(query, hits) for query, hits in zip(queries, found, strict=True)]
        return await self.reranking.submit((engine, top_k), waiting)

    async def reload(self) -> tuple[IndexState, IndexState]:
        """Open the indexes anew and swap them in; raises what went wrong, and the old ones keep serving."""
        try:
            before, after = await self.slot.swap()
        except Exception:
            self.metrics.reloads.labels("refused").inc()
            raise
        self.metrics.reloads.labels("taken").inc()
        log.info("Serving index %s: %d items", after.version, after.items)
        return before or after, after

    def request_reload(self) -> None:
        """Reload soon; may be called from any thread and from a signal handler."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._start, self._reload_quietly)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            stack.callback(self._close)
            await stack.enter_async_context(self.batcher)
            await stack.enter_async_context(self.reranking)
            stack.push_async_callback(self._stop_tasks)
            self._start(self._load)
            yield
            self._loop = None

    def _close(self) -> None:
        if self.slot.state is not None:
            self.slot.engine.close()

    def _start(self, work: Callable[[], Any]) -> None:
        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _load(self) -> None:
        """The first load, while the service already answers (that it is loading)."""
        marks = await asyncio.to_thread(index_marks, self.settings)
        try:
            _, after = await self.slot.swap()
        except Exception as error:
            self.slot.failure = _reason(error)
            if not isinstance(error, VragError):
                log.exception("The index could not be loaded")
            if self._on_failure is not None:
                self._on_failure()
            return
        log.info("Serving index %s: %d items, corpora %s", after.version, after.items, ", ".join(after.corpora))
        if self.settings.watch_seconds:
            await self._watch(marks)

    async def _watch(self, marks: object) -> None:
        while True:
            await asyncio.sleep(self.settings.watch_seconds)
            now = await asyncio.to_thread(index_marks, self.settings)
            if now != marks:
                marks = now
                await self._reload_quietly()

    async def _reload_quietly(self) -> None:
        try:
            await self.reload()
        except Exception as error:
            log.error("The changed index was not taken, the old one keeps serving: %s", _reason(error))


def create_app(
    settings: ServiceSettings | None = None,
    *,
    open_engine: OpenEngine | None = None,
    on_failure: Callable[[], None] | None = None,
) -> FastAPI:
    """The search service as an application. Building it opens nothing; the index is loaded when it starts.

    ``open_engine`` replaces how the engine is opened (by default: the indexes that the settings name); ``on_failure``
    is called when the first load fails, which otherwise only ``/health`` tells.
    """
    settings = settings or ServiceSettings()
    service = Service(settings, open_engine or (lambda serving: open_indexes(settings, serving)), on_failure)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="VRAG search service",
        version=__version__,
        description="Finds pages, pictures, clips and passages, and serves their images by id.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(docs_page.render(app.openapi()))

    app.state.service = service
    app.include_router(open_router)
    app.include_router(router)
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    # The last one added stands outermost: measured are the refusals too.
    app.add_middleware(guards.AnswerAlways)
    app.add_middleware(guards.LimitBody, limit=settings.max_body_bytes)
    if settings.api_key is not None:
        app.add_middleware(guards.RequireKey, key=settings.api_key.get_secret_value(), open_paths=("/health",))
    elif is_loopback(settings.host):
        app.add_middleware(guards.LocalNamesOnly)
    app.add_middleware(Measure, metrics=service.metrics)
    return app


def _reason(error: Exception) -> str:
    """A sentence for a client: of an error made for people its text, of any other only its kind."""
    return (
        str(error) if isinstance(error, VragError) else f"{type(error).__name__} while opening the index; see the log"
    )


def sentences(errors: Sequence[Any]) -> str:
    """What is wrong with a request, in words, from pydantic's list."""
    out = []
    for error in errors[:3]:
        place = [part for part in error["loc"] if part not in ("body", "query", "path")]
        if error["type"] == "json_invalid":
            out.append(
                f"The body is not valid JSON ({error['ctx']['error']}, at character {place[0] if place else 0})."
            )
        elif not place:
            out.append(
                'Send a JSON object such as {"queries": ["..."]} with the header Content-Type: application/json.'
            )
        else:
            name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
            out.append(f"{name}: {error['msg']}.")
    if len(errors) > 3:
        out.append(f"And {len(errors) - 3} more.")
    return " ".join(dict.fromkeys(out))


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    fields = [
        {"field": ".".join(map(str, e["loc"])), "message": e["msg"], "type": e["type"]} for e in error.errors()[:20]
    ]
    return JSONResponse({"detail": sentences(error.errors()), "errors": fields}, 422)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    detail = error.detail
    if (
        error.status_code == 400
    ):  # what the framework says when decoding the body failed in any other way than by syntax
        detail = "The body cannot be read as JSON: it has to be UTF-8, with numbers and nesting of a sensible size."
    elif error.status_code == 404 and detail == "Not Found":
        detail = "Nothing is served here; /docs lists the endpoints."
    elif error.status_code == 405:
        detail = f"{request.method} is not for this endpoint; /docs lists the endpoints."
    return JSONResponse({"detail": detail}, error.status_code, error.headers)


async def _not_ready(request: Request, error: Exception) -> JSONResponse:
    return guards.refusal(503, str(error), {"Retry-After": "1"})


async def _overloaded(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Overloaded)
    detail = f"Too many searches are waiting; try again in {error.retry_after} s."
    return guards.refusal(429, detail, {"Retry-After": str(error.retry_after)})


async def _stopped(request: Request, error: Exception) -> JSONResponse:
    return guards.refusal(503, "The service is stopping.", {"Retry-After": "5"})


async def _named_wrong(request: Request, error: Exception) -> JSONResponse:
    """The engine knows no such document: what else can be wrong with a search has been checked before."""
    return guards.refusal(404, str(error))


async def _failed(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s failed: %s", request.method, request.url.path, error)
    return guards.refusal(500, str(error))


HANDLERS: dict[type[Exception], Any] = {
    RequestValidationError: _invalid,
    HTTPException: _http,
    NotReady: _not_ready,
    Overloaded: _overloaded,
    Stopped: _stopped,
    ConfigError: _named_wrong,
    VragError: _failed,
}
