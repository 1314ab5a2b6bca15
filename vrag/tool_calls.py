"""The tool grammar of VimRAG: the three tools, and the parser that reads a call from a reply. Pure and total.

A reply thinks, then calls one tool, as JSON between tags::

    <tool_call>
    {"name": "add_search_node", "arguments": {"id": "sales 2023", "parent_ids": ["root"], "query": "sales in 2023"}}
    </tool_call>

How a reply that strays from it is read (:func:`parse_reply`):

* The first call that can be made out counts. What stands in a closed thought is looked at only when nothing follows it.
* The JSON is read leniently (:mod:`vrag.lenient_json`); it may stand in a code fence, lack its closing tag, or, when there
  is no tag at all, stand bare. The arguments may be a string of JSON, or lie beside the name; where the name is
  missing, the arguments tell the tool. Qwen's other form, ``<function=name><parameter=key>value``, is read as well.
* Arguments of a wrong type are converted where their meaning is plain: one parent instead of a list, ``"yes"``,
  ``"4/5"``, ``"00:12"``. Ratings are brought into 1 to 5.
* Chat markers and control characters are dropped; queries, ids, summaries and answers are cut at their limits.

An endpoint's native tool calls (:func:`parse_native`) go through the same conversions. The time is linear in the length
of the reply.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vrag import actions, lenient_json
from vrag.actions import MAX_ANSWER_CHARS, MAX_QUERY_CHARS, MAX_THOUGHT_CHARS, Invalid, clean

SEARCH, MEMORIZE, ANSWER = "add_search_node", "summarize_and_memorize", "add_answer_node"
MAX_ID_CHARS = 80
MAX_SUMMARY_CHARS = 4_000
MAX_PARENTS = 64
MAX_JUDGEMENTS = 200
MAX_TIMESTAMPS = 64
#: How many places of a reply are tried for a call.
_MAX_TRIES = 16


@dataclass(frozen=True, slots=True)
class AddSearch:
    """Grow the graph by a search. ``id`` is empty where the model gave none."""

    id: str
    parents: tuple[str, ...]
    query: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the model thinks of one thing that a search returned; ``name`` is what it was called, e.g. ``Picture 2``."""

    name: str
    useful: bool = True
    priority: float = 3.0
    """From 1 to 5."""
    timestamps: tuple[float, ...] = ()
    """Key moments of a clip, in seconds."""


@dataclass(frozen=True, slots=True)
class Memorize:
    summary: str
    judgements: tuple[Judgement, ...] = ()


@dataclass(frozen=True, slots=True)
class AddAnswer:
    parents: tuple[str, ...]
    text: str


GraphAction = AddSearch | Memorize | AddAnswer | Invalid


def _tool(name: str, description: str, required: Sequence[str], **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_TEXT = {"type": "string"}
_PARENTS = {
    "type": "array",
    "items": _TEXT,
    "description": 'ids of the nodes that this one builds on; ["root"] for a new line of thought',
}


def tool_schemas(parents: bool = True) -> tuple[dict[str, Any], ...]:
    """The tools in OpenAI's form; without ``parents``, for a memory that is a plain history."""
    above = {"parent_ids": _PARENTS} if parents else {}
    judgement = {
        "type": "object",
        "properties": {
            "information_id": {"type": "string", "description": "its name in the search result, e.g. Picture 2"},
            "is_useful": {"type": "boolean", "description": "whether it helps to answer the question"},
            "key_timestamp": {
                "type": "array",
                "items": {"type": "number"},
                "description": "for a video: the seconds of the frames worth keeping; else empty",
            },
            "priority_score": {"type": "number", "minimum": 1, "maximum": 5, "description": "5: holds the answer"},
        },
        "required": ["information_id", "is_useful", "priority_score"],
    }
    return (
        _tool(
            SEARCH,
            "Search the collection. The search becomes a node of the graph.",
            ["id", *above, "query"],
            id={"type": "string", "description": "a short title of the node that no other node has"},
            **above,
            query={"type": "string", "description": "what to look for, unlike the queries before it"},
        ),
        _tool(
            MEMORIZE,
            "Judge what the last search returned, and keep what matters. Everything else is forgotten.",
            ["summarize", "memorize"],
            summarize={
                "type": "string",
                "description": "one to three sentences with every fact found; says so if nothing was relevant",
            },
            memorize={"type": "array", "items": judgement, "description": "one entry for every returned item"},
        ),
        _tool(
            ANSWER,
            "Answer the question and finish.",
            [*above, "answer"],
            **(
                {"parent_ids": {**_PARENTS, "description": "ids of the nodes that the answer rests on"}}
                if above
                else {}
            ),
            answer={"type": "string", "description": "the answer, short"},
        ),
    )


# --- from a reply to an action

_THINK = re.compile(r"<(/?)think>", re.IGNORECASE)
_TAG = re.compile(r"<(/?)tool_call>", re.IGNORECASE)
_TAGS = re.compile(r"</?(?:tool_call|tool_response|tools|think)>", re.IGNORECASE)
_BLOCK = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.IGNORECASE | re.DOTALL)
_FUNCTION = re.compile(r"<function=\s*([\w.]{1,64})\s*>", re.IGNORECASE)
_PARAMETER = re.compile(r"<parameter=\s*(\w{1,64})\s*>|</?(?:parameter|function)\b[^<>]{0,64}>", re.IGNORECASE)
_NAME = re.compile(r"\b(add_search_node|summarize_and_memorize|add_answer_node)\b", re.IGNORECASE)


