"""The endpoints. Everything that blocks runs in a thread; the event loop only passes things on."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import BaseModel, TypeAdapter

from search_engine.models.base import Query as Example
from search_engine.service import clips, media, wire
from search_engine.service.slot import Engine
from vrag import __version__
from vrag.errors import ConfigError, MediaError, VragError
from vrag.geometry import MAX_PIXELS as FRAME_PIXELS
from vrag.items import Hit, Item

if TYPE_CHECKING:
    from search_engine.service.app import Service

log = logging.getLogger(__name__)

PUBLISHED_TOP_K = 3
#: What the older ``GET /search`` returns at most.
OLDER_TOP_K = 10
#: Nobody is left to read this status; nginx uses it for a client that went away, and the metrics show it.
CLIENT_GONE = 499
#: Frames of one answer.
MAX_FRAMES = 128
#: Images may be kept by a browser and shown again after asking whether they changed (the index can be swapped).
CACHE = "private, max-age=300"

T = TypeVar("T")

PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": wire.Problem, "description": text}
    for code, text in {
        401: "The API key is missing or wrong",
        413: "The body is too large",
        422: "Something is wrong with the request; `detail` says what",
        429: "Too many searches are waiting; `Retry-After` says when to come back",
        503: "The index is still being loaded",
    }.items()
}
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": wire.Problem, "description": "There is no such thing"}}

open_router = APIRouter(tags=["state"])
#: The key itself is checked before any endpoint (guards.RequireKey); these tell OpenAPI how it is sent.
router = APIRouter(
    dependencies=[Depends(HTTPBearer(auto_error=False)), Depends(APIKeyHeader(name="X-API-Key", auto_error=False))],
    responses=PROBLEMS,
)


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Parts = Annotated["Service", Depends(service_of)]
ItemId = Annotated[str, Path(description="as the hits of a search give it")]


def reply(value: Any) -> Response:
    """JSON without the fields that are None; NaN cannot occur in it."""
    kind = type(value) if isinstance(value, BaseModel) else Any
    return Response(TypeAdapter(kind).dump_json(value, exclude_none=True), media_type="application/json")


async def while_connected(request: Request, work: Awaitable[T], seconds: float) -> T:
    """The result of ``work``, which is cancelled when the client goes away or ``seconds`` have passed."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({working, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if leaving.done():
            raise HTTPException(CLIENT_GONE, "The client has gone.")
        raise HTTPException(503, f"The search took longer than {seconds:g} s and was given up.", {"Retry-After": "5"})
    finally:
        working.cancel()
        leaving.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# --- searching


def checked_queries(service: Service, queries: Sequence[str]) -> None:
    limits = service.settings
    if not queries:
        raise HTTPException(422, 'queries is empty; send at least one, such as {"queries": ["..."]}.')
    if len(queries) > limits.max_queries:
        raise HTTPException(
            422, f"{len(queries)} queries are more than the {limits.max_queries} of one request; send several."
        )
    for number, query in enumerate(queries, 1):
        if len(query) > limits.max_query_chars:
            raise HTTPException(
                422,
                f"Query {number} has {len(query):,} characters; the limit is {limits.max_query_chars:,}. Shorten it.",
            )


def checked_top_k(service: Service, top_k: int, name: str = "top_k") -> int:
    if not 1 <= top_k <= service.settings.max_top_k:
        shown = str(top_k) if abs(top_k) < 10**12 else "out of all measure"
        raise HTTPException(422, f"{name} is {shown}; it must be between 1 and {service.settings.max_top_k}.")
    return top_k


def checked_rerank(service: Service, engine: Engine, rerank: bool | int, top_k: int) -> int:
    """How many hits of a query are looked at again; 0 for none."""
    limit = service.settings.max_rerank
    if rerank is not True and rerank is not False and not 1 <= rerank <= limit:
        raise HTTPException(
            422, f"rerank must be true, false, or between 1 and {limit}: how many hits to look at again."
        )
    return 0 if rerank is False else engine.rerank_depth(rerank, top_k)


def checked_corpora(engine: Engine, names: str | Sequence[str] | None) -> list[str] | None:
    if names is None:
        return None
    wanted = [names] if isinstance(names, str) else list(names)
    if not wanted:
        raise HTTPException(422, "search_corpus is an empty list; leave it out to search everything.")
    known = engine.corpora
    for name in wanted:
        if name not in known:
            raise HTTPException(
                404, f"There is no corpus {_shown(name)}. There are: {', '.join(sorted(known)) or 'none'}."
            )
    return wanted


