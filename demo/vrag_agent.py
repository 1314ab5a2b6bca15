"""The VRAG agent to import: a question in, an answer out, with everything in between for whoever wants to watch.

    from demo.vrag_agent import VRAG

    vrag = VRAG(base_url="http://0.0.0.0:8002/v1", search_url="http://0.0.0.0:8001/search", generator=False, api_key="EMPTY")
    answer = vrag.run("Your question here")

    for event in vrag.stream("..."):            # typed events (vrag.events), as they happen
        print(event)

In a terminal, with the services running: ``python demo/vrag_agent.py "Your question here"``.
"""

from __future__ import annotations

import io
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

if __package__ in (None, ""):  # started as a script: the project's root is on the path only where it is installed
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from demo.reporting import report
from demo.terminal import answer_once, question_parser
from vrag.chat import AsyncChatModel, ChatModel
from vrag.episode import Outcome
from vrag.events import Answered, CropRequested, Event, SearchStarted, Thought, ViewRef, ViewShown
from vrag.pages import open_page, view_of
from vrag.records import RecordWriter
from vrag.report import Report
from vrag.retriever import AsyncHttpRetriever, HttpRetriever
from vrag.runner import Run, arun, run
from vrag.settings import Settings
from vrag.vrag_episode import VragEpisode

Stop = Callable[[], bool]
#: ("think", text), ("search", query), ("search_image", picture), ("bbox", [x1, y1, x2, y2]), ("crop_image", picture),
#: ("answer", text). The box is in the pixels of the picture before it.
Published = tuple[str, Any]


class VRAG:
    """An agent that searches, looks at pages, looks closer and answers.

    ``settings`` are the fields of :class:`vrag.settings.Settings`: ``model``, ``temperature``, ``max_steps``, ``top_k``,
    ``max_pixels``, ``prompts``, ``record_dir``, ... What is not given comes from the environment (``VRAG_MODEL``, ...),
    then from the defaults. Raises :class:`vrag.errors.ConfigError` for settings that make no sense.

    Every run opens its own connections and closes them, so one agent may be used from several threads.
    """

    def __init__(
        self,
        base_url: str | None = None,
        search_url: str | None = None,
        generator: bool = False,
        api_key: str | None = None,
        **settings: Any,
    ) -> None:
        settings.update(base_url=base_url, search_url=search_url, api_key=api_key)
        self._configure(Settings(**settings), generator)

    @classmethod
    def from_settings(cls, settings: Settings, generator: bool = False) -> VRAG:
        agent = cls.__new__(cls)
        agent._configure(settings, generator)
        return agent

    def _configure(self, settings: Settings, generator: bool) -> None:
        self.settings = settings
        self.generator = generator
        self._options = settings.vrag_options()

    def run(self, question: str) -> Any:
        """The answer as a string; with ``generator=True``, a generator of the published tuples that returns it.

        Where the model has no answer, a sentence says so. Where a service cannot be used, the error is raised
        (:class:`vrag.errors.VragError`), and it says what to do.
        """
        if self.generator:
            return self._published(question)
        with self._running(question) as (course, _):
            course.wait()
            return _answer(course)

    def report(self, question: str) -> Report:
        """A longer, sectioned answer in which claims carry their evidence; ``vrag.report.save_html`` writes it to a file.

        Errors are raised as by :meth:`run`.
        """
        with self._running(question) as (course, _):
            return report(course, question, "vrag", self.settings)

    def stream(self, question: str, *, should_stop: Stop | None = None) -> Generator[Event, None, Outcome | None]:
        """The typed events of a run, ending with ``Answered`` or ``Failed``; the generator's value is the outcome.

        Nothing is raised for what goes wrong on the way (it is the ``Failed`` event); ``should_stop`` is asked between
        events and pieces of a reply, and closing the generator ends the run.
        """
        with self._running(question, should_stop) as (course, _):
            yield from course
            return course.outcome

    async def astream(self, question: str, *, should_stop: Stop | None = None) -> AsyncGenerator[Event, None]:
        """As :meth:`stream`, for an event loop."""
        episode = VragEpisode(question, self._options)
        async with AsyncChatModel(self.settings) as chat, AsyncHttpRetriever(self.settings) as retriever:
            record = self._record(episode)
            async with aclosing(arun(episode, chat, retriever, record=record, should_stop=should_stop)) as course:
                async for event in course:
                    yield event

    @contextmanager
    def _running(self, question: str, should_stop: Stop | None = None) -> Iterator[tuple[Run, _Album]]:
        episode = VragEpisode(question, self._options)
        with ChatModel(self.settings) as chat, _Album(self.settings) as album:
            course = run(episode, chat, album, record=self._record(episode), should_stop=should_stop)
            try:
                yield course, album
            finally:
                course.close()

    def _record(self, episode: VragEpisode) -> RecordWriter | None:
        settings = self.settings
        if settings.record_dir is None:
            return None
        return RecordWriter(
            settings.record_dir,
            episode.question,
            agent="vrag",
            settings=settings.public(),
            secrets=settings.secrets(),
        )

    def _published(self, question: str) -> Generator[Published, None, str]:
        with self._running(question) as (course, album):
            for event in course:
                if isinstance(event, Thought):
                    yield "think", event.text
                elif isinstance(event, SearchStarted):
                    yield "search", event.query
                elif isinstance(event, CropRequested):
                    yield "bbox", [int(side) if side == int(side) else side for side in event.displayed.as_list()]
                elif isinstance(event, ViewShown):
                    yield f"{event.source}_image", album.picture(event.view)
                elif isinstance(event, Answered):
                    yield "answer", event.text
            return _answer(course)


class _Album(HttpRetriever):
    """A retriever that keeps a run's pages, to show what the model sees without loading them again."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._limits = settings.min_pixels, settings.max_pixels
        self._pages: dict[str, bytes] = {}

    def image(self, item_id: str) -> bytes:
        self._pages[item_id] = data = super().image(item_id)
        return data

    def picture(self, view: ViewRef) -> Image.Image:
        """The picture that the model was shown."""
        page = open_page(self._pages[view.item.id], view.item)
        picture = Image.open(io.BytesIO(view_of(page, view.box, *self._limits).jpeg()))
        picture.load()
        return picture


def _answer(course: Run) -> str:
    """The answer of a finished run, or why there is none."""
    if course.error is not None:
        raise course.error
    assert course.last is not None  # the run has ended
    return course.last.text


def main(argv: list[str] | None = None) -> int:
    """Ask one question and print the steps and the cited answer; 0 when there is one."""
    given = vars(question_parser().parse_args(argv))
    question = given.pop("question")
    return answer_once(lambda: VRAG(**given).stream(question))


if __name__ == "__main__":
    sys.exit(main())
