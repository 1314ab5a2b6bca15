"""The tool grammar of VimRAG: from chat messages to a conversation on a graph, and from a step to a reply.

A conversation speaks it when the request carries the tools, or its first messages name them. What stands in it is read as
a model reads it: the question and the graph, what is kept under ``Node: id``, what a search brought between
``<tool_response>`` and ``</tool_response>``. Where nothing of the kind is ever kept (a plain history of searches), all that
was shown counts. What the last message asks for is read from the tools that its last paragraph names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from demo.reading.chat import ChatMessage
from demo.reading.dialogue import Demand, Look
from demo.reading.graph import Action, GraphTalk, Node, Shown, Step
from vrag.actions import clean
from vrag.errors import RecordError
from vrag.memory_graph import MemoryGraph, parse
from vrag.tool_calls import (
    ANSWER,
    MEMORIZE,
    SEARCH,
    AddAnswer,
    AddSearch,
    Memorize,
    harmless,
    parse_native,
    parse_reply,
    wire_call,
)

_NAMES = re.compile(rf"\b(?:{SEARCH}|{MEMORIZE}|{ANSWER})\b")
_GRAPH = re.compile(r"^### Agent Action Graph\s*\n(\[\n.*?\n\])", re.DOTALL | re.MULTILINE)
_QUESTION = re.compile(r"^### Question[ \t]*\n(.*?)(?=\n+### |\Z)", re.DOTALL | re.MULTILINE)
_ASKED = re.compile(r"^(?:Question|问题)\s*[:：]\s*(.+)", re.DOTALL | re.MULTILINE)
_NOTES = re.compile(r"^### Notes\b", re.MULTILINE)
_NODE = re.compile(r"Node: (.+)")
_ENTRY = re.compile(r"(Text|Picture|Video) (\d{1,4}) \((.*)\):")
_FRAME = re.compile(r"<(\d{1,6}(?:\.\d{1,3})?) seconds>")
_PARAGRAPH = re.compile(r"\n\s*\n")
MAX_QUESTION_CHARS = 4_000


@dataclass(frozen=True)
class Session:
    """A conversation in this grammar, and how it wants its replies."""

    talk: GraphTalk
    native: bool = False
    parents: bool = True
    """Whether nodes have parents; a memory that is a plain history has none."""
    refused: tuple[str, ...] = ()
    """Replies that were not taken, as the conversation shows them."""


@dataclass(frozen=True)
class Written:
    """A reply: its text, or a thought beside a native tool call."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()


def read(messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]] = ()) -> Session | None:
    """The conversation; None where it does not speak this grammar. Total."""
    native = {name for tool in tools if (name := _tool_name(tool)) in (SEARCH, MEMORIZE, ANSWER)}
    offered = "\n\n".join(message.text for message in messages if message.role == "system")
    named = native or set(_NAMES.findall(offered))
    if SEARCH not in named and ANSWER not in named:
        return None
    described = json.dumps(tools) if native else offered
    turns = list(_turns(messages))
    state = _State(keeps=MEMORIZE in named)
    for said, heard in turns:
        state.take(said, heard)
    return Session(
        talk=state.talk(_demand(turns[-1])),
        native=bool(native),
        parents="parent_ids" in described,
        refused=tuple(state.refused),
    )


def write(steps: Iterable[Step], session: Session, number: int = 0) -> Written:
    """The first of the steps that was not refused before, as a reply. ``number`` makes the id of a native call."""
    if session.talk.demand == "plain":
        return Written(next((step.action.text for step in steps if isinstance(step.action, AddAnswer)), "-"))
    first: Written | None = None
    for step in steps:
        written = _written(step, session, number)
        first = first or written
        if not _was_refused(written, session.refused):
            return written
    assert first is not None, "there is always an answer"
    return first