async def search_hits(
    request: Request,
    service: Service,
    engine: Engine,
    queries: Sequence[str | Example],
    top_k: int,
    corpora: list[str] | None = None,
    documents: list[str] | None = None,
) -> list[list[Hit]]:
    """The hits of each query; a blank one has none, whatever the engine would make of it."""
    meant = [bool(query.strip()) if isinstance(query, str) else True for query in queries]
    asked = [query for query, means in zip(queries, meant, strict=True) if means]
    work = service.search(engine, asked, top_k, corpora, documents)
    try:
        found = iter(await while_connected(request, work, service.settings.answer_seconds))
    except MediaError as error:
        if all(isinstance(query, str) for query in queries):
            raise
        raise HTTPException(422, f"images: {error}") from None
    return [next(found) if means else [] for means in meant]


def checked_images(service: Service, engine: Engine, images: Sequence[str]) -> list[Example]:
    """The pictures to search by. Only their headers are read here."""
    if not images:
        return []
    if not engine.sees_pictures:
        raise HTTPException(
            422,
            f"images: the model of this service, {engine.model_name}, reads text alone. To search by picture, serve an index "
            "that a visual model built.",
        )
    limits = service.settings
    if len(images) > limits.max_images:
        raise HTTPException(
            422, f"{len(images)} images are more than the {limits.max_images} of one request; send several."
        )
    try:
        return [wire.example(image, number, limits.max_image_pixels) for number, image in enumerate(images, 1)]
    except MediaError as error:
        raise HTTPException(422, str(error)) from None


def file_path(engine: Engine, item_id: str) -> str | None:
    path = engine.media_path(item_id)
    return None if path is None else str(path)


@router.post(
    "/search",
    tags=["search"],
    response_model=wire.SearchResponse | list[list[wire.ShortHit]],
    responses=NOT_FOUND,
    summary="Search pages, pictures, clips and passages",
)
async def search(body: wire.SearchRequest, request: Request, service: Parts) -> Response:
    """Ranked hits for each query and then for each picture in `images`, best first, in the published form.

    `data` names each hit by its `id`; `/items/{id}/image` serves its picture. With `vrag_ret` the answer is the
    published short form: one list of `{idx, image_file}` per query, images only. Scores compare within one query, not
    between queries. With `rerank` the best hits are read again, question and page together, and come in that order;
    where that cannot be done, they come as they were found and `notes` says why.
    """
    engine = service.slot.engine
    if body.queries or not body.images:
        checked_queries(service, body.queries)
    checked_top_k(service, body.top_k)
    examples = await asyncio.to_thread(checked_images, service, engine, body.images)
    corpora = checked_corpora(engine, body.search_corpus)
    if body.documents is not None and not body.documents:
        raise HTTPException(422, "documents is an empty list; leave it out to search everything.")
    queries: list[str | Example] = [*body.queries, *examples]
    depth = checked_rerank(service, engine, body.rerank, body.top_k)
    reach = depth if depth and engine.reranker_name else body.top_k
    found = await search_hits(request, service, engine, queries, reach, corpora, body.documents)
    notes: list[str] = []
    if depth:
        work = service.rerank(engine, queries, found, body.top_k)
        second = await while_connected(request, work, service.settings.answer_seconds)
        found = [one.hits for one in second]
        notes = list(dict.fromkeys(note for one in second for note in one.notes))
    if body.vrag_ret:
        answer = reply(short_lists(engine, found))
        if notes:  # this form has no place for them
            answer.headers["X-Notes"] = quote(" ".join(notes), safe=" ,.;:'()/=-_")
        return answer
    return reply(
        wire.SearchResponse(
            results=[wire.ranking(hits, engine.position, lambda item_id: file_path(engine, item_id)) for hits in found],
            notes=notes or None,
        )
    )


@router.get(
    "/search",
    tags=["search"],
    response_model=list[list[wire.ShortHit]],
    summary="Search images (the older published form)",
)
async def search_older(
    request: Request,
    service: Parts,
    queries: Annotated[list[str], Query(description="repeat it for several: ?queries=a&queries=b")],
) -> Response:
    """At most ten images per query, as `{idx, image_file}`."""
    engine = service.slot.engine
    queries = [wire.readable(query) for query in queries]
    checked_queries(service, queries)
    top_k = min(OLDER_TOP_K, service.settings.max_top_k)
    return reply(short_lists(engine, await search_hits(request, service, engine, queries, top_k)))


def short_lists(engine: Engine, found: list[list[Hit]]) -> list[list[wire.ShortHit]]:
    return [wire.short(hits, engine.position, lambda item_id: file_path(engine, item_id)) for hits in found]


