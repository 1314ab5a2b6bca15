"""A baseline for VimRAG: the same tools and limits, but no memory; the whole history is sent again with every turn.

    question -> generate -> AddSearch: results are appended -> generate -> ... -> AddAnswer

This is how a ReAct agent works (Yao et al. 2023): thought, action, observation, each appended to what came before. Nothing
is judged, nothing is dropped and no picture gets smaller, so what a turn costs grows with every search. It exists to be
compared with: ``scripts/bench endtoend --agent vimrag react``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import replace
from typing import Any

from vrag import prompts
from vrag.episode import Generation, Reply, Request
from vrag.events import Citation, Event, Note
from vrag.library import Source
from vrag.memory_graph import Evidence
from vrag.messages import message
from vrag.tool_calls import MEMORIZE, AddSearch
from vrag.vimrag_episode import VimragEpisode
from vrag.vimrag_options import VimragOptions


class ReactEpisode(VimragEpisode):
    """One question, one run, with the options of VimRAG; those of the memory have no effect. Raises ConfigError."""

    def __init__(self, question: str, options: VimragOptions | None = None) -> None:
        options = options or VimragOptions()
        texts = replace(
            options.prompts,
            system=prompts.load("react"),
            native=prompts.load("react_native"),
            results=prompts.load("react_results"),
            nothing_new=prompts.load("react_nothing_new"),
        )
        self._last: dict[str, Source] = {}
        """What the last search brought, of those that brought anything."""
        super().__init__(question, replace(options, history="linear", prompts=texts))

    def _offered(self) -> tuple[dict[str, Any], ...]:
        return tuple(schema for schema in super()._offered() if schema["function"]["name"] != MEMORIZE)

    def _await_judgement(self, node: str, results: Mapping[str, Source]) -> None:
        """Nothing is judged: all of it stays."""
        self._last = dict(results)
        items = [source.item for source in results.values()]
        self.graph.memorise(node, "", [Evidence(item.id, item.kind, 3.0) for item in items])

    def _nothing_new(
        self, node: str, action: AddSearch, reply: Generation, call_id: str, seen: Iterable[str], notes: list[str]
    ) -> Generator[Request | Event, Reply, None]:
        self.graph.memorise(node, "")
        yield Note(step=self._meter.step, text="The search brought nothing that was not shown already.")
        said = self._said_before(node, action.query, seen)
        self._context += self._exchange(action, node, reply, call_id, [*notes, said])

    def _recall(self, memory: Mapping[str, Any], notes: Iterable[str] = ()) -> None:
        """Only ever the beginning: what follows is appended to it."""
        question = message("user", f"### Question\n{self.question}")
        self._context = [message("system", self._system), question]

    def _citations(self) -> tuple[Citation, ...]:
        """What the last search brought."""
        return tuple(Citation(item=source.item) for source in self._last.values())
