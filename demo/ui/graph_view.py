"""The memory graph as data to be drawn: where every node and edge lies, what it says, how it looks.

All of it is worked out here; the browser only makes shapes of it (:mod:`demo.ui.graph_component`) and puts texts in as
text. What a model or a document says is so never read as markup or as script.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from demo.ui.text import clean
from vrag.events import Event, GraphChanged, Memorized
from vrag.memory_graph import ANSWER, ROOT, MemoryGraph, from_json
from vrag.report.graph_svg import HEIGHT, WIDTH, layout, line, wrap

Json = dict[str, Any]

#: What each state is called, in the order of the legend.
STATES = {
    "searching": "searching",
    "memorised": "memorised",
    "dead_end": "dead end",
    "critical_path": "critical path",
}
#: A mark for each state, in a square of 16 units, so that no state is told by its colour alone.
MARKS = {
    "searching": "M7 2.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9M10.4 10.4L14 14",
    "memorised": "M3 8.5L6.5 12L13 4.5",
    "dead_end": "M4 4L12 12M12 4L4 12",
    "critical_path": "M8 1.8L9.9 6L14.4 6.5L11 9.5L12 14L8 11.7L4 14L5 9.5L1.6 6.5L6.1 6Z",
}
TITLE_SIZE, TEXT_SIZE, FOOT_SIZE = 14.0, 12.0, 11.0
_PADDING, _MARK = 12, 22
_QUERY_LINES = 2
#: Of the text that is read out for a node, or shown under the mouse.
_ABOUT_CHARS = 600


@dataclass(frozen=True)
class Kept:
    """A piece of a node's memory as the page names it. ``energy`` is None, and the areas 0, where they are not known."""

    item_id: str
    kind: str
    label: str
    priority: float
    timestamps: tuple[float, ...]
    energy: float | None
    pixels: int
    """Its share of the budget, all its pictures together."""
    sent: int
    """What the model was really given of it last, in pixels."""

    def words(self) -> str:
        """Energy and pixels, for the caption."""
        parts = [f"priority {self.priority:g}"]
        if self.energy is not None:
            parts.append(f"energy {self.energy:.2f}")
        if self.kind != "text" and self.energy is not None:
            parts.append(f"{area(self.pixels)} allotted, {area(self.sent)} sent")
        return " · ".join(parts)


@dataclass(frozen=True)
class Details:
    """What a click on a node shows."""

    id: str
    title: str
    state: str
    query: str
    summary: str
    parents: tuple[str, ...]
    kept: tuple[Kept, ...]


def area(pixels: int) -> str:
    """An area in words: ``0.61 MP``, or ``none``."""
    return f"{pixels / 1e6:.2f} MP" if pixels else "none"


def graph_of(events: Sequence[Event]) -> Json:
    """The newest form of the graph in a run; empty before the first search."""
    for event in reversed(events):
        if isinstance(event, GraphChanged | Memorized) and event.graph:
            return event.graph
    return {}


def newest(value: Mapping[str, Any]) -> str:
    """The node to look at when nobody has chosen one: the answer, else the youngest search, else the question.

    Raises RecordError for what is no graph.
    """
    graph = _read(value, "")
    return ANSWER if graph.answer_parents is not None else next(reversed(graph.nodes), ROOT)


