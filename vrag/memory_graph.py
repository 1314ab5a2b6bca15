"""The multimodal memory graph of VimRAG: which searches were made, on what each builds, and the evidence that it keeps.

A directed acyclic graph that grows from the question (``root``): a node is a search, its parents are the nodes it builds
on, and after it was judged it has a summary and a memory. Evidence is held by reference (item ids), never as bytes.

    graph = MemoryGraph("How much?")
    node, repairs = graph.add("sales", ["root"], "sales by year")
    graph.memorise(node.id, "Page 3 has the sales of 2023.", [Evidence("report_3", "image", 5)])
    graph.answer(["sales"])
    graph.critical_path()                       # ("root", "sales")

What a model asks for is never trusted: ids that are taken, parents that do not exist or come later, cycles. All of it is
repaired, and every repair is returned as a sentence that the model can be told. So these hold at any time
(:meth:`MemoryGraph.violations`): ids are unique, every parent was created before its child, every node is reached from
the root, and at most one search is open.

The graph is kept in plain dictionaries: at the size of a run (tens of nodes) they are ten times as fast as a graph library.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

from vrag.actions import clean
from vrag.errors import RecordError
from vrag.graph_energy import EnergyModel, energies, shares
from vrag.items import ItemKind

ROOT, ANSWER = "root", "answer"
#: The published name of the root in the prompt.
ROOT_NAME = "Initial Node"
MAX_ID_CHARS = 80
_WORDS_OF_AN_ID = 6
#: One encoder for all lines: ``json.dumps`` would make one for each.
_encode = json.JSONEncoder(ensure_ascii=False).encode

NodeState = Literal["searching", "memorised", "dead_end", "critical_path"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A piece of memory: a page, a picture, a passage or a clip, rated from 1 to 5."""

    item_id: str
    kind: ItemKind
    priority: float = 3.0
    timestamps: tuple[float, ...] = ()
    """The kept frames of a clip, in seconds."""

    def __post_init__(self) -> None:
        if not 1 <= self.priority <= 5:
            raise ValueError(f"a priority lies between 1 and 5, not at {self.priority}")

    @property
    def pictures(self) -> int:
        """How many pictures it has."""
        return {"image": 1, "video": len(self.timestamps), "text": 0}[self.kind]


@dataclass(frozen=True, slots=True)
class Node:
    """A search. ``summary`` is None until it has been judged."""

    id: str
    parents: tuple[str, ...]
    query: str
    summary: str | None = None
    memory: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Weighed:
    """A piece of memory with its energy and its part of the pixel budget."""

    node: str
    evidence: Evidence
    energy: float
    pictures: int
    """Pictures that are shown of it; 0: none."""
    pixels: int
    """Area of each at most."""


