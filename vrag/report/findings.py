"""The sections of a report without a writer: what the run itself noted about its evidence, word for word."""

from __future__ import annotations

from collections.abc import Sequence

from vrag.events import CropRequested, Event, SearchResults, SearchStarted, Thought, ViewShown
from vrag.memory_graph import MemoryGraph
from vrag.report.model import Claim, Paragraph, ReportSection
from vrag.report.trace import Exhibit, RunTrace, part_of

_QUOTE_CHARS = 600


def findings(trace: RunTrace, exhibits: Sequence[Exhibit]) -> tuple[ReportSection, ...]:
    """What was found, and how it was looked for; each claim with the evidence it stands beside in the run."""
    graph = trace.graph()
    if graph is not None and graph.nodes:
        return _of_graph(graph, exhibits)
    thoughts = _thoughts(trace.events)
    found = []
    for one in exhibits:
        said = thoughts.get((one.item.id, one.box)) or ""
        if one.item.kind == "text":
            said = one.item.content or ""
        if said:
            found.append(Paragraph((Claim(_quote(said), (one.number,)),), bullet=True))
    sections = [ReportSection("What was seen", tuple(found))] if found else []
    searched = []
    for query, shown in _searches(trace.events):
        numbers = tuple(one.number for one in exhibits if one.item.id in shown)
        text = f"The search for “{query}” brought" + (" this" if numbers else " nothing that is kept as evidence")
        searched.append(Paragraph((Claim(text, numbers),), bullet=True))
    if searched:
        sections.append(ReportSection("What was looked for", tuple(searched)))
    return tuple(sections)


def _of_graph(graph: MemoryGraph, exhibits: Sequence[Exhibit]) -> tuple[ReportSection, ...]:
    """The summaries of the nodes with the evidence that each keeps: the critical path first, then what led nowhere."""
    dead = set(graph.dead_ends())
    found: list[Paragraph] = []
    lost: list[Paragraph] = []
    for node in graph.nodes.values():
        kept = {evidence.item_id for evidence in node.memory}
        numbers = tuple(one.number for one in exhibits if one.item.id in kept)
        text = f"{node.query}: {_quote(node.summary or 'not judged')}"
        paragraph = Paragraph((Claim(text, numbers, unsupported=not numbers and node.id not in dead),), bullet=True)
        (lost if node.id in dead else found).append(paragraph)
    parts = (("What was found", found), ("What led nowhere", lost))
    return tuple(ReportSection(title, tuple(paragraphs)) for title, paragraphs in parts if paragraphs)


def _thoughts(events: Sequence[Event]) -> dict[tuple[str, object], str]:
    """What the model thought right after it was shown a picture, by the item and the region."""
    out: dict[tuple[str, object], str] = {}
    waiting: list[tuple[str, object]] = []
    for event in events:
        if isinstance(event, ViewShown):
            waiting.append((event.view.item.id, part_of(event.view.item, event.view.box)))
        elif isinstance(event, Thought):
            out.update((key, event.text) for key in waiting)
            waiting = []
        elif isinstance(event, SearchStarted | CropRequested):
            waiting = []
    return out


def _searches(events: Sequence[Event]) -> list[tuple[str, tuple[str, ...]]]:
    return [(event.query, event.shown) for event in events if isinstance(event, SearchResults)]


def _quote(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _QUOTE_CHARS else f"{text[:_QUOTE_CHARS].rstrip()} [...]"