def _written(step: Step, session: Session, number: int) -> Written:
    call = wire_call(_harmless(step.action), f"call_{number}")
    function = call["function"]
    if not session.parents:
        arguments = {key: value for key, value in json.loads(function["arguments"]).items() if key != "parent_ids"}
        function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    thought = harmless(step.thought)
    if session.native:
        return Written(reasoning=thought, tool_calls=(call,))
    body = f'{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}'
    return Written(f"<think>\n{thought}\n</think>\n<tool_call>\n{body}\n</tool_call>")


def _harmless(action: Action) -> Action:
    """Text that was read on a page must not act as a tag."""
    if isinstance(action, AddSearch):
        return AddSearch(harmless(action.id), action.parents, harmless(action.query))
    if isinstance(action, AddAnswer):
        return AddAnswer(action.parents, harmless(action.text) or "-")
    return Memorize(harmless(action.summary), action.judgements)


def _was_refused(written: Written, refused: Iterable[str]) -> bool:
    """Whether a reply is one of those; a conversation shows them shortened, and native calls as JSON."""
    forms = [clean(written.text), json.dumps([call["function"] for call in written.tool_calls], default=str)]
    return any(wrong and any(form.startswith(wrong) for form in forms) for wrong in map(str.strip, refused))


def _tool_name(tool: Mapping[str, Any]) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""


Turn = tuple[ChatMessage | None, list[str | bytes]]


def _turns(messages: Iterable[ChatMessage]) -> Iterator[Turn]:
    """What the assistant said, and all that followed it; before its first words there is None."""
    said: ChatMessage | None = None
    heard: list[str | bytes] = []
    for message in messages:
        if message.role == "system":
            continue
        if message.role == "user":
            heard += message.content
            continue
        if said is not None or heard:
            yield said, heard
        said, heard = message, []
    yield said, heard


@dataclass
class _State:
    """What was read so far."""

    keeps: bool
    """Whether results have to be judged; else all of them stay before the reader."""
    question: str = ""
    nodes: list[Node] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    open: str = ""

    def take(self, said: ChatMessage | None, heard: Sequence[str | bytes]) -> None:
        text = "\n\n".join(part for part in heard if isinstance(part, str))
        action = _action(said) if said is not None else None
        if isinstance(action, AddSearch):
            self.tried.append(action.query)
        graph = _graph(text) if action is None else None
        if graph is not None:
            self.question = graph.question
            self.nodes = [_node(graph, name) for name in graph.nodes]
            self.tried += [node.query for node in self.nodes]
            self.shown = list(_kept(heard))
        elif not self.question and (asked := _QUESTION.search(text) or _ASKED.search(text)):
            self.question = clean(asked[1], MAX_QUESTION_CHARS)
        if isinstance(action, AddSearch) and "<tool_response>" in text:
            self._results(action, heard)
        elif isinstance(action, AddSearch) and not self.keeps and action.query in text:
            self.nodes.append(Node(action.id, action.parents, action.query))  # it brought nothing new
        elif said is not None:
            self.refused.append(said.text)

    def _results(self, action: AddSearch, heard: Sequence[str | bytes]) -> None:
        name = action.id or action.query
        self.shown += list(_results(heard, name))
        self.refused.clear()
        if self.keeps:
            self.open = name
        else:
            self.nodes.append(Node(name, action.parents, action.query, useful=True))

    def talk(self, demand: Demand) -> GraphTalk:
        return GraphTalk(
            question=self.question,
            nodes=tuple(self.nodes),
            shown=tuple(self.shown),
            open=self.open,
            tried=tuple(self.tried),
            demand=demand,
        )


def _action(said: ChatMessage) -> object:
    if said.tool_calls:
        return parse_native(said.tool_calls)[0]
    return parse_reply(said.text)[1]


def _graph(text: str) -> MemoryGraph | None:
    found = _GRAPH.search(text)
    if found is None:
        return None
    try:
        return parse(found[1])[0]
    except RecordError:
        return None


def _node(graph: MemoryGraph, name: str) -> Node:
    node = graph.nodes[name]
    return Node(node.id, node.parents, node.query, node.summary or "", bool(node.memory))


