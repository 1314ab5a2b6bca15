"""The VimRAG agent to import: a question in, an answer out, with the graph that led to it.

    from demo.vimrag_agent import VimRAG

    agent = VimRAG(base_url="https://dashscope.aliyuncs.com/compatible-mode/v1", search_url="http://127.0.0.1:8001/search",
                   model_name="qwen3.5-plus", api_key="sk-...")
    for event in agent.run({"query": "Your question here"}):
        print(event["event"], event)

    for event in agent.stream("..."):           # typed events (vrag.events), as they happen
        print(event)

In a terminal, with the services running: ``python demo/vimrag_agent.py "Your question here"``.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

if __package__ in (None, ""):  # started as a script: the project's root is on the path only where it is installed
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from demo.reporting import report
from demo.terminal import answer_once, question_parser
from vrag.chat import AsyncChatModel, ChatModel, Piece
from vrag.episode import Generate, Generation, Outcome
from vrag.errors import ConfigError
from vrag.events import Answered, Delta, Event, Failed, Memorized, SearchResults, SearchStarted
from vrag.items import Hit
from vrag.memory_graph import ANSWER, ROOT, ROOT_NAME
from vrag.records import RecordWriter, by_reference
from vrag.report import Report
from vrag.retriever import AsyncHttpRetriever, HttpRetriever
from vrag.runner import Run, arun, run
from vrag.settings import NO_KEY, VimragSettings
from vrag.usage import Totals
from vrag.vimrag_episode import VimragEpisode
from vrag.vimrag_options import VimragOptions

Stop = Callable[[], bool]
Json = dict[str, Any]

#: Where the key comes from when none is given to an agent that speaks to DashScope.
DASHSCOPE_KEY = "DASHSCOPE_API_KEY"


class VimRAG:
    """An agent that searches step by step, keeps evidence in a memory graph, and answers from it.

    The arguments up to ``enable_thinking`` are the published ones, and may be changed as attributes later; they hold for
    the runs that begin after that. ``fps_video`` and ``max_frames_video`` say how clips are sampled. Further ``settings``
    are the fields of :class:`vrag.settings.VimragSettings`: ``memory_preset``, ``native_tools``, ``time_budget``,
    ``record_dir``, ... What is None or not given there comes from the environment (``VRAG_MODEL``, ...), the key for
    DashScope from ``DASHSCOPE_API_KEY``, then from the defaults. Raises :class:`vrag.errors.ConfigError` for settings
    that make no sense.

    ``enable_thinking`` decides the sampling as published: temperature 0.6 and top_p 0.95 when on, greedy when off, unless
    the settings say otherwise. ``None`` leaves the switch to the endpoint.

    Every run opens its own connections and closes them, so one agent may be used from several threads.
    """

    def __init__(
        self,
        base_url: str | None = None,
        search_url: str | None = None,
        model_name: str | None = None,
        api_key: str | None = NO_KEY,
        max_pixels_image: int = VimragOptions.max_pixels_image,
        max_pixels_video: int = VimragOptions.max_pixels_video,
        memory_buffer_pixels: int | None = VimragOptions.memory.pixels,
        search_top_k: int = VimragOptions.top_k,
        max_mem_steps: int = VimragOptions.max_steps,
        enable_thinking: bool | None = True,
        **settings: Any,
    ) -> None:
        self.base_url = base_url
        self.search_url = search_url
        self.model_name = model_name
        self.api_key = api_key
        self.max_pixels_image = max_pixels_image
        self.max_pixels_video = max_pixels_video
        self.memory_buffer_pixels = memory_buffer_pixels
        """Area of all remembered pictures together; None: that of the ``memory_preset``."""
        self.search_top_k = search_top_k
        self.max_mem_steps = max_mem_steps
        self.enable_thinking = enable_thinking
        self.fps_video: float = settings.pop("fps", VimragOptions.fps)
        self.max_frames_video: int = settings.pop("max_frames", VimragOptions.max_frames)
        self._more = settings
        self.settings()  # what makes no sense is said at once

    def settings(self) -> VimragSettings:
        """The settings of the next run. Raises ConfigError."""
        sampling: Json = {"temperature": 0.0}
        if self.enable_thinking:
            sampling = {"temperature": 0.6, "top_p": 0.95}
        given: Json = {
            "base_url": self.base_url,
            "search_url": self.search_url,
            "model": self.model_name,
            "api_key": None if self.api_key in (None, "", NO_KEY) else self.api_key,
            "max_pixels_image": self.max_pixels_image,
            "max_pixels_video": self.max_pixels_video,
            "memory_pixels": self.memory_buffer_pixels,
            "top_k": self.search_top_k,
            "max_steps": self.max_mem_steps,
            "thinking": self.enable_thinking,
            "fps": self.fps_video,
            "max_frames": self.max_frames_video,
            **sampling,
            **self._more,
        }
        settings = VimragSettings(**given)
        key = os.environ.get(DASHSCOPE_KEY, "")
        host = urlsplit(settings.base_url).hostname or ""
        if key and settings.api_key.get_secret_value() == NO_KEY and host.endswith(".aliyuncs.com"):
            settings = settings.replace(api_key=key)
        return settings

    def run(self, data: Mapping[str, Any]) -> Generator[Json, None, None]:
        """The published events of a run for ``data["query"]``, as dicts; ``event`` names the kind:

        ``think`` and ``content`` (pieces of the reply, in ``content``), ``search`` (``query``, ``node_id``), ``search_done``
        (``results``), ``memorize`` (``summary``), and one of these at the end: ``answer`` (``content``, ``sample``),
        ``max_steps`` (no answer within the steps) or ``error``.

        ``sample`` is a copy of ``data`` with ``generate`` (the answer), ``trajectory`` (the calls of the model, pictures by
        reference), ``search_results``, ``graph`` (a list of nodes, the last one the answer), ``generate_times`` and
        ``usage``. ``data`` itself stays as it is.
        """
        question = data.get("query") if isinstance(data, Mapping) else None
        if not isinstance(question, str):
            raise ConfigError('The question is missing: run({"query": "..."}).')
        return self._published(question, data)

    def stream(self, question: str, *, should_stop: Stop | None = None) -> Generator[Event, None, Outcome | None]:
        """The typed events of a run, ending with ``Answered`` or ``Failed``; the generator's value is the outcome.

        Nothing is raised for what goes wrong on the way (it is the ``Failed`` event); ``should_stop`` is asked between
        events and pieces of a reply, and closing the generator ends the run.
        """
        with self._running(question, should_stop) as (course, _, _):
            yield from course
            return course.outcome

    async def astream(self, question: str, *, should_stop: Stop | None = None) -> AsyncGenerator[Event, None]:
        """As :meth:`stream`, for an event loop."""
        settings = self.settings()
        episode = VimragEpisode(question, settings.vimrag_options())
        async with AsyncChatModel(settings) as chat, AsyncHttpRetriever(settings) as retriever:
            record = _record(settings, episode)
            async with aclosing(arun(episode, chat, retriever, record=record, should_stop=should_stop)) as course:
                async for event in course:
                    yield event

    def report(self, question: str) -> Report:
        """A longer, sectioned answer in which claims carry their evidence; errors are raised."""
        with self._running(question) as (course, _, _):
            return report(course, question, "vimrag", self.settings())

    @contextmanager
    def _running(
        self, question: str, should_stop: Stop | None = None
    ) -> Iterator[tuple[Run, VimragEpisode, _TracedModel]]:
        settings = self.settings()
        episode = VimragEpisode(question, settings.vimrag_options())
        with _TracedModel(settings) as chat, HttpRetriever(settings) as retriever:
            course = run(episode, chat, retriever, record=_record(settings, episode), should_stop=should_stop)
            try:
                yield course, episode, chat
            finally:
                course.close()

    def _published(self, question: str, data: Mapping[str, Any]) -> Generator[Json, None, None]:
        found: list[Json] = []
        totals = Totals()
        with self._running(question) as (course, episode, chat):
            for event in course:
                totals.add(event)
                if isinstance(event, Delta):
                    yield {"event": "think" if event.channel == "reasoning" else "content", "content": event.text}
                elif isinstance(event, SearchStarted):
                    yield {"event": "search", "query": event.query, "node_id": event.node}
                elif isinstance(event, SearchResults):
                    results = [_result(hit, event.shown) for hit in event.hits]
                    found.append({"query": event.query, "results": results})
                    yield {"event": "search_done", "results": results}
                elif isinstance(event, Memorized):
                    yield {"event": "memorize", "summary": event.summary}
                elif isinstance(event, Answered):
                    settings = chat.settings
                    usage = totals.as_json()
                    if isinstance(settings, VimragSettings):
                        usage["cost"] = totals.cost(settings.input_price, settings.output_price)
                    sample = copy.deepcopy(dict(data))
                    sample.update(
                        generate=event.text,
                        trajectory=chat.trajectory,
                        search_results=found,
                        graph=_graph(episode),
                        generate_times=totals.calls,
                        usage=usage,
                        reason=event.reason,
                        citations=[citation.model_dump(mode="json") for citation in event.citations],
                    )
                    yield {"event": "answer", "content": event.text, "sample": sample}
                elif isinstance(event, Failed):
                    yield {"event": "max_steps" if event.reason == "no_answer" else "error", "content": event.text}


class _TracedModel(ChatModel):
    """A chat model that notes its calls, pictures by reference."""

    def __init__(self, settings: VimragSettings) -> None:
        super().__init__(settings)
        self.trajectory: list[Json] = []

    def stream(self, request: Generate) -> Generator[Piece | Generation, None, None]:
        with closing(super().stream(request)) as parts:
            for part in parts:
                if isinstance(part, Generation):
                    self._note(request, part)
                yield part

    def _note(self, request: Generate, reply: Generation) -> None:
        self.trajectory.append(
            {
                "purpose": request.purpose,
                "messages": [by_reference(turn).model_dump(mode="json") for turn in request.messages],
                "reply": reply.text,
                "reasoning": reply.reasoning,
                "tool_calls": list(reply.tool_calls),
            }
        )


def _record(settings: VimragSettings, episode: VimragEpisode) -> RecordWriter | None:
    if settings.record_dir is None:
        return None
    return RecordWriter(
        settings.record_dir,
        episode.question,
        agent="vimrag",
        settings=settings.public(),
        secrets=settings.secrets(),
    )


def _result(hit: Hit, shown: tuple[str, ...]) -> Json:
    """A hit by reference; ``file_path`` is the file's name, as far as a client may know it."""
    item = hit.item
    return {
        "type": item.kind,
        "id": item.id,
        "document": item.document,
        "page": item.page,
        "file_path": item.document,
        "label": item.label,
        "score": hit.score,
        "shown": item.id in shown,
        **({"content": item.content} if item.content is not None else {}),
    }


def _graph(episode: VimragEpisode) -> list[Json]:
    """The graph as published: a list of nodes, the root first and the answer last."""
    value = episode.graph.to_json(episode.options.memory)
    nodes: list[Json] = [{"id": ROOT, "name": ROOT_NAME, "content": episode.question}, *value["nodes"]]
    return [*nodes, value["answer"] or {"id": ANSWER, "parent_ids": []}]


def main(argv: list[str] | None = None) -> int:
    """Ask one question and print the steps and the cited answer; 0 when there is one."""
    parser = question_parser(DASHSCOPE_KEY, VimragOptions.max_steps, VimragOptions.top_k)
    parser.add_argument("--no-thinking", action="store_true", help="switch the model's thinking off")
    given = parser.parse_args(argv)

    def events() -> Iterator[Event]:
        agent = VimRAG(
            base_url=given.base_url,
            search_url=given.search_url,
            model_name=given.model,
            max_mem_steps=given.max_steps,
            search_top_k=given.top_k,
            enable_thinking=not given.no_thinking,
            record_dir=given.record_dir,
        )
        return agent.stream(given.question)

    return answer_once(events)


if __name__ == "__main__":
    sys.exit(main())
