"""The VimRAG episode: a model searches, keeps evidence in a memory graph, and answers from it. No I/O (see vrag.episode).

    graph and memory -> generate -> AddSearch: results -> generate -> Memorize: graph and memory, from scratch
                                                                   -> AddAnswer
                                 -> AddAnswer: text, critical path, citations

What a turn sees is the linearised graph and the kept pictures, drawn again for every turn at the size that the graph's
energy gives them (:mod:`vrag.graph_energy`); the history of replies is dropped after each judged search.

It always ends: at an answer; after ``max_steps`` turns, or after ``max_corrections`` unusable replies in a row, by one
turn that asks for the answer, then one in plain text over the same context; when the time or the tokens are spent by one
turn that asks for the answer; with a ``Failed`` event when the model or the retriever is not there.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from vrag import prompts
from vrag.actions import MAX_THOUGHT_CHARS, Invalid, clean
from vrag.episode import EpisodeRun, Fetch, FetchFrames, Frame, Generate, Generation, Outcome, Reply, Request, Retrieve
from vrag.errors import ConfigError, MediaError, VragError
from vrag.events import (
    Answered,
    Citation,
    EndReason,
    Event,
    Failed,
    GraphChanged,
    Memorized,
    Note,
    SearchResults,
    SearchStarted,
    Thought,
    ViewShown,
)
from vrag.items import Hit, Item
from vrag.library import Library, Part, Source, named, spread
from vrag.memory_graph import ROOT, Evidence, MemoryGraph
from vrag.messages import Message, joined, message
from vrag.pages import View, open_page
from vrag.tool_calls import (
    AddAnswer,
    AddSearch,
    GraphAction,
    Judgement,
    Memorize,
    harmless,
    information_name,
    parse_native,
    parse_reply,
    plain_text,
    tool_schemas,
    wire_call,
)
from vrag.turns import Meter, kept_reply, said
from vrag.vimrag_options import VimragOptions

#: What is left of an unusable reply in the turn that corrects it.
MAX_WRONG_CHARS = 2_000
#: Frames that stand for a clip which was called useful without naming a moment.
_UNNAMED_FRAMES = 3
_T = TypeVar("_T")
_Step = Generator["Request | Event", Reply, _T]


@dataclass(slots=True)
class _Found:
    """A search that waits to be judged: its node and what it brought, by the names that the model knows."""

    node: str
    sources: dict[str, Source]


class VimragEpisode:
    """One question, one run. Raises ConfigError for an empty question."""

    def __init__(self, question: str, options: VimragOptions | None = None) -> None:
        self.question = clean(question)
        if not self.question:
            raise ConfigError("The question is empty.")
        self.options = options or VimragOptions()
        self.graph = MemoryGraph(self.question, linear=self.options.history == "linear")
        schemas = self._offered()
        self._tools: tuple[dict[str, object], ...] = schemas if self.options.native_tools else ()
        self._system = self._system_prompt(schemas)
        self._context: list[Message] = []
        """The prompt of the graph and its memory, then the search that waits to be judged."""
        self._wrong: list[Message] = []
        """The last unusable reply and what was said to it; the next one takes their place."""
        self._corrections = 0
        self._found: _Found | None = None
        self._insisted = False
        self._library = Library(self.options.max_pixels_image, self.options.max_pixels_video)
        self._shown: dict[str, None] = {}
        self._sent: dict[tuple[str, str], int] = {}
        self._meter = Meter(self.options.max_seconds, self.options.max_tokens, self.options.clock)

    def run(self) -> EpisodeRun:
        self._meter.start()
        try:
            return (yield from self._loop())
        except VragError as error:
            return (yield from self._fail(str(error), "error", type(error).__name__))

    # The loop

    def _loop(self) -> _Step[Outcome]:
        self._recall({})
        for _ in range(self.options.max_steps):
            if self._meter.spent() or self._corrections >= self.options.max_corrections:
                break
            reply = yield from self._generate("memorize" if self._found else "act", self._context + self._wrong)
            action, call_id = yield from self._read(reply)
            if isinstance(action, AddAnswer):
                return (yield from self._finish(action, "answer"))
            problem = yield from self._act(action, reply, call_id)
            if problem:
                yield Note(step=self._meter.step, text=f"The reply could not be used. {problem}")
                self._correct(reply, problem)
            else:
                self._wrong, self._corrections = [], 0
        return (yield from self._conclude())

    def _act(self, action: AddSearch | Memorize | Invalid, reply: Generation, call_id: str) -> _Step[str]:
        """Do what the model asked for; returns why it cannot be done, or ""."""
        if isinstance(action, Invalid):
            return action.reason
        if isinstance(action, Memorize):
            if self._found is None:
                return "There is no search result to judge."
            yield from self._memorise(self._found, action)
            return ""
        if self._found is not None:
            if not self._insisted:
                self._insisted = True
                return (
                    f"The results of {self._found.node!r} are not judged yet, and another search would drop them: "
                    "call summarize_and_memorize first."
                )
            yield from self._drop(self._found)
        self._insisted = False
        yield from self._search(action, reply, call_id)
        return ""

    def _conclude(self) -> _Step[Outcome]:
        """No action is left: ask for the answer, then, within the budgets, for plain text over the same context."""
        texts = self.options.prompts
        spent = self._meter.spent()
        context = joined(
            [*self._context, message("user", prompts.fill(texts.answer_now, example=self._example(AddAnswer)))]
        )
        reply = yield from self._generate("answer_now", context)
        action, _ = yield from self._read(reply)
        if isinstance(action, AddAnswer):
            return (yield from self._finish(action, spent or "forced_answer"))
        spent = spent or self._meter.spent()
        if spent:
            answer = plain_text(said(reply))
        else:
            ask = message("user", prompts.fill(texts.fallback, question=self.question))
            context = [*context, message("assistant", kept_reply(reply)), ask]
            answer = plain_text(said((yield from self._generate("fallback", context, tools=False))))
        if answer:
            return (yield from self._finish(AddAnswer((), answer), spent or "fallback"))
        return (yield from self._fail(self._meter.no_answer(spent), spent or "no_answer"))

    def _finish(self, answer: AddAnswer, reason: EndReason) -> _Step[Outcome]:
        for repair in self.graph.answer(answer.parents):
            yield Note(step=self._meter.step, text=repair)
        yield self._graph_event()
        citations = self._citations()
        yield Answered(step=self._meter.step, text=answer.text, reason=reason, citations=citations)
        return Outcome(answer.text, reason, self._meter.step, citations, tuple(self._shown))

    def _fail(self, text: str, reason: EndReason, error: str = "") -> _Step[Outcome]:
        yield Failed(step=self._meter.step, text=text, reason=reason, error=error)
        return Outcome(None, reason, self._meter.step, (), tuple(self._shown))

    # One turn of the model

    def _generate(self, purpose: str, context: Sequence[Message], tools: bool = True) -> _Step[Generation]:
        self._meter.step += 1
        messages = tuple(joined(context))
        reply = cast(Generation, (yield Generate(messages, purpose, self._tools if tools else ())))
        yield self._meter.count(messages, reply)
        return reply

    def _read(self, reply: Generation) -> _Step[tuple[GraphAction, str]]:
        """The action of a reply, and the id of the native call that it came by ("" for one in the text)."""
        thought, action = parse_reply(said(reply))
        call_id = ""
        if reply.tool_calls:
            native, call_id = parse_native(reply.tool_calls)
            if not isinstance(native, Invalid) or isinstance(action, Invalid):
                action = native
            call_id = call_id or f"call_{self._meter.step}"
        if not self.options.native_tools or isinstance(action, Invalid):
            call_id = ""
        thoughts = [clean(reply.reasoning, MAX_THOUGHT_CHARS)] if reply.text.strip() or reply.tool_calls else []
        thought = "\n\n".join(dict.fromkeys(filter(None, [*thoughts, thought])))
        if thought:
            yield Thought(step=self._meter.step, text=thought)
        return action, call_id

    def _correct(self, reply: Generation, problem: str) -> None:
        """Say what was wrong, in other words each time: a model that decodes greedily would else repeat itself."""
        self._corrections += 1
        if reply.finish_reason == "length":
            problem += " It was cut off for its length: think more briefly."
        texts = self.options.prompts
        names = ["summarize_and_memorize"] if self._found else ["add_search_node"]
        allowed = f"What can be called now is {' or '.join([*names, 'add_answer_node'])}."
        template = texts.invalid if self._corrections == 1 else texts.invalid_again
        example = self._example(Memorize if self._found else AddSearch)
        said_to_it = prompts.fill(
            template, reason=problem, allowed=allowed, attempt=self._corrections + 1, example=example
        )
        wrong = kept_reply(reply)
        if reply.tool_calls and not reply.text.strip():
            wrong = clean(json.dumps([call.get("function") for call in reply.tool_calls[:4]], default=str))
        self._wrong = [message("assistant", wrong[:MAX_WRONG_CHARS]), message("user", said_to_it)]

    # Searching

    def _search(self, action: AddSearch, reply: Generation, call_id: str) -> _Step[None]:
        """Open a node and show what the search brings that was not shown yet."""
        node, repairs = self.graph.add(action.id, action.parents, action.query)
        for repair in repairs:
            yield Note(step=self._meter.step, text=repair)
        yield SearchStarted(step=self._meter.step, query=action.query, node=node.id, parents=node.parents)
        yield self._graph_event()
        hits = cast("list[Hit]", (yield Retrieve(action.query, self.options.top_k)))
        sources: list[Source] = []
        broken: list[str] = []
        seen: dict[str, None] = {}
        for hit in hits:
            if hit.item.id in self._library:
                seen[hit.item.id] = None
                continue
            try:
                source = yield from self._open(hit.item)
            except MediaError as error:
                broken.append(hit.item.label)
                yield Note(step=self._meter.step, text=f"An item cannot be shown. {error}")
                continue
            sources.append(source)
        results = named(sources)
        shown = tuple(source.item.id for source in results.values())
        self._shown.update(dict.fromkeys(shown))
        yield SearchResults(step=self._meter.step, query=action.query, hits=tuple(hits), shown=shown)
        notes = list(repairs)
        if broken:
            notes.append(f"What cannot be shown because it is damaged: {harmless(', '.join(broken))}.")
        if not sources:
            yield from self._nothing_new(node.id, action, reply, call_id, seen, notes)
            return
        parts: list[Part] = ["<tool_response>"]
        for name, source in results.items():
            parts += self._library.fresh(name, source)
        parts.append("</tool_response>")
        for part in parts:
            if isinstance(part, View):
                yield ViewShown(step=self._meter.step, view=part.ref(), source="search")
        parts += [*notes, prompts.fill(self.options.prompts.results, names=", ".join(results))]
        self._await_judgement(node.id, results)
        self._context += self._exchange(action, node.id, reply, call_id, parts)

    def _await_judgement(self, node: str, results: dict[str, Source]) -> None:
        self._found = _Found(node, results)

    def _exchange(
        self, action: AddSearch, node: str, reply: Generation, call_id: str, parts: Iterable[Part]
    ) -> list[Message]:
        """The search and its results as turns: in the text, or as a native call with its result.

        A tool's result is text in that protocol, so the pictures follow it in a turn of the user.
        """
        results = message("user", *parts)
        if not call_id:
            return [message("assistant", kept_reply(reply)), results]
        call = wire_call(AddSearch(node, action.parents, action.query), call_id)
        return [
            Message("assistant", (clean(reply.text),), tool_calls=(call,)),
            Message("user", ("The search is done; its results follow.",), tool_call_id=call_id),
            results,
        ]

    def _open(self, item: Item) -> _Step[Source]:
        """Load what is needed to show an item, and take it in. Raises MediaError where it cannot be shown."""
        source = Source(item)
        if item.kind == "image":
            source.page = open_page(cast(bytes, (yield Fetch(item.id))), item)
            source.item = source.page.item
        elif item.kind == "video":
            limits = self.options
            frames = yield FetchFrames(item.id, limits.fps, limits.max_frames, limits.max_pixels_video)
            of_frame = item.model_copy(update={"width": None, "height": None})  # measured as they were sent
            for frame in cast("list[Frame]", frames):
                source.frames.setdefault(round(frame.seconds, 3), open_page(frame.image, of_frame))
        self._library.add(source)
        return source

    def _nothing_new(
        self, node: str, action: AddSearch, reply: Generation, call_id: str, seen: Iterable[str], notes: list[str]
    ) -> _Step[None]:
        """Close a search that has nothing to be judged."""
        yield Note(step=self._meter.step, text="The search brought nothing that was not shown already.")
        text = self._said_before(node, action.query, seen)
        yield from self._close(node, "Nothing new was found.", (), [*notes, text])

    def _said_before(self, node: str, query: str, seen: Iterable[str]) -> str:
        """Where the hits of a search were seen before."""
        where = {kept.item_id: name for name, one in self.graph.nodes.items() for kept in one.memory}
        listed = [self._library[item].label + (f" (kept in {where[item]!r})" if item in where else "") for item in seen]
        return prompts.fill(
            self.options.prompts.nothing_new,
            node=repr(node),
            query=query,
            seen=f": {', '.join(listed)}" if listed else "",
        )

    # Remembering

    def _memorise(self, found: _Found, action: Memorize) -> _Step[None]:
        """Keep what the model judged worth it; what its judgement leaves unclear is settled and told."""
        notes: list[str] = []
        kept: list[Evidence] = []
        judged = self._resolve(found, action.judgements, notes)
        missing = [name for name in found.sources if name not in judged]
        if missing:
            notes.append(f"{', '.join(missing)} had no entry and was not kept.")
        for name, judgement in judged.items():
            if not judgement.useful:
                continue
            source = found.sources[name]
            times: tuple[float, ...] = ()
            if source.item.kind == "video":
                times = self._key_frames(name, source, judgement, notes)
            kept.append(Evidence(source.item.id, source.item.kind, judgement.priority, times))
        summary = action.summary
        if not summary:
            summary = "(no summary)"
            notes.append(f"{found.node!r} was left without a summary.")
        for note in notes:
            yield Note(step=self._meter.step, text=note)
        yield from self._close(found.node, summary, kept, notes)

    def _resolve(self, found: _Found, judgements: Iterable[Judgement], notes: list[str]) -> dict[str, Judgement]:
        """The judgements by the names of what they judge, in the order of the results; of two, the first counts."""
        names = list(found.sources)
        by_id = {source.item.id: name for name, source in found.sources.items()}
        resolved: dict[str, Judgement] = {}
        unknown: list[str] = []
        for judgement in judgements:
            name = by_id.get(judgement.name) or information_name(judgement.name)
            if name.isdecimal() and 0 < int(name) <= len(names):
                name = names[int(name) - 1]
            if name not in found.sources:
                unknown.append(repr(judgement.name))
            else:
                resolved.setdefault(name, judgement)
        if unknown:
            notes.append(f"There was no {', '.join(dict.fromkeys(unknown[:10]))} among the results.")
        return {name: resolved[name] for name in found.sources if name in resolved}

    def _key_frames(self, name: str, source: Source, judgement: Judgement, notes: list[str]) -> tuple[float, ...]:
        """The sampled frames nearest to the moments that were named; without any, a few that are spread evenly."""
        sampled = list(source.frames)
        if not judgement.timestamps:
            notes.append(f"No key_timestamp was given for {name}, so a few of its frames were kept.")
            return tuple(dict.fromkeys(spread(sampled, _UNNAMED_FRAMES)))
        nearest = {min(sampled, key=lambda seconds: abs(seconds - wanted)) for wanted in judgement.timestamps}
        return tuple(sorted(nearest))

    def _drop(self, found: _Found) -> _Step[None]:
        """Close a search that the model went on from without a judgement; what it brought may be found again."""
        for source in found.sources.values():
            self._library.forget(source.item.id)
        text = f"{found.node!r} was left without a judgement: nothing of it was kept."
        yield Note(step=self._meter.step, text=text)
        yield from self._close(found.node, "(not judged)", (), [text])

    def _close(self, node: str, summary: str, kept: Sequence[Evidence], notes: Sequence[str]) -> _Step[None]:
        """Complete a node and build the next prompt from the graph."""
        self._found = None
        self.graph.memorise(node, summary, kept)
        memory = self._library.remembered(self.graph.weigh(self.options.memory), self.options.memory_chars)
        self._sent = {
            (one.node, one.evidence.item_id): sum(part.pixels for part in parts if isinstance(part, View))
            for one, parts in memory
        }
        graph = self._graph_json()
        entries = next(tuple(entry["memory"]) for entry in graph["nodes"] if entry["id"] == node)
        yield Memorized(step=self._meter.step, node=node, summary=summary, kept=entries, graph=graph)
        yield GraphChanged(step=self._meter.step, graph=graph)
        shown: dict[str, list[Part]] = {}
        for one, parts in memory:
            shown.setdefault(one.node, []).extend(parts)
        for part in (part for parts in shown.values() for part in parts):
            if isinstance(part, View):
                yield ViewShown(step=self._meter.step, view=part.ref(), source="memory")
        self._recall(shown, notes)

    def _recall(self, memory: Mapping[str, Sequence[Part]], notes: Sequence[str] = ()) -> None:
        """Begin anew from the graph and its memory: the prompt of the next search."""
        texts = self.options.prompts
        parts: list[Part] = [prompts.fill(texts.question, question=self.question, graph=self.graph.linearise())]
        if memory:
            parts.append(texts.memory)
        for node, shown in memory.items():
            parts += [f"Node: {node}", *shown]
        if notes:
            parts.append("### Notes\n" + "\n".join(f"- {note}" for note in notes))
        self._context = [message("system", self._system), message("user", *parts)]

    # What is said and shown

    def _offered(self) -> tuple[dict[str, Any], ...]:
        """The tools of this run."""
        return tool_schemas(parents=not self.graph.linear)

    def _system_prompt(self, schemas: Sequence[dict[str, object]]) -> str:
        texts = self.options.prompts
        if self.options.native_tools:
            return texts.native
        tools = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
        arguments: dict[str, object] = {"id": "sales 2023", "parent_ids": [ROOT], "query": "sales by region in 2023"}
        if self.graph.linear:
            del arguments["parent_ids"]
        return prompts.fill(texts.system, tools=tools, example=json.dumps(arguments))

    def _example(self, kind: type[AddSearch] | type[Memorize] | type[AddAnswer]) -> str:
        """A call as it can be made now."""
        last = next(reversed(self.graph.nodes), ROOT)
        arguments: dict[str, Any]
        if kind is AddAnswer:
            name, arguments = "add_answer_node", {"parent_ids": [last], "answer": "..."}
        elif kind is Memorize and self._found is not None:
            first = next(iter(self._found.sources))
            entry = {"information_id": first, "is_useful": True, "key_timestamp": [], "priority_score": 3}
            name, arguments = "summarize_and_memorize", {"summarize": "...", "memorize": [entry]}
        else:
            name, arguments = "add_search_node", {"id": "...", "parent_ids": [last], "query": "..."}
        if self.graph.linear:
            arguments.pop("parent_ids", None)
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        return call if self.options.native_tools else f"<tool_call>\n{call}\n</tool_call>"

    def _graph_json(self) -> dict[str, Any]:
        return self.graph.to_json(self.options.memory, labels=self._library.labels(), sent=self._sent)

    def _graph_event(self) -> GraphChanged:
        return GraphChanged(step=self._meter.step, graph=self._graph_json())

    def _citations(self) -> tuple[Citation, ...]:
        """The evidence that the answer rests on: what its critical path keeps, the strongest first, after what the last
        search brought if the answer came straight from it. Where the path keeps nothing, what the graph keeps.
        """
        path = set(self.graph.critical_path())
        weighed = sorted(self.graph.weigh(self.options.memory), key=lambda one: -one.energy)
        cited: list[Citation] = []
        if self._found is not None and self._found.node in path:
            cited += [Citation(item=source.item) for source in self._found.sources.values()]
        for one in [one for one in weighed if one.node in path] or ([] if cited else weighed):
            item = self._library[one.evidence.item_id].item
            cited += [Citation(item=item, timestamp=seconds) for seconds in one.evidence.timestamps or (None,)]
        return tuple(cited)