def _paragraphs(parts: Iterable[str | bytes]) -> Iterator[str | bytes]:
    """The paragraphs of the texts, and the pictures, in order."""
    for part in parts:
        if isinstance(part, bytes):
            yield part
        else:
            yield from (text for piece in _PARAGRAPH.split(part) if (text := piece.strip("\n")).strip())


def _results(parts: Iterable[str | bytes], node: str) -> Iterator[Shown]:
    """What stands between the tags of a tool's response: entries by their names, each with its pictures or its text.

    The names count up and a picture follows its name, so a passage with a line like a name hardly ever begins an entry.
    """
    inside = False
    counts = {"Text": 0, "Picture": 0, "Video": 0}
    entry: _Entry | None = None
    pieces = list(_paragraphs(parts))
    for piece, following in zip(pieces, [*pieces[1:], ""], strict=True):
        if isinstance(piece, bytes):
            if entry is not None:
                entry.images.append(piece)
            continue
        before, begin, after = piece.partition("<tool_response>")
        inside = inside or bool(begin)
        piece, end, _ = (after if begin else before).strip("\n").partition("</tool_response>")
        head, _, rest = piece.partition("\n")
        named = _ENTRY.fullmatch(head.strip()) if inside else None
        if named and int(named[2]) == counts[named[1]] + 1 and _begins(named[1], following):
            if entry is not None:
                yield entry.shown(node)
            counts[named[1]] += 1
            entry = _Entry(f"{named[1]} {named[2]}", named[3])
            piece = rest
        if entry is not None:
            entry.say(piece)
        if end:
            break
    if entry is not None:
        yield entry.shown(node)


def _begins(kind: str, following: str | bytes) -> bool:
    """Whether what follows a name is what such an entry begins with."""
    return kind == "Text" or isinstance(following, bytes) or _FRAME.fullmatch(following.strip()) is not None


def _kept(parts: Iterable[str | bytes]) -> Iterator[Shown]:
    """What the memory holds: pictures and passages under the node that they were kept for."""
    node, label = "", ""
    entries: dict[tuple[str, str], _Entry] = {}
    for piece in _paragraphs(parts):
        if isinstance(piece, bytes):
            if node:
                entries.setdefault((node, label), _Entry(label, label)).images.append(piece)
            continue
        if _NOTES.match(piece):
            break
        if named := _NODE.fullmatch(piece.strip()):
            node, label = named[1], ""
        elif node:
            head, colon, rest = piece.strip().partition(":\n")
            if (colon and "\n" not in head) or ("\n" not in head and head.endswith(":")):
                label = head if colon else head[:-1]
                entries.setdefault((node, label), _Entry(label, label)).say(rest)
            elif (node, label) in entries:
                entries[node, label].say(piece)
    for (node, _), entry in entries.items():
        yield entry.shown(node)


@dataclass
class _Entry:
    """An entry as it is read: its name, what it is called, and what stands under it."""

    name: str
    label: str
    images: list[bytes] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def say(self, text: str) -> None:
        if at := _FRAME.fullmatch(text.strip()):
            self.seconds.append(float(at[1]))
        elif text.strip():
            self.words.append(text)

    def shown(self, node: str) -> Shown:
        if not self.images:
            return Shown(node, self.name, self.label, (Look(passage=clean("\n\n".join(self.words))),))
        times = tuple(self.seconds) if len(self.seconds) == len(self.images) else ()
        return Shown(node, self.name, self.label, tuple(Look(image) for image in self.images), times)


def _demand(turn: Turn) -> Demand:
    """What the last turn asks for."""
    said, heard = turn
    text = "\n\n".join(part for part in heard if isinstance(part, str))
    paragraphs = [part for part in _PARAGRAPH.split(text) if part.strip()]
    last = paragraphs[-1] if paragraphs else ""
    if _NAMES.search(last) and not _NOTES.match(last):
        return "answer" if set(_NAMES.findall(last)) == {ANSWER} else "act"
    plain = said is not None and "<tool_response>" not in text and _ASKED.search(text)
    return "plain" if plain else "act"
