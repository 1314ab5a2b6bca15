"""Drives an episode against a chat model and a retriever, blocking or async, and gives out its events as they happen.

    course = run(episode, chat, retriever)
    for event in course:
        ...
    course.outcome

What happens between an episode and the world (failures, the stop, the record) is decided once, in :func:`_supervised`;
the two drivers only do the waiting. Every run that is not closed early ends with ``Answered`` or ``Failed``, whatever
goes wrong. The stop is looked at between events, pieces of a reply and requests; closing a run (or cancelling the task
that iterates it) ends it at once, connections included.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import aclosing, closing

from vrag.chat import AsyncChat, Chat, Piece
from vrag.episode import (
    Episode,
    EpisodeRun,
    Fetch,
    FetchFrames,
    Generate,
    Generation,
    Outcome,
    Reply,
    Request,
    Retrieve,
)
from vrag.errors import VragError
from vrag.events import Answered, Delta, Event, Failed, ViewShown
from vrag.messages import well_formed
from vrag.records import RecordWriter
from vrag.retriever import AsyncRetriever, Retriever

log = logging.getLogger(__name__)

STOPPED = "The run was stopped before it had an answer."


class _Stopped(Exception):
    """The watcher asked for an end."""


class _Course:
    """What is known of a run, whichever way it is driven."""

    def __init__(self, record: RecordWriter | None, should_stop: Callable[[], bool] | None) -> None:
        self.outcome: Outcome | None = None
        """How the run ended; None while it goes, and when it was closed before its end."""
        self.error: Exception | None = None
        """The error that ended the run, where ``outcome.reason`` is "error"."""
        self.turn = 0
        """Requests to the model so far, the pending one included."""
        self.record = record
        self._should_stop = should_stop
        self.last: Answered | Failed | None = None
        """The event that ended the run, once it is there."""
        self._problem: Exception | None = None
        self._shown: dict[str, None] = {}

    def check_stop(self) -> None:
        """Raise _Stopped when the watcher wants an end and the run has none yet."""
        if self.last is None and self._should_stop is not None and self._should_stop():
            raise _Stopped

    def notice(self, event: Event) -> Event:
        """An event passes by."""
        if isinstance(event, ViewShown):
            self._shown[event.view.item.id] = None
        if isinstance(event, Answered | Failed):
            self.last = event
        if self.record is not None:
            self.record.event(event)
        return event

    def answered(self, request: Request, reply: Reply, started: float, error: Exception | None = None) -> None:
        """A request has its reply, or an error in its place."""
        self._problem = error
        if self.record is not None:
            seconds = time.monotonic() - started
            self.record.request(request, reply, step=self.turn, seconds=seconds, error=error)

    def delta(self, piece: Piece) -> Event:
        return self.notice(Delta(step=self.turn, channel=piece.channel, text=piece.text))

    def failure(self, error: Exception) -> tuple[Failed, Outcome]:
        """The last event and the outcome of a run that ends from outside of its episode."""
        shown = tuple(self._shown)
        if isinstance(error, _Stopped):
            return Failed(step=self.turn, text=STOPPED, reason="stopped"), Outcome(
                None, "stopped", self.turn, (), shown
            )
        self._problem = error
        text = str(error) if isinstance(error, VragError) else f"An unexpected error, {type(error).__name__}: {error}"
        text = well_formed(text)
        last = Failed(step=self.turn, text=text, reason="error", error=type(error).__name__)
        return last, Outcome(None, "error", self.turn, (), shown)

    def finish(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if outcome.reason == "error":
            said = self.last.text if isinstance(self.last, Failed) else "The run ended with an error."
            self.error = self._problem or VragError(said)
        if self.record is not None:
            self.record.end(outcome)


def _supervised(episode: Episode, course: _Course) -> Generator[Request | Event, Reply, None]:
    """The episode and everything that can happen to it. The driver throws in what went wrong with a request.

    A VragError is handed on to the episode, which may know what to do; any other error, and the stop, end the run here.
    """
    steps: EpisodeRun | None = None
    try:
        try:
            steps = episode.run()
            outcome = yield from _steps(steps, course)
        except Exception as error:
            if not isinstance(error, VragError | _Stopped):
                log.exception("a run ended with an unexpected error")
            last, outcome = course.failure(error)
            yield course.notice(last)
        course.finish(outcome)
    finally:
        if steps is not None:
            steps.close()
        if course.record is not None:
            course.record.close()


def _steps(steps: EpisodeRun, course: _Course) -> Generator[Request | Event, Reply, Outcome]:
    reply: Reply = None
    problem: VragError | None = None
    while True:
        course.check_stop()
        try:
            item = steps.send(reply) if problem is None else steps.throw(problem)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        reply = problem = None
        if isinstance(item, Event):
            yield course.notice(item)
            continue
        course.turn += isinstance(item, Generate)
        started = time.monotonic()
        try:
            reply = yield item
        except Exception as error:
            course.answered(item, None, started, error)
            if not isinstance(error, VragError):
                raise
            problem = error
        else:
            course.answered(item, reply, started)


class Run(_Course, Iterator[Event]):
    """A blocking run: an iterator of events."""

    def __init__(
        self,
        episode: Episode,
        chat: Chat,
        retriever: Retriever,
        record: RecordWriter | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(record, should_stop)
        self._events = self._drive(episode, chat, retriever)

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> Event:
        return next(self._events)

    def wait(self) -> Outcome:
        """Run to the end, whoever watches, and return the outcome."""
        for _ in self:
            pass
        if self.outcome is None:
            raise VragError("The run was closed before its end.")
        return self.outcome

    def close(self) -> None:
        """End the run where it is; open connections and the record are closed."""
        self._events.close()
        if self.record is not None:
            self.record.close()

    def _drive(self, episode: Episode, chat: Chat, retriever: Retriever) -> Generator[Event, None, None]:
        with closing(_supervised(episode, self)) as course:
            try:
                item = next(course)
                while True:
                    if isinstance(item, Event):
                        yield item
                        item = course.send(None)
                        continue
                    try:
                        reply = yield from self._fulfil(item, chat, retriever)
                    except Exception as error:
                        item = course.throw(error)
                    else:
                        item = course.send(reply)
            except StopIteration:
                return

    def _fulfil(self, request: Request, chat: Chat, retriever: Retriever) -> Generator[Event, None, Reply]:
        if isinstance(request, Retrieve):
            return retriever.search([request.query], request.top_k)[0]
        if isinstance(request, Fetch):
            return retriever.image(request.item_id)
        if isinstance(request, FetchFrames):
            return retriever.frames(request.item_id, request.fps, request.max_frames, request.max_pixels)
        with closing(chat.stream(request)) as parts:
            for part in parts:
                if isinstance(part, Generation):
                    return part
                yield self.delta(part)
                self.check_stop()
        raise AssertionError("a chat model's stream ends with a Generation")


class AsyncRun(_Course, AsyncIterator[Event]):
    """An async run: an async iterator of events, the same as :class:`Run` gives."""

    def __init__(
        self,
        episode: Episode,
        chat: AsyncChat,
        retriever: AsyncRetriever,
        record: RecordWriter | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(record, should_stop)
        self._events = self._drive(episode, chat, retriever)

    def __aiter__(self) -> AsyncRun:
        return self

    async def __anext__(self) -> Event:
        return await self._events.__anext__()

    async def wait(self) -> Outcome:
        """Run to the end, whoever watches, and return the outcome."""
        async for _ in self:
            pass
        if self.outcome is None:
            raise VragError("The run was closed before its end.")
        return self.outcome

    async def aclose(self) -> None:
        """End the run where it is; open connections and the record are closed."""
        await self._events.aclose()
        if self.record is not None:
            self.record.close()

    async def _drive(self, episode: Episode, chat: AsyncChat, retriever: AsyncRetriever) -> AsyncGenerator[Event, None]:
        with closing(_supervised(episode, self)) as course:
            try:
                item = next(course)
                while True:
                    if isinstance(item, Event):
                        yield item
                        item = course.send(None)
                        continue
                    try:
                        reply: Reply = None
                        if isinstance(item, Retrieve):
                            reply = (await retriever.search([item.query], item.top_k))[0]
                        elif isinstance(item, Fetch):
                            reply = await retriever.image(item.item_id)
                        elif isinstance(item, FetchFrames):
                            reply = await retriever.frames(item.item_id, item.fps, item.max_frames, item.max_pixels)
                        else:
                            async with aclosing(chat.stream(item)) as parts:
                                async for part in parts:
                                    if isinstance(part, Generation):
                                        reply = part
                                        break
                                    yield self.delta(part)
                                    self.check_stop()
                                else:
                                    raise AssertionError("a chat model's stream ends with a Generation")
                    except Exception as error:
                        item = course.throw(error)
                    else:
                        item = course.send(reply)
            except StopIteration:
                return


def run(
    episode: Episode,
    chat: Chat,
    retriever: Retriever,
    *,
    record: RecordWriter | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Run:
    """Drive ``episode`` to its end, blocking: iterate the result for the events, then read its ``outcome``.

    ``record`` is written and closed; ``should_stop`` is asked again and again, and True ends the run as "stopped".
    """
    return Run(episode, chat, retriever, record, should_stop)


def arun(
    episode: Episode,
    chat: AsyncChat,
    retriever: AsyncRetriever,
    *,
    record: RecordWriter | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> AsyncRun:
    """As :func:`run`, for an event loop: many episodes at once in one thread."""
    return AsyncRun(episode, chat, retriever, record, should_stop)
