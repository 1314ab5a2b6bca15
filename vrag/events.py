"""The typed events that a run emits, in order: what a person watches, what a record keeps.

Every event is a small pydantic model with a ``type``; none carries image bytes. Pictures travel as a :class:`ViewRef`: the
page, the box on it and the size at which the model saw it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from vrag.geometry import Box
from vrag.items import Hit, Item


class ViewRef(BaseModel):
    """A picture by reference: which item, which part of it (page pixels), shown at which size."""

    model_config = ConfigDict(frozen=True)

    item: Item
    box: Box = Field(description="the part of the page that is shown, in page pixels")
    size: tuple[int, int] = Field(description="(width, height) of the image as the model saw it")
    timestamp: float | None = Field(default=None, description="seconds into the clip, for a video frame")


class Event(BaseModel):
    """Base of all events. ``step`` counts the model's turns from 1."""

    model_config = ConfigDict(frozen=True)

    type: str
    step: int = 0


class Delta(Event):
    """A piece of the model's reply while it streams; the driver emits it, records leave it out."""

    type: Literal["delta"] = "delta"
    channel: Literal["reasoning", "content"]
    text: str


class Thought(Event):
    """What the model thought before acting."""

    type: Literal["thought"] = "thought"
    text: str


class SearchStarted(Event):
    type: Literal["search"] = "search"
    query: str
    node: str | None = Field(default=None, description="the memory-graph node that the search grows")
    parents: tuple[str, ...] = ()


class SearchResults(Event):
    """What the retriever returned, and which of it is shown to the model (empty: nothing new)."""

    type: Literal["results"] = "results"
    query: str
    hits: tuple[Hit, ...]
    shown: tuple[str, ...]


class ViewShown(Event):
    """A picture enters the context: a whole page after a search, or a crop of it."""

    type: Literal["view"] = "view"
    view: ViewRef
    source: Literal["search", "crop", "memory"]


class CropRequested(Event):
    """The model named a region: ``displayed`` in the pixels it saw, ``page_box`` in page pixels, before padding."""

    type: Literal["crop"] = "crop"
    displayed: Box
    page_box: Box
    item_id: str


class Memorized(Event):
    """A memory-graph node was completed: its summary and the evidence that it keeps (as in ``graph``)."""

    type: Literal["memory"] = "memory"
    node: str
    summary: str
    kept: tuple[dict[str, Any], ...] = ()
    graph: dict[str, Any] = Field(default_factory=dict)


class GraphChanged(Event):
    """The memory graph grew, a node of it was judged, or it has its answer: the whole of it, ready to be drawn.

    The form is that of :meth:`vrag.memory_graph.MemoryGraph.to_json`, states, energies and pixels included.
    """

    type: Literal["graph"] = "graph"
    graph: dict[str, Any]


class Note(Event):
    """Something the episode told the model or repaired: an invalid action, an empty search, a renamed node."""

    type: Literal["note"] = "note"
    text: str


class Usage(Event):
    """Cost of one model call."""

    type: Literal["usage"] = "usage"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    images: int = 0
    image_pixels: int = 0
    image_bytes: int = 0


class Citation(BaseModel):
    """Where an answer was read: the page and the region (page pixels) of a view that the model had before it."""

    model_config = ConfigDict(frozen=True)

    item: Item
    box: Box | None = None
    timestamp: float | None = Field(default=None, description="seconds into the clip, for a video")


EndReason = Literal["answer", "forced_answer", "fallback", "no_answer", "time", "tokens", "stopped", "error"]


class Answered(Event):
    """The end of a run that has an answer. ``reason`` says how it came about."""

    type: Literal["answer"] = "answer"
    text: str
    reason: EndReason
    citations: tuple[Citation, ...] = ()


class Failed(Event):
    """The end of a run without an answer. ``text`` says what happened and what to do."""

    type: Literal["error"] = "error"
    text: str
    reason: EndReason
    error: str = Field(default="", description="the class of the error, e.g. RetrieverError")


AnyEvent = Annotated[
    Delta
    | Thought
    | SearchStarted
    | SearchResults
    | ViewShown
    | CropRequested
    | Memorized
    | GraphChanged
    | Note
    | Usage
    | Answered
    | Failed,
    Field(discriminator="type"),
]

#: Parses any event from its JSON form.
EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)