def parse_reply(reply: str) -> tuple[str, GraphAction]:
    """The thought ("" where there is none) and the action of a reply; see the module's text."""
    start, end, tail = _thought(reply)
    found, at = _first_call(reply, tail)
    if found is None and tail:
        found, _ = _first_call(reply[:tail], 0)
    if end is None:
        end = at
    thought = clean(_TAGS.sub(" ", reply[start:end]), MAX_THOUGHT_CHARS)
    if found is not None:
        return thought, found
    if not reply.strip():
        return thought, Invalid("It is empty.")
    return thought, Invalid("There is no tool call in it: a reply has to end with <tool_call>{...}</tool_call>.")


def parse_native(calls: Sequence[Mapping[str, Any]]) -> tuple[GraphAction, str]:
    """The first usable call of an endpoint's native tool calls, and its id; else why the first cannot be used."""
    first: Invalid | None = None
    for call in calls[:_MAX_TRIES]:
        function = call.get("function")
        name, arguments = (
            (function.get("name"), function.get("arguments")) if isinstance(function, Mapping) else ("", "")
        )
        action = _action({"name": name, "arguments": {} if arguments in (None, "") else arguments})
        if not isinstance(action, Invalid):
            return action, str(call.get("id") or "")
        first = first or action
    return first or Invalid("There is no tool call in it."), ""


def plain_text(reply: str) -> str:
    """What a reply says outside of thoughts and tool calls: the answer of a model that was asked for plain text.

    An answer that is given by a tool call, where there is one, is all of it.
    """
    _, action = parse_reply(reply)
    if isinstance(action, AddAnswer):
        return action.text
    _, _, tail = _thought(reply)
    said = _TAGS.sub(" ", _BLOCK.sub(" ", reply[tail:]))
    return "" if isinstance(action, AddSearch | Memorize) and not _TAG.search(reply) else actions.plain_text(said)


def wire_call(action: AddSearch | Memorize | AddAnswer, call_id: str) -> dict[str, Any]:
    """An action as a native tool call with valid JSON: what stands in the history, however the model wrote it."""
    name: str
    arguments: dict[str, Any]
    if isinstance(action, AddSearch):
        name, arguments = SEARCH, {"id": action.id, "parent_ids": list(action.parents), "query": action.query}
    elif isinstance(action, AddAnswer):
        name, arguments = ANSWER, {"parent_ids": list(action.parents), "answer": action.text}
    else:
        judged = [
            {
                "information_id": judgement.name,
                "is_useful": judgement.useful,
                "key_timestamp": list(judgement.timestamps),
                "priority_score": judgement.priority,
            }
            for judgement in action.judgements
        ]
        name, arguments = MEMORIZE, {"summarize": action.summary, "memorize": judged}
    text = json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def harmless(text: str, limit: int | None = None) -> str:
    """:func:`vrag.actions.clean`, and without the tags of this grammar, which a document must not forge."""
    return clean(_TAGS.sub(" ", text), limit)


def _thought(reply: str) -> tuple[int, int | None, int]:
    """Where the thought begins, where it ends (None: where the call begins), and where what follows it begins."""
    tags = list(_THINK.finditer(reply))
    opening = next((tag for tag in tags if not tag[1]), None)
    start = opening.end() if opening else 0
    closing = next((tag for tag in tags if tag[1] and (not opening or tag.start() >= start)), None)
    return (start, closing.start(), closing.end()) if closing else (start, None, 0)


def _first_call(reply: str, start: int) -> tuple[GraphAction | None, int]:
    """The first usable call from ``start`` on, or what is wrong with the first one; and where it begins."""
    problem: Invalid | None = None
    place = len(reply)
    for at, end in _places(reply, start):
        action = _read(reply, at, end)
        if action is None:
            continue
        if problem is None:
            place = at
        if not isinstance(action, Invalid):
            return action, at
        problem = problem or action
    return problem, place