@router.post("/retrieve", tags=["search"], response_model=wire.RetrieveResponse, summary="Search, in Search-R1's form")
async def retrieve(body: wire.RetrieveRequest, request: Request, service: Parts) -> Response:
    """Passages of text: `{"result": [[{"document": {"id", "contents"}, "score"}]]}`, or the documents alone without
    scores.
    """
    engine = service.slot.engine
    checked_queries(service, body.queries)
    top_k = checked_top_k(service, PUBLISHED_TOP_K if body.topk is None else body.topk, "topk")
    found = [wire.usable(hits) for hits in await search_hits(request, service, engine, body.queries, top_k)]
    passages = await asyncio.to_thread(_passages, engine, found)
    if not body.return_scores:
        return reply({"result": passages})
    scored = [
        [{"document": passage, "score": hit.score} for passage, hit in zip(row, hits, strict=True)]
        for row, hits in zip(passages, found, strict=True)
    ]
    return reply({"result": scored})


def _passages(engine: Engine, found: list[list[Hit]]) -> list[list[wire.Passage]]:
    items = {hit.item.id: hit.item for hits in found for hit in hits}
    made = {item_id: wire.passage(item, _text(engine, item)) for item_id, item in items.items()}
    return [[made[hit.item.id] for hit in hits] for hits in found]


def _text(engine: Engine, item: Item) -> str:
    return item.content if item.content is not None else "\n".join(line.text for line in engine.lines(item.id))


# --- items. The longer paths come first: an id may itself hold slashes.


def item_of(service: Service, item_id: str) -> tuple[Engine, Item]:
    """The item by its id, which is looked up and never taken for a path."""
    if len(item_id) > service.settings.max_id_chars:
        raise HTTPException(414, f"An id has at most {service.settings.max_id_chars} characters.")
    engine = service.slot.engine
    try:
        return engine, engine.item(item_id)
    except KeyError:
        raise HTTPException(404, f"There is no item {_shown(item_id)} in the index.") from None


def _shown(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:80] + "…")


async def image_of(service: Service, item_id: str) -> tuple[Item, media.Media]:
    engine, item = item_of(service, item_id)
    if item.kind != "image":
        hint = "; /frames and /thumbnail show it" if item.kind == "video" else ""
        raise HTTPException(404, f"{_shown(item_id)} is a {item.kind} and has no image{hint}.")
    try:
        path = await asyncio.to_thread(engine.media_path, item_id)
        if path is None:
            raise FileNotFoundError
        return item, await asyncio.to_thread(media.read, path)
    except (OSError, VragError) as error:
        log.warning("The image of %s cannot be read: %s", item_id, error)
        raise HTTPException(
            410,
            f"The stored image of {_shown(item_id)} is gone or cannot be read; build the index again to restore it.",
        ) from None


def image_response(request: Request, image: media.Media) -> Response:
    headers = {"ETag": image.etag, "Cache-Control": CACHE, "X-Content-Type-Options": "nosniff"}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if image.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(image.content, media_type=image.media_type, headers=headers)