@dataclass
class MemoryGraph:
    """The graph of one run. ``linear``: every node follows the one before it, whatever parents are asked for (ablation)."""

    question: str
    linear: bool = False
    nodes: dict[str, Node] = field(default_factory=dict)
    """The searches, in the order of their creation; the root is not among them."""
    answer_parents: tuple[str, ...] | None = None
    """What the answer rests on; None while there is none."""

    # Growing

    def add(self, node_id: str, parents: Iterable[str], query: str) -> tuple[Node, tuple[str, ...]]:
        """Open a search. Returns the node as it stands in the graph, and what had to be repaired."""
        repairs: list[str] = []
        wanted = _line(node_id) or _line(" ".join(query.split()[:_WORDS_OF_AN_ID])) or "search"
        name = self._free(wanted)
        if name != wanted:
            repairs.append(f"The id {wanted!r} is taken, so the new node is called {name!r}.")
        if self.linear:
            above: tuple[str, ...] = (next(reversed(self.nodes), ROOT),)
        else:
            above = self._known(parents, f"of {name!r}", repairs)
            if not above:
                above = (ROOT,)
                repairs.append(f"No parent of {name!r} is known, so it builds on {ROOT!r}.")
        node = Node(name, above, query)
        self.nodes[name] = node
        return node, tuple(repairs)

    def memorise(self, node_id: str, summary: str, memory: Iterable[Evidence] = ()) -> Node:
        """Close a search: its summary, and what it keeps (each item once). Raises KeyError for an unknown node."""
        kept = {evidence.item_id: evidence for evidence in memory}
        self.nodes[node_id] = node = replace(self.nodes[node_id], summary=summary, memory=tuple(kept.values()))
        return node

    def answer(self, parents: Iterable[str]) -> tuple[str, ...]:
        """Set what the answer rests on; returns what had to be repaired.

        Where that is not known, it is taken to rest on every node on which nothing builds, and so on all of them: no
        node is then called a dead end without a reason.
        """
        repairs: list[str] = []
        if self.linear:
            self.answer_parents = (next(reversed(self.nodes), ROOT),)
            return ()
        above = self._known(parents, "of the answer", repairs)
        if not above:
            above = tuple(node for node, below in self.children().items() if not below)
            if self.nodes:
                repairs.append("The answer names no node that it rests on, so it rests on all that nothing builds on.")
        self.answer_parents = above
        return tuple(repairs)

    def _free(self, wanted: str) -> str:
        """``wanted``, or with a number if it is taken; the ids of the root and of the answer always are."""
        taken = {ROOT, ANSWER, *(name.casefold() for name in self.nodes)}
        name, number = wanted, 2
        while name.casefold() in taken:
            name, number = f"{wanted[: MAX_ID_CHARS - 6]}~{number}", number + 1
        return name

    def _known(self, parents: Iterable[str], of: str, repairs: list[str]) -> tuple[str, ...]:
        """The parents that exist, each once."""
        known = (ROOT, *self.nodes)
        folded = {name.casefold(): name for name in known}
        found: dict[str, None] = {}
        for parent in parents:
            name = _line(parent)
            close = folded.get(name.casefold())
            if close is None:
                repairs.append(f"There is no node {name!r}, so it was left out as a parent {of}.")
                continue
            if close != name:
                repairs.append(f"The parent {name!r} {of} was taken for {close!r}.")
            found[close] = None
        return tuple(found)

    # Reading

    @property
    def open(self) -> Node | None:
        """The search that has not been judged yet."""
        return next((node for node in reversed(self.nodes.values()) if node.summary is None), None)

    def parents(self) -> dict[str, tuple[str, ...]]:
        """The parents of the root and of every search, in the order of their creation, which is a topological one."""
        return {ROOT: (), **{name: node.parents for name, node in self.nodes.items()}}

    def children(self) -> dict[str, list[str]]:
        below: dict[str, list[str]] = {name: [] for name in (ROOT, *self.nodes)}
        for name, node in self.nodes.items():
            for parent in node.parents:
                below[parent].append(name)
        return below

    def critical_path(self) -> tuple[str, ...]:
        """The nodes that the answer rests on, directly or by their children, from the root on; empty without an answer."""
        if self.answer_parents is None:
            return ()
        reached = {ROOT, *self.answer_parents}
        for name in reversed(self.nodes):
            if name in reached:
                reached.update(self.nodes[name].parents)
        return tuple(name for name in (ROOT, *self.nodes) if name in reached)

    def dead_ends(self) -> tuple[str, ...]:
        """The nodes that led nowhere.

        With an answer: all that are not on its critical path. Before it, as far as can be told: judged, nothing kept, and
        nothing builds on them.
        """
        if self.answer_parents is not None:
            path = set(self.critical_path())
            return tuple(name for name in self.nodes if name not in path)
        below = self.children()
        return tuple(
            name
            for name, node in self.nodes.items()
            if node.summary is not None and not node.memory and not below[name]
        )

    def states(self) -> dict[str, NodeState]:
        """How each node, the root included, is to be drawn."""
        path, dead = set(self.critical_path()), set(self.dead_ends())
        out: dict[str, NodeState] = {ROOT: "critical_path" if path else "memorised"}
        for name, node in self.nodes.items():
            if name in path:
                out[name] = "critical_path"
            elif name in dead:
                out[name] = "dead_end"
            else:
                out[name] = "searching" if node.summary is None else "memorised"
        return out

    def weigh(self, model: EnergyModel) -> tuple[Weighed, ...]:
        """Every piece of memory with its energy and its share of the budget (eqs. 6 to 8), in the order of creation.

        Passages have energy, but no pictures: they take nothing from the budget.
        """
        rated = {
            name: [evidence.priority for evidence in node.memory] for name, node in self.nodes.items() if node.memory
        }
        found = energies(self.parents(), rated, model)
        pieces = [
            (name, evidence, energy)
            for name, node in self.nodes.items()
            for evidence, energy in zip(node.memory, found[name], strict=True)
        ]
        allotted = shares([energy for *_, energy in pieces], [evidence.pictures for _, evidence, _ in pieces], model)
        return tuple(
            Weighed(name, evidence, energy, pictures, pixels)
            for (name, evidence, energy), (pictures, pixels) in zip(pieces, allotted, strict=True)
        )

    def violations(self) -> list[str]:
        """What is wrong with the graph: always nothing."""
        wrong: list[str] = []
        before = {ROOT}
        for name, node in self.nodes.items():
            if name != node.id or not name or name in (ROOT, ANSWER):
                wrong.append(f"{name!r} is no id of a search")
            if not node.parents or len(set(node.parents)) != len(node.parents):
                wrong.append(f"the parents of {name!r} are none, or not unique")
            wrong += [f"{parent!r} is no earlier node than {name!r}" for parent in node.parents if parent not in before]
            if node.memory and node.summary is None:
                wrong.append(f"{name!r} keeps something but was not judged")
            if len({evidence.item_id for evidence in node.memory}) != len(node.memory):
                wrong.append(f"{name!r} keeps an item twice")
            before.add(name)
        if sum(node.summary is None for node in self.nodes.values()) > 1:
            wrong.append("more than one search is open")
        wrong += [
            f"the answer rests on {name!r}, which is no node"
            for name in self.answer_parents or ()
            if name not in before
        ]
        return wrong

    # The prompt's form

    def linearise(self) -> str:
        """The graph as a model reads it: a JSON list, one node per line; :func:`parse` reads it back."""
        lines: list[dict[str, Any]] = [{"id": ROOT, "name": ROOT_NAME, "content": self.question}]
        for node in self.nodes.values():
            line: dict[str, Any] = {"id": node.id}
            if not self.linear:
                line["parent_ids"] = list(node.parents)
            line["query"] = node.query
            if node.summary is not None:
                line["summary"] = node.summary
            if node.memory:
                line["memory"] = [_evidence_json(evidence) for evidence in node.memory]
            lines.append(line)
        if self.answer_parents is not None:
            lines.append({"id": ANSWER, "parent_ids": list(self.answer_parents)})
        return "[\n" + ",\n".join(map(_encode, lines)) + "\n]"

    # The watcher's form

    def to_json(
        self,
        model: EnergyModel | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        sent: Mapping[tuple[str, str], int] | None = None,
    ) -> dict[str, Any]:
        """The whole graph as JSON values: what an event carries, a record keeps and a page draws.

        ``nodes`` have ``id, parent_ids, query, summary, state`` and ``memory``: per kept item ``id, kind, priority_score,
        timestamps``, with a ``model`` also ``energy``, ``pictures`` and ``pixels`` (the share of the budget, all pictures
        together), and ``label`` and ``sent`` (pixels really sent, by node and item) where they are given.
        :func:`from_json` reads it back.
        """
        weighed = {(one.node, one.evidence.item_id): one for one in self.weigh(model)} if model is not None else {}
        states = self.states()
        nodes = []
        for node in self.nodes.values():
            memory = []
            for evidence in node.memory:
                entry = _evidence_json(evidence)
                if labels is not None:
                    entry["label"] = labels.get(evidence.item_id, evidence.item_id)
                if (one := weighed.get((node.id, evidence.item_id))) is not None:
                    entry.update(energy=one.energy, pictures=one.pictures, pixels=one.pictures * one.pixels)
                if sent is not None:
                    entry["sent"] = sent.get((node.id, evidence.item_id), 0)
                memory.append(entry)
            nodes.append(
                {
                    "id": node.id,
                    "parent_ids": list(node.parents),
                    "query": node.query,
                    "summary": node.summary,
                    "state": states[node.id],
                    "memory": memory,
                }
            )
        return {
            "question": self.question,
            "linear": self.linear,
            "root_state": states[ROOT],
            "nodes": nodes,
            "answer": None if self.answer_parents is None else {"id": ANSWER, "parent_ids": list(self.answer_parents)},
            "critical_path": list(self.critical_path()),
            "dead_ends": list(self.dead_ends()),
            "budget": None if model is None else model.pixels,
        }