def _places(reply: str, start: int) -> Iterator[tuple[int, int]]:
    """Where a call may stand: between the tags; or, where there are none, from each brace on."""
    tags = list(_TAG.finditer(reply, start))
    opening = [number for number, tag in enumerate(tags) if not tag[1]]
    for number in opening[:_MAX_TRIES]:
        yield tags[number].end(), tags[number + 1].start() if number + 1 < len(tags) else len(reply)
    if opening:
        return
    function = _FUNCTION.search(reply, start)
    if function:
        yield function.start(), len(reply)
        return
    brace = reply.find("{", start)
    for _ in range(_MAX_TRIES):
        if brace < 0:
            return
        yield brace, len(reply)
        brace = reply.find("{", brace + 1)


def _read(reply: str, start: int, end: int) -> GraphAction | None:
    """The call between two places; None where a bare object is none."""
    bare = reply[start : start + 1] == "{" and not reply[:start].rstrip().lower().endswith("<tool_call>")
    text = reply[start:end]
    brace = text.find("{")
    function = _FUNCTION.search(text)
    if function is not None and (brace < 0 or function.start() < brace):
        return _action({"name": function[1], "arguments": _parameters(text[function.end() :])})
    if brace < 0:
        return Invalid("The tool call holds no JSON object.")
    try:
        value, _ = lenient_json.decode(text, brace)
    except ValueError as error:
        return None if bare else Invalid(f"The JSON of the tool call cannot be read: {error}.")
    if not isinstance(value, dict):
        return None
    if "name" not in value and (named := _NAME.search(text[:brace])):
        value = {"name": named[1], "arguments": value}
    if bare and not _is_call(value):
        return None
    return _action(value)


def _is_call(value: Mapping[str, Any]) -> bool:
    """Whether an object that stands anywhere in a reply is a call."""
    name = value.get("name")
    if isinstance(name, str):
        return _NAME.search(name) is not None
    return isinstance(value.get("arguments"), dict | str) or _guess(value) != ""


def _parameters(text: str) -> dict[str, Any]:
    """``<parameter=key>value</parameter>`` ...: values are JSON where they can be, else text."""
    out: dict[str, Any] = {}
    name, start = "", 0
    for tag in _PARAMETER.finditer(text):
        if name:
            out[name] = _value(text[start : tag.start()].strip())
        name, start = tag[1] or "", tag.end()
        if len(out) > 16:
            return out
    if name:
        out[name] = _value(_TAGS.sub(" ", text[start:]).strip())
    return out


def _value(text: str) -> Any:
    if text[:1] in ("[", "{"):
        try:
            return lenient_json.decode(text)[0]
        except ValueError:
            return text
    return text


# --- from a call to an action

_FIELDS = {
    SEARCH: ("query", "queries", "search_query"),
    MEMORIZE: ("summarize", "summary", "memorize", "memory"),
    ANSWER: ("answer",),
}


def _guess(arguments: Mapping[str, Any]) -> str:
    """The tool that takes such arguments, "" where none does."""
    return next((name for name in (ANSWER, MEMORIZE, SEARCH) if any(key in arguments for key in _FIELDS[name])), "")


def _action(call: Mapping[str, Any]) -> GraphAction:
    """A decoded call, whatever is in it, as an action."""
    arguments = next((call[key] for key in ("arguments", "parameters", "args", "input") if key in call), None)
    if isinstance(arguments, str):
        try:
            arguments, _ = lenient_json.decode(arguments)
        except ValueError as error:
            return Invalid(f"The arguments of the tool call cannot be read: {error}.")
    if arguments is None:
        arguments = {key: value for key, value in call.items() if key != "name"}
    if not isinstance(arguments, dict):
        return Invalid("The arguments of the tool call have to be a JSON object.")
    said = call.get("name") or call.get("tool") or ""
    named = _NAME.search(said) if isinstance(said, str) else None
    name = named[1].lower() if named else "" if said else _guess(arguments)
    if name == SEARCH:
        return _search(arguments)
    if name == MEMORIZE:
        return _memorize(arguments)
    if name == ANSWER:
        return _answer(arguments)
    tools = f"{SEARCH}, {MEMORIZE} and {ANSWER}"
    if not said:
        return Invalid(f"The tool call names no tool; there are {tools}.")
    return Invalid(f"There is no tool {_line(said, 40)!r}; there are {tools}.")


def _search(arguments: Mapping[str, Any]) -> GraphAction:
    query = _line(_first(arguments, *_FIELDS[SEARCH]), MAX_QUERY_CHARS)
    if not query:
        return Invalid(f"The query of {SEARCH} has no words in it.")
    return AddSearch(_line(_first(arguments, "id", "node_id", "title"), MAX_ID_CHARS), _parents(arguments), query)


def _answer(arguments: Mapping[str, Any]) -> GraphAction:
    text = harmless(_text(_first(arguments, *_FIELDS[ANSWER])), MAX_ANSWER_CHARS)
    return AddAnswer(_parents(arguments), text) if text else Invalid(f"The answer of {ANSWER} is empty.")


