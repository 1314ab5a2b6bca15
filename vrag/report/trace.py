"""A run as a report sees it: its events in order, wherever they come from, and the evidence in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from vrag.errors import RecordError
from vrag.events import Answered, Delta, Event, Failed, GraphChanged, Memorized, SearchResults, ViewShown
from vrag.geometry import Box, whole
from vrag.items import Item
from vrag.memory_graph import MemoryGraph, from_json
from vrag.records import Record


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A piece of evidence with the number by which texts cite it: a page, a region of it, a passage or a frame."""

    number: int
    item: Item
    box: Box | None = None
    """The region, in page pixels; None: all of it."""
    timestamp: float | None = None
    """Seconds into the clip, for a frame."""
    cited: bool = False
    """Whether the answer of the run rests on it."""

    @property
    def where(self) -> str:
        """The place as a person would name it: ``report.pdf, page 3, region 10, 20 to 300, 90``."""
        return place(self.item, self.box, self.timestamp)

    def as_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "id": self.item.id,
            "document": self.item.document,
            "page": self.item.page,
            "box": None if self.box is None else self.box.as_list(),
            "timestamp": self.timestamp,
            "cited": self.cited,
        }


def place(item: Item, box: Box | None = None, timestamp: float | None = None) -> str:
    """Name an item or a part of it."""
    if timestamp is not None:
        return f"{item.label}, at {timestamp:.1f} s"
    if box is None:
        return item.label
    return f"{item.label}, region {box.x1:.0f}, {box.y1:.0f} to {box.x2:.0f}, {box.y2:.0f}"


@dataclass(frozen=True)
class RunTrace:
    """The events of a run (without the streamed pieces) and what is known about it."""

    question: str
    events: tuple[Event, ...]
    agent: str = "vrag"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """As :meth:`vrag.settings.Settings.public` gives them."""
    started: datetime | None = None
    seconds: float | None = None
    """Wall-clock time of the whole run."""
    id: str = ""
    """Of its record, if it has one."""
    version: str = ""
    """Of the software that ran it."""

    @classmethod
    def of_record(cls, record: Record) -> RunTrace:
        header = record.header
        times = [entry.at for entry in record.entries]
        return cls(
            question=record.question,
            events=tuple(record.events),
            agent=header.agent,
            settings=header.settings,
            started=header.started,
            seconds=max(times, default=None),
            id=header.id,
            version=header.versions.get("vrag", ""),
        )

    @classmethod
    def of_events(cls, question: str, events: Iterable[Event], **about: Any) -> RunTrace:
        """A run that has no record; ``about`` are the other fields."""
        return cls(question, tuple(event for event in events if not isinstance(event, Delta)), **about)

    @property
    def end(self) -> Answered | Failed | None:
        """How it ended; None for a run that was cut off."""
        return next((event for event in reversed(self.events) if isinstance(event, Answered | Failed)), None)

    @property
    def answer(self) -> str | None:
        return self.end.text if isinstance(self.end, Answered) else None

    def items(self) -> dict[str, Item]:
        """Every item that a search found, by id."""
        found: dict[str, Item] = {}
        for event in self.events:
            if isinstance(event, SearchResults):
                found.update((hit.item.id, hit.item) for hit in event.hits)
        for event in self.events:  # what was opened knows its size
            if isinstance(event, ViewShown):
                found[event.view.item.id] = event.view.item
        return found

    def graph_json(self) -> Mapping[str, Any] | None:
        """The last memory graph as the events have it; None where there is none."""
        graphs = [event.graph for event in self.events if isinstance(event, GraphChanged | Memorized) and event.graph]
        return graphs[-1] if graphs else None

    def graph(self) -> MemoryGraph | None:
        """The last memory graph; None where there is none, or none that can be read."""
        value = self.graph_json()
        if value is None:
            return None
        try:
            return from_json(value)[0]
        except RecordError:
            return None

    def exhibits(self) -> tuple[Exhibit, ...]:
        """The evidence of the run, each once: what the answer cites, then what else was kept or looked at.

        A run with a memory graph kept what the graph keeps; another one what it looked at, close views first.
        """
        seen: dict[tuple[str, Box | None, float | None], Exhibit] = {}
        cited = self.end.citations if isinstance(self.end, Answered) else ()
        pieces = [(one.item, part_of(one.item, one.box), one.timestamp, True) for one in cited]
        pieces += [(item, part_of(item, box), timestamp, False) for item, box, timestamp in self._kept()]
        for item, box, timestamp, is_cited in pieces:
            key = (item.id, box, timestamp)
            if key not in seen:
                seen[key] = Exhibit(len(seen) + 1, item, box, timestamp, is_cited)
        return tuple(seen.values())

    def _kept(self) -> Iterator[tuple[Item, Box | None, float | None]]:
        items = self.items()
        graph = self.graph()
        if graph is not None:
            for node in graph.nodes.values():
                for evidence in node.memory:
                    if evidence.item_id in items:
                        for seconds in evidence.timestamps or (None,):
                            yield items[evidence.item_id], None, seconds
            return
        views = [event.view for event in self.events if isinstance(event, ViewShown) and event.source != "memory"]
        crops = [view for view in views if part_of(view.item, view.box) is not None]
        for view in crops:
            yield view.item, view.box, view.timestamp
        for view in views:
            if view not in crops:
                yield view.item, None, view.timestamp
        for event in self.events:
            if isinstance(event, SearchResults):
                for hit in event.hits:
                    if hit.item.kind == "text" and hit.item.id in event.shown:
                        yield hit.item, None, None


def part_of(item: Item, box: Box | None) -> Box | None:
    """The box, or None where it is the whole page."""
    if box is None or (item.width and item.height and box == whole((item.width, item.height))):
        return None
    return box