def parse(text: str) -> tuple[MemoryGraph, tuple[str, ...]]:
    """The graph that :meth:`MemoryGraph.linearise` wrote, and what had to be repaired. Raises RecordError."""
    try:
        lines = json.loads(text)
        root = lines[0]
        question = root["content"]
        if root["id"] != ROOT or not isinstance(question, str):
            raise ValueError("the first node is not the root")
        last = lines[-1]
        answer = last["parent_ids"] if last["id"] == ANSWER else None
        nodes = lines[1:] if answer is None else lines[1:-1]
        linear = bool(nodes) and not any("parent_ids" in node for node in nodes)
        return _restored(question, linear, nodes, answer)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"This is not a linearised memory graph ({error}).") from error


def from_json(value: Mapping[str, Any]) -> tuple[MemoryGraph, tuple[str, ...]]:
    """The graph that :meth:`MemoryGraph.to_json` wrote, and what had to be repaired. Raises RecordError."""
    try:
        answer = value["answer"]
        parents = None if answer is None else answer["parent_ids"]
        return _restored(str(value["question"]), bool(value.get("linear")), value["nodes"], parents)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"This is not a memory graph in JSON ({error}).") from error


def _restored(
    question: str, linear: bool, records: Sequence[Mapping[str, Any]], answer: Sequence[str] | None
) -> tuple[MemoryGraph, tuple[str, ...]]:
    """A graph from records in any order: parents that come later are put before their children, cycles are cut."""
    graph = MemoryGraph(question, linear)
    repairs: list[str] = []
    records, reordered = _parents_first(records, repairs)
    repairs += reordered
    for record in records:
        node, repaired = graph.add(record["id"], () if linear else record["parent_ids"], record["query"])
        repairs += repaired
        if (summary := record.get("summary")) is not None:
            graph.memorise(node.id, str(summary), [_evidence(entry) for entry in record.get("memory", ())])
        elif (before := [one for one in graph.nodes.values() if one.summary is None])[1:]:
            graph.memorise(before[0].id, "")
            repairs.append(f"Only one search can be open, so {before[0].id!r} counts as judged.")
    if answer is not None:
        repairs += graph.answer(answer)
    return graph, tuple(repairs)