IMAGE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/*": {}}, "description": "The picture"},
    304: {"description": "It is still the one whose ETag was sent"},
    410: {"model": wire.Problem, "description": "The stored file is gone"},
    414: {"model": wire.Problem, "description": "The id is too long"},
    **NOT_FOUND,
}


@router.get(
    "/items/{item_id:path}/image", tags=["items"], response_class=Response, responses=IMAGE, summary="An item's image"
)
async def item_image(item_id: ItemId, request: Request, service: Parts) -> Response:
    """The stored image of a page or picture, as it was indexed; boxes are in its pixels."""
    _, image = await image_of(service, item_id)
    return image_response(request, image)


@router.get(
    "/items/{item_id:path}/thumbnail",
    tags=["items"],
    response_class=Response,
    responses={**IMAGE, 501: {"model": wire.Problem, "description": "Video cannot be read here"}},
    summary="An item's thumbnail",
)
async def item_thumbnail(
    item_id: ItemId,
    request: Request,
    service: Parts,
    size: Annotated[int, Query(ge=16, le=1024, description="of the longer side, in pixels")] = 256,
) -> Response:
    """A small JPEG of the image, or of the frame in the middle of a clip; never larger than the image itself."""
    engine, item = item_of(service, item_id)
    try:
        if item.kind == "video":
            clip = await asyncio.to_thread(engine.media_path, item_id)
            if clip is None:
                raise MediaError(gone_clip(item_id))
            async with service.decoding:
                small = await asyncio.to_thread(service.thumbnails.of_clip, clip, size)
        else:
            item, image = await image_of(service, item_id)
            async with service.decoding:
                small = await asyncio.to_thread(service.thumbnails.of, image, item, size)
    except MediaError as error:
        raise HTTPException(410, str(error)) from None
    except ConfigError as error:
        raise HTTPException(501, str(error)) from None
    return image_response(request, small)


def gone_clip(item_id: str) -> str:
    return f"The stored clip of {_shown(item_id)} is gone; build the index again to restore it."


@router.get(
    "/items/{item_id:path}/frames",
    tags=["items"],
    response_model=wire.FramesResponse,
    responses={
        410: {"model": wire.Problem, "description": "The stored clip is gone or cannot be decoded"},
        414: {"model": wire.Problem, "description": "The id is too long"},
        501: {"model": wire.Problem, "description": "Video cannot be read here"},
        **NOT_FOUND,
    },
    summary="Frames of a clip",
)
async def item_frames(
    item_id: ItemId,
    service: Parts,
    t: Annotated[list[float] | None, Query(description="seconds; repeat it for several. Without it: sampled")] = None,
    fps: Annotated[float, Query(gt=0, le=60, description="frames per second that are sampled")] = 1.0,
    max_frames: Annotated[int, Query(ge=1, le=MAX_FRAMES, description="of the sample at most")] = 32,
    max_pixels: Annotated[int, Query(ge=1, le=2**22, description="area of a frame at most")] = FRAME_PIXELS,
) -> Response:
    """JPEGs with their times: those on the screen at the times `t`, or a sample that is spread evenly over the clip."""
    engine, item = item_of(service, item_id)
    if item.kind != "video":
        raise HTTPException(404, f"{_shown(item_id)} is a {item.kind} and has no frames.")
    if t is not None and (len(t) > MAX_FRAMES or not all(math.isfinite(moment) for moment in t)):
        raise HTTPException(422, f"t: at most {MAX_FRAMES} times, each an ordinary number of seconds.")
    path = await asyncio.to_thread(engine.media_path, item_id)
    try:
        if path is None:
            raise MediaError(gone_clip(item_id))
        async with service.decoding:
            if t is not None:
                frames = await asyncio.to_thread(clips.at_times, path, t, max_pixels)
            else:
                frames = await asyncio.to_thread(clips.sampled, path, fps, max_frames, max_pixels)
    except MediaError as error:
        raise HTTPException(410, str(error)) from None
    except ConfigError as error:
        raise HTTPException(501, str(error)) from None
    return reply(wire.FramesResponse(frames=frames))


@router.get(
    "/items/{item_id:path}",
    tags=["items"],
    response_model=wire.ItemResponse,
    responses={414: {"model": wire.Problem, "description": "The id is too long"}, **NOT_FOUND},
    summary="An item's record",
)
async def item_record(
    item_id: ItemId,
    service: Parts,
    lines: Annotated[bool, Query(description="add the lines of text with their boxes")] = False,
) -> Response:
    """What is known of an item; with `?lines=true` also the lines of text on it and where each stands."""
    engine, item = item_of(service, item_id)
    answer = wire.ItemResponse(**wire.record_of(item))
    if lines:
        found = await asyncio.to_thread(engine.lines, item_id)
        answer.lines = [wire.TextLine(text=line.text, box=line.box.as_list()) for line in found]
    return reply(answer)


# --- state


@router.get("/corpora", tags=["state"], response_model=wire.CorporaResponse, summary="The corpora that can be searched")
async def corpora(service: Parts) -> Response:
    """Their names are what `search_corpus` takes."""
    known = service.slot.engine.corpora
    return reply(wire.CorporaResponse(corpora=[wire.Corpus(name=name, items=known[name]) for name in sorted(known)]))


@open_router.get(
    "/health",
    response_model=wire.Health,
    responses={503: {"model": wire.Health, "description": "Nothing can be searched (yet)"}},
    summary="Whether searches are answered",
)
async def health(service: Parts) -> Response:
    """200 with `ready`, or 503 with `loading` or `failed`. Needs no key."""
    state = service.slot.state
    status = "ready" if state is not None else "failed" if service.slot.failure else "loading"
    answer = reply(
        wire.Health(
            status=status, index=state, detail=service.slot.failure, waiting=service.batcher.depth, version=__version__
        )
    )
    answer.status_code = 200 if state is not None else 503
    return answer


@router.get("/metrics", tags=["state"], response_class=Response, summary="Counters for Prometheus")
async def metrics(service: Parts) -> Response:
    """Requests and seconds by endpoint, sizes of the batches, queries in the queue, items served, swaps of the index."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return Response(generate_latest(service.metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


@router.post(
    "/admin/reload",
    tags=["state"],
    response_model=wire.ReloadResponse,
    responses={409: {"model": wire.Problem, "description": "The new index cannot be used; the old one keeps serving"}},
    summary="Take up a changed index",
)
async def reload(service: Parts) -> Response:
    """Open the indexes anew and swap them in at once; requests that are under way end on the old ones, none fails."""
    try:
        before, after = await service.reload()
    except Exception as error:
        if not isinstance(error, VragError):
            log.exception("The index could not be reloaded")
        serving = service.slot.state
        kept = f" Version {serving.version} keeps serving." if serving is not None else ""
        reason = str(error) if isinstance(error, VragError) else f"{type(error).__name__}; the log has the details."
        raise HTTPException(409, f"The index was not taken up: {reason}{kept}") from None
    return reply(wire.ReloadResponse(index=after, previous=before))
