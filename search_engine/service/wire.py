"""What goes over the wire: the request bodies, the published response shapes, and the way from a hit to either.

Three dialects are spoken, all of them in use elsewhere: ``POST /search`` (and its short form ``vrag_ret``) and the
older ``GET /search`` of the published search engine, and ``POST /retrieve`` of Search-R1.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictInt

from search_engine.models.base import Query as Example
from vrag.errors import MediaError
from vrag.items import Hit, Item, ItemKind
from vrag.pages import open_page


def readable(text: str) -> str:
    """The same text without lone surrogates, which JSON can carry and UTF-8 cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def finite(value: Any) -> Any:
    """The same JSON value with every NaN and infinity, which JSON cannot carry, replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


Query = Annotated[str, AfterValidator(readable)]
Metadata = Annotated[dict[str, Any], AfterValidator(finite)]


class SearchRequest(BaseModel):
    """The body of ``POST /search``."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"queries": ["revenue by region in 2023"], "top_k": 3}]},
    )

    queries: list[Query] = Field(default=[], description="questions; each gets a ranked list of its own")
    images: list[str] = Field(
        default=[],
        description="example pictures to search by, each a data URL (data:image/png;base64,...) or plain base64; their ranked "
        "lists follow those of the queries. Needs a visual model",
    )
    top_k: StrictInt = Field(default=3, description="how many hits per query at most")
    search_corpus: str | list[str] | None = Field(
        default=None, description="search only these corpora (GET /corpora names them); null searches all"
    )
    documents: list[str] | None = Field(
        default=None,
        description="search only the pages of these files, by file name, e.g. report.pdf; null searches all",
    )
    rerank: StrictBool | StrictInt = Field(
        default=False,
        description="look again at the best hits with the reranker, which puts them into its order: true, or how many of them",
    )
    vrag_ret: bool = Field(default=False, description="answer in the short form: image hits only, as {idx, image_file}")


class RetrieveRequest(BaseModel):
    """The body of ``POST /retrieve``, as Search-R1's trainer sends it."""

    queries: list[Query]
    topk: StrictInt | None = Field(default=None, description="how many hits per query at most; 3 by default")
    return_scores: bool = False


class Found(BaseModel):
    """One hit of ``POST /search``: what it is, and the id under which ``/items/{id}`` serves it."""

    type: ItemKind
    id: str
    document: str = Field(description="the file it comes from")
    page: int | None = Field(default=None, description="counts from 1; null for anything but a page")
    width: int | None = Field(default=None, description="of the stored image, in pixels")
    height: int | None = None
    file_path: str | None = Field(default=None, description="the stored file on the server's own disk")
    content: str | None = Field(default=None, description="the passage itself, for type text")
    duration: float | None = Field(default=None, description="seconds, for type video")
    metadata: Metadata = Field(default_factory=dict)


class Ranking(BaseModel):
    """The answer to one query; the three lists run in parallel, best hit first."""

    score: list[float]
    indice: list[int] = Field(description="the position of each hit in the index that is loaded")
    data: list[Found]


class SearchResponse(BaseModel):
    results: list[Ranking] = Field(description="one entry per query, in the order of the queries")
    notes: list[str] | None = Field(default=None, description="what of the request was not done, and why; else absent")


class ShortHit(BaseModel):
    """A hit in the short form."""

    idx: int
    image_file: str


class Passage(BaseModel):
    """A document of Search-R1: the first line of ``contents`` is its title."""

    id: str
    contents: str


class ScoredPassage(BaseModel):
    document: Passage
    score: float


class RetrieveResponse(BaseModel):
    result: list[list[ScoredPassage]] | list[list[Passage]]


class TextLine(BaseModel):
    text: str
    box: list[float] = Field(description="x1, y1, x2, y2 in pixels of the stored image")


class ItemResponse(BaseModel):
    """The record of an item, and its lines of text when they were asked for."""

    type: ItemKind
    id: str
    document: str
    page: int | None = None
    width: int | None = None
    height: int | None = None
    content: str | None = None
    duration: float | None = None
    metadata: Metadata = Field(default_factory=dict)
    lines: list[TextLine] | None = Field(default=None, description="only with ?lines=true")


class IndexState(BaseModel):
    """What is being served."""

    version: str = Field(description="changes whenever what is served changes")
    items: int
    model: str
    dimension: int
    corpora: list[str]
    reranker: str | None = Field(default=None, description="the model of `rerank`, where there is one")


class Health(BaseModel):
    status: str = Field(description="ready, loading or failed")
    index: IndexState | None = None
    detail: str | None = None
    waiting: int = Field(description="queries in the queue")
    version: str = Field(description="of this software")


class Corpus(BaseModel):
    name: str
    items: int


class CorporaResponse(BaseModel):
    corpora: list[Corpus]


class ReloadResponse(BaseModel):
    index: IndexState
    previous: IndexState


class ClipFrame(BaseModel):
    t: float = Field(description="seconds from the start of the clip")
    image: str = Field(description="a JPEG, in base64")


class FramesResponse(BaseModel):
    """Frames of a clip in the order of time."""

    frames: list[ClipFrame]


class Problem(BaseModel):
    """Every error: a sentence for a person, and the fields it is about where there are any."""

    detail: str
    errors: list[dict[str, Any]] | None = None


def example(image: str, number: int, max_pixels: int) -> Example:
    """The ``number``-th picture of a request as a query; its header is read, its pixels are not.

    Raises MediaError for what is no picture, or one with too many pixels. An address is not fetched: media is data.
    """
    head, comma, rest = image.partition(",")
    if head[:5].lower() == "data:" and not (comma and head.lower().endswith(";base64")):
        raise MediaError(f"images[{number - 1}] is a data URL that is not in base64; send data:image/png;base64,...")
    try:
        data = base64.b64decode("".join((rest if comma else image).split()), validate=True)
    except ValueError:
        raise MediaError(
            f"images[{number - 1}] is not base64; send the picture itself as data:image/png;base64,... (addresses are not "
            "fetched)"
        ) from None
    open_page(data, Item(id=f"images[{number - 1}]", kind="image", document=""), max_pixels=max_pixels)
    return Example(image=data)


def record_of(item: Item) -> dict[str, Any]:
    """The fields of an item as they go over the wire (``kind`` is called ``type`` there)."""
    record = item.model_dump()
    record["type"] = record.pop("kind")
    return record


def usable(hits: Sequence[Hit]) -> list[Hit]:
    """The hits that have a finite score: anything else is padding of an index, never a result."""
    return [hit for hit in hits if math.isfinite(hit.score)]


def ranking(hits: Sequence[Hit], position: Callable[[str], int], file_path: Callable[[str], str | None]) -> Ranking:
    """The published form of one ranked list."""
    kept = usable(hits)
    return Ranking(
        score=[hit.score for hit in kept],
        indice=[position(hit.item.id) for hit in kept],
        data=[Found(**record_of(hit.item), file_path=file_path(hit.item.id)) for hit in kept],
    )


def short(
    hits: Sequence[Hit], position: Callable[[str], int], file_path: Callable[[str], str | None]
) -> list[ShortHit]:
    """The short form of one ranked list: images only."""
    return [
        ShortHit(idx=position(hit.item.id), image_file=file_path(hit.item.id) or "")
        for hit in usable(hits)
        if hit.item.kind == "image"
    ]


def passage(item: Item, text: str) -> Passage:
    """Search-R1 reads the first line of the contents as the title and the rest as the text."""
    return Passage(id=item.id, contents=f'"{item.label}"\n{text}')