def _parents_first(
    records: Sequence[Mapping[str, Any]], repairs: list[str]
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The records with every parent before its children, otherwise in their order; an edge that closes a cycle is cut."""
    place: dict[str, int] = {}
    for number, record in enumerate(records):
        place.setdefault(record["id"], number)
    waiting: list[set[int]] = [
        {place[parent] for parent in record.get("parent_ids", ()) if parent in place} for record in records
    ]
    order: list[Mapping[str, Any]] = []
    done: set[int] = set()
    cut: list[str] = []
    while len(done) < len(records):
        ready = next((n for n in range(len(records)) if n not in done and waiting[n] <= done), None)
        if ready is None:
            ready = next(n for n in range(len(records)) if n not in done)
            names = {records[n]["id"] for n in waiting[ready] - done}
            cut.append(
                f"The parents {sorted(names)} of {records[ready]['id']!r} come after it or form a cycle: left out."
            )
            kept = [parent for parent in records[ready]["parent_ids"] if parent not in names]
            order.append({**records[ready], "parent_ids": kept})
        else:
            order.append(records[ready])
        done.add(ready)
    if not cut and order != list(records):
        repairs.append("The nodes were put in an order in which parents come first.")
    return order, cut


def _evidence_json(evidence: Evidence) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": evidence.item_id, "kind": evidence.kind, "priority_score": evidence.priority}
    if evidence.timestamps:
        entry["timestamps"] = list(evidence.timestamps)
    return entry


def _evidence(entry: Mapping[str, Any]) -> Evidence:
    if entry["kind"] not in get_args(ItemKind):
        raise ValueError(f"{entry['kind']!r} is no kind of item")
    times = tuple(float(time) for time in entry.get("timestamps", ()))
    if not all(math.isfinite(time) for time in times):
        raise ValueError("a timestamp is not finite")
    return Evidence(str(entry["id"]), cast(ItemKind, entry["kind"]), float(entry["priority_score"]), times)


def _line(text: object) -> str:
    """An id in one line: ids of nodes and of the parents that name them go through the same."""
    return " ".join(clean(text if isinstance(text, str) else str(text)).split())[:MAX_ID_CHARS].strip()