def _memorize(arguments: Mapping[str, Any]) -> GraphAction:
    entries = _first(arguments, "memorize", "memory", "items")
    if isinstance(entries, str) and entries.lstrip()[:1] in ("[", "{"):
        entries = _value(entries.lstrip())
    if isinstance(entries, dict):
        # Either one entry, or entries by name.
        by_name = all(isinstance(value, dict) for value in entries.values())
        entries = [{"information_id": name, **value} for name, value in entries.items()] if by_name else [entries]
    listed = entries if isinstance(entries, list) else [entries] if isinstance(entries, str) else []
    judgements = [_judgement(entry) for entry in listed[:MAX_JUDGEMENTS]]
    summary = harmless(_text(_first(arguments, "summarize", "summary")), MAX_SUMMARY_CHARS)
    if not summary and not judgements:
        return Invalid(f"{MEMORIZE} needs a summary and a judgement of every item.")
    return Memorize(summary, tuple(judgement for judgement in judgements if judgement.name))


def _judgement(entry: Any) -> Judgement:
    if not isinstance(entry, dict):
        return Judgement(_line(entry, MAX_ID_CHARS))
    priority = _number(_first(entry, "priority_score", "priority", "score"))
    useful = _truth(_first(entry, "is_useful", "useful"))
    return Judgement(
        _line(_first(entry, "information_id", "id", "name"), MAX_ID_CHARS),
        useful=True if useful is None else useful,
        priority=3.0 if priority is None else min(max(priority, 1.0), 5.0),
        timestamps=tuple(_seconds(_first(entry, "key_timestamp", "key_timestamps", "timestamps", "timestamp"))),
    )


def _first(arguments: Mapping[str, Any], *names: str) -> Any:
    """The first of these fields that is there and not null."""
    return next((arguments[name] for name in names if arguments.get(name) is not None), None)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(_text(part) for part in value[:MAX_JUDGEMENTS] if not isinstance(part, list))
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return "" if value is None or isinstance(value, bool) else _digits(value)


def _digits(value: Any) -> str:
    """``str`` that does not fail on numbers of thousands of digits."""
    try:
        return str(value)
    except ValueError:
        return ""


def _line(value: Any, limit: int) -> str:
    return " ".join(harmless(_text(value)).split())[:limit].strip()


def _parents(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    value = _first(arguments, "parent_ids", "parent_id", "parents")
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _value(value.lstrip())
    listed = value if isinstance(value, list) else [] if value is None else [value]
    names = (_line(part, MAX_ID_CHARS) for part in listed[:MAX_PARENTS])
    return tuple(dict.fromkeys(name for name in names if name))


def _truth(value: Any) -> bool | None:
    if isinstance(value, str):
        word = value.strip().lower()
        return word not in ("false", "no", "0", "0.0", "none", "not useful", "useless") if word else None
    return bool(value) if isinstance(value, bool | int | float) else None


_NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?")
_TIME = re.compile(r"(?<![\d:.])(?:(\d{1,4}):)?(\d{1,4}):(\d{1,2}(?:\.\d{1,9})?)|\d{1,9}(?:\.\d{1,9})?")


def _number(value: Any) -> float | None:
    """A finite number, also from ``"4"`` or ``"4/5"``."""
    if isinstance(value, str):
        found = _NUMBER.search(value[:200])
        return float(found[0]) if found else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _seconds(value: Any) -> Iterator[float]:
    """Times in seconds, from numbers and from texts such as ``"12.5 seconds"`` and ``"1:02:03"``."""
    left = MAX_TIMESTAMPS
    for part in value if isinstance(value, list) else [value]:
        times: list[float] = []
        if isinstance(part, str):
            for found in _TIME.finditer(part[:2_000]):
                if found[2] is None:
                    times.append(float(found[0]))
                else:
                    times.append(int(found[1] or 0) * 3600 + int(found[2]) * 60 + float(found[3]))
        elif (number := _number(part)) is not None and number >= 0:
            times.append(number)
        yield from times[:left]
        left -= len(times[:left])
        if left <= 0:
            return


_INFORMATION = re.compile(
    r"(text|passage|picture|image|figure|page|video|clip)[\W_]{0,3}(\d{1,6})(?!\w)", re.IGNORECASE
)
_KINDS = {
    **dict.fromkeys(("text", "passage"), "Text"),
    **dict.fromkeys(("picture", "image", "figure", "page"), "Picture"),
    **dict.fromkeys(("video", "clip"), "Video"),
}


def information_name(name: str) -> str:
    """``picture_3``, ``Image 3:`` and the like as ``Picture 3``: how a search result names its items."""
    found = _INFORMATION.match(name.strip())
    return f"{_KINDS[found[1].lower()]} {int(found[2])}" if found else name.strip()