def drawing(value: Mapping[str, Any], question: str, selected: str = "") -> Json:
    """Nodes, edges and legend of a graph (the form of :meth:`vrag.memory_graph.MemoryGraph.to_json`), ready to be drawn.

    An empty ``value`` is a graph of the question alone. Raises RecordError for what is no graph.
    """
    graph = _read(value, question)
    parents = graph.parents()
    if graph.answer_parents is not None:
        parents[ANSWER] = graph.answer_parents or (ROOT,)
    plan = layout(parents)
    states: dict[str, str] = {**graph.states(), ANSWER: "critical_path"}
    path = {*graph.critical_path(), ANSWER} if graph.answer_parents is not None else set()
    edges = []
    for (parent, child), route in plan.routes.items():
        outline, tip = line(plan, route)
        look = "path" if {parent, child} <= path else "dead" if states[child] == "dead_end" else "plain"
        edges.append({"id": f"{parent}\x1f{child}", "line": outline, "tip": tip, "look": look})
    edges.sort(key=lambda edge: edge["look"] == "path")  # the critical path lies on top
    nodes = [_node(name, plan.places[name], states[name], graph) for name in parents]
    width, height = plan.size
    return {
        "width": round(width),
        "height": round(height),
        "nodes": nodes,
        "edges": edges,
        "selected": selected if selected in parents else "",
        "legend": [{"state": state, "name": name, "mark": MARKS[state]} for state, name in STATES.items()],
        "label": f"Memory graph: {_count(len(graph.nodes), 'search', 'searches')}",
    }


def details(value: Mapping[str, Any], question: str, node_id: str) -> Details | None:
    """What is known about a node; None where there is none of that id. Raises RecordError for what is no graph."""
    graph = _read(value, question)
    if node_id == ROOT:
        return Details(ROOT, "Question", graph.states()[ROOT], graph.question, "", (), ())
    if node_id == ANSWER and graph.answer_parents is not None:
        return Details(ANSWER, "Answer", "critical_path", "", "", graph.answer_parents, ())
    node = graph.nodes.get(node_id)
    if node is None:
        return None
    written = [one for one in value.get("nodes", ()) if one.get("id") == node_id]
    entries = {str(entry.get("id")): entry for one in written for entry in one.get("memory") or ()}
    kept = tuple(
        _kept(
            entries.get(evidence.item_id, {}), evidence.item_id, evidence.kind, evidence.priority, evidence.timestamps
        )
        for evidence in node.memory
    )
    return Details(node.id, node.id, graph.states()[node.id], node.query, node.summary or "", node.parents, kept)


def _read(value: Mapping[str, Any], question: str) -> MemoryGraph:
    return from_json(value)[0] if value else MemoryGraph(question)


def _kept(entry: Mapping[str, Any], item_id: str, kind: str, priority: float, timestamps: tuple[float, ...]) -> Kept:
    energy = entry.get("energy")
    return Kept(
        item_id=item_id,
        kind=kind,
        label=str(entry.get("label") or item_id),
        priority=priority,
        timestamps=timestamps,
        energy=float(energy) if isinstance(energy, int | float) else None,
        pixels=_whole(entry.get("pixels")),
        sent=_whole(entry.get("sent")),
    )


def _whole(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0


def _node(name: str, place: tuple[float, float], state: str, graph: MemoryGraph) -> Json:
    node = graph.nodes.get(name)
    if node is not None:
        title, text = node.id, node.query
        foot = "searching" if node.summary is None else f"{len(node.memory)} kept" if node.memory else "nothing kept"
    elif name == ROOT:
        title, text, foot = "Question", graph.question, ""
    else:
        title, text, foot = "Answer", f"rests on {_count(len(graph.answer_parents or ()), 'node', 'nodes')}", ""
    about = [title, STATES[state], text, foot if foot != STATES[state] else "", node.summary or "" if node else ""]
    return {
        "id": name,
        "kind": "search" if node is not None else "question" if name == ROOT else "answer",
        "state": state,
        "x": round(place[0], 1),
        "y": round(place[1], 1),
        "width": WIDTH,
        "height": HEIGHT,
        "mark": MARKS[state],
        "title": _first(_fitted([title], TITLE_SIZE, WIDTH - 2 * _PADDING - _MARK)),
        "lines": wrap(clean(text), WIDTH - 2 * _PADDING, TEXT_SIZE, _QUERY_LINES),
        "about": clean(". ".join(part for part in about if part), _ABOUT_CHARS),
        "foot": foot,
    }


def _fitted(texts: Iterable[str], size: float, width: float) -> list[str]:
    return [part for text in texts for part in wrap(clean(text), width, size, 1)]


def _first(texts: Sequence[str]) -> str:
    return texts[0] if texts else ""


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"
