"""Running episodes through real servers: the same events blocking and async, and an end whatever goes wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.servers import Fault, Say, Scripted, ScriptedModel, TinyRetriever, page, pictures, serve
from vrag.chat import AsyncChatModel, ChatModel
from vrag.episode import Episode, EpisodeRun, Fetch, Generate, Generation, Outcome, Retrieve
from vrag.errors import MediaError, ModelError, RetrieverError, VragError
from vrag.events import Answered, Delta, Event, Failed, Note, SearchResults, Usage, ViewShown
from vrag.messages import message
from vrag.retriever import AsyncHttpRetriever, HttpRetriever
from vrag.runner import Run, arun, run
from vrag.settings import Settings
from vrag.vrag_episode import VragEpisode, VragOptions

GOOD = (
    Say("<think>I need the page.</think><search>wind power</search>", reasoning="Hm."),
    "<think>Too small.</think><bbox>[10, 20, 300, 200]</bbox>",
    "<think>There.</think><answer>42 MW</answer>",
)


@dataclass
class World:
    """A scripted model and a tiny retriever on loopback, and clients for both."""

    settings: Settings
    model: ScriptedModel
    service: TinyRetriever

    def blocking(self, episode: Episode, **options: Any) -> tuple[list[Event], Run]:
        with ChatModel(self.settings) as chat, HttpRetriever(self.settings) as retriever:
            course = run(episode, chat, retriever, **options)
            return list(course), course

    def awaited(self, episode: Episode, **options: Any) -> tuple[list[Event], Outcome | None]:
        async def go() -> tuple[list[Event], Outcome | None]:
            async with AsyncChatModel(self.settings) as chat, AsyncHttpRetriever(self.settings) as retriever:
                course = arun(episode, chat, retriever, **options)
                return [event async for event in course], course.outcome

        return asyncio.run(go())


@contextmanager
def world(
    script: Callable[[], Callable[[dict[str, Any]], Scripted]] | tuple[Scripted, ...], **changes: Any
) -> Iterator[World]:
    model = ScriptedModel(script if isinstance(script, tuple) else script())
    service = TinyRetriever(
        [page("report_1", "solar power"), page("report_2", "wind power"), page("slides_1", "water")]
    )
    with serve(model.app) as model_url, serve(service.app) as search_url:
        options = {"base_url": f"{model_url}/v1", "model": "scripted", "search_url": search_url, "retries": 0}
        yield World(Settings(**{**options, "search_retries": 0, **changes}), model, service)


def timeless(events: list[Event]) -> list[Event]:
    return [event.model_copy(update={"seconds": 0.0}) if isinstance(event, Usage) else event for event in events]


def test_a_whole_run_the_same_blocking_and_async() -> None:
    with world(GOOD * 2) as there:
        events, course = there.blocking(VragEpisode("How much wind power?"))
        awaited, outcome = there.awaited(VragEpisode("How much wind power?"))
        assert [pictures(body) for body in there.model.requests[:3]] == [
            [],
            [(566, 708)],
            [(566, 708), next(e.view.size for e in events if isinstance(e, ViewShown) and e.source == "crop")],
        ]
    assert timeless(events) == timeless(awaited)
    assert course.outcome == outcome
    assert course.outcome == Outcome("42 MW", "answer", 3, course.outcome.citations, ("report_2",))
    assert course.error is None
    assert course.last == events[-1]
    kinds = [event.type for event in events if not isinstance(event, Delta)]
    assert kinds == [
        *["usage", "thought", "search", "results", "view"],
        *["usage", "thought", "crop", "view"],
        *["usage", "thought", "answer"],
    ]
    assert [event.prompt_tokens for event in events if isinstance(event, Usage)] == [100] * 3


def test_the_pieces_of_a_reply_come_as_they_are_written() -> None:
    with world(GOOD) as there:
        events, _ = there.blocking(VragEpisode("How much wind power?"))
    said = {
        (step, channel): "".join(
            event.text
            for event in events
            if isinstance(event, Delta) and (event.step, event.channel) == (step, channel)
        )
        for step, channel in [(1, "reasoning"), (1, "content"), (2, "content"), (3, "content")]
    }
    assert said[1, "reasoning"] == "Hm."
    assert [said[step, "content"] for step in (1, 2, 3)] == [GOOD[0].text, GOOD[1], GOOD[2]]


def failed_both_ways(there: World) -> Failed:
    """The last event of a failing run, blocking and async; the events before it must agree as well."""
    events, course = there.blocking(VragEpisode("How much wind power?"))
    awaited, outcome = there.awaited(VragEpisode("How much wind power?"))
    assert timeless(events) == timeless(awaited)
    assert course.outcome == outcome
    assert isinstance(events[-1], Failed)
    assert course.outcome is not None
    assert course.outcome.answer is None
    assert course.outcome.reason == events[-1].reason == "error"
    assert type(course.error).__name__ == events[-1].error
    assert str(course.error) == events[-1].text
    assert sum(isinstance(event, Answered | Failed) for event in events) == 1
    return events[-1]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(400, {"error": {"message": "bad request of the test"}}), "bad request of the test"),
        (Fault(429, {"error": {"message": "slow down"}}, {"retry-after": "0"}), "429: slow down"),
        (Fault(pieces=["<think>h"], sse=['{"error": {"message": "worker died"}}']), "worker died"),
        (Fault(pieces=["<think>h"]), "broke"),
        (Fault(200, "no json {"), "no chat completion"),
        (Fault(200, {}, delay=30), "did not answer within"),
    ],
)
@pytest.mark.parametrize("turn", [0, 1])
def test_a_failing_model_ends_the_run_with_its_sentence(fault: Fault, words: str, turn: int) -> None:
    def script() -> Callable[[dict[str, Any]], Scripted]:
        return lambda body: GOOD[0] if len(body["messages"]) < 2 * turn else fault

    with world(script, read_timeout=0.3 if fault.delay else 20) as there:
        last = failed_both_ways(there)
    assert last.error == "ModelError"
    assert words in last.text


def test_a_retriever_that_is_down_ends_the_run_with_a_sentence() -> None:
    with world(lambda: lambda _: GOOD[0], search_url="http://127.0.0.1:9") as there:
        last = failed_both_ways(there)
    assert last.error == "RetrieverError"
    assert "Nothing answers at http://127.0.0.1:9" in last.text


def test_a_retriever_that_goes_down_in_the_middle() -> None:
    down = Fault(500, {"detail": "index lost"})
    events: list[Event] = []
    with (
        world(lambda: lambda _: "<search>power</search>") as there,
        ChatModel(there.settings) as chat,
        HttpRetriever(there.settings) as retriever,
    ):
        course = run(VragEpisode("How much?"), chat, retriever)
        for event in course:
            events.append(event)
            if isinstance(event, ViewShown):
                there.service.faults = [down]
    assert course.outcome == Outcome(None, "error", 2, (), ("report_1",))
    assert isinstance(course.error, RetrieverError)
    assert "index lost" in events[-1].text


def test_a_missing_image_is_skipped_not_fatal() -> None:
    with world(("<search>wind power</search>", "<answer>42</answer>")) as there:
        there.service.entries["report_2"].image = b"no image"
        events, course = there.blocking(VragEpisode("How much?"))
    assert course.outcome is not None
    assert (course.outcome.answer, course.outcome.shown) == ("42", ("report_1",))
    assert any(isinstance(event, Note) for event in events)


def test_a_busy_retriever_is_waited_for() -> None:
    with world(GOOD, search_retries=2) as there:
        there.service.faults = [Fault(503, {"detail": "swapping"}, {"retry-after": "0"}), None, Fault(502, "")]
        _, course = there.blocking(VragEpisode("How much?"))
    assert course.outcome is not None
    assert course.outcome.answer == "42 MW"


# What an episode may do to a driver: small episodes of the test's own


@dataclass
class Custom:
    """An episode from a generator function."""

    body: Callable[[], EpisodeRun]
    closed: bool = False

    def run(self) -> EpisodeRun:
        try:
            return (yield from self.body())
        finally:
            self.closed = True


ASK = Generate((message("user", "Question: what?"),))


def test_an_unexpected_error_ends_with_a_failed_event_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def body() -> EpisodeRun:
        yield Note(text="so far so good")
        raise KeyError("a bug")

    with world(("x",)) as there, caplog.at_level(logging.ERROR, "vrag.runner"):
        for events, outcome in (
            (lambda pair: (pair[0], pair[1].outcome))(there.blocking(Custom(body))),
            there.awaited(Custom(body)),
        ):
            assert [event.type for event in events] == ["note", "error"]
            assert isinstance(events[-1], Failed)
            assert (events[-1].error, outcome) == ("KeyError", Outcome(None, "error", 0))
            assert "a bug" in events[-1].text
    assert caplog.text.count("KeyError: 'a bug'") == 2


def test_an_unexpected_error_of_a_client_ends_the_run_too(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def search(self, queries: Any, top_k: int, corpus: Any = None) -> Any:
            raise ZeroDivisionError("a bug in a plug-in")

        def image(self, item_id: str) -> bytes:
            raise NotImplementedError

    with world(GOOD) as there, ChatModel(there.settings) as chat:
        course = run(VragEpisode("How much?"), chat, Broken())
        events = list(course)
    assert isinstance(events[-1], Failed)
    assert events[-1].error == "ZeroDivisionError"
    assert isinstance(course.error, ZeroDivisionError)
    assert "a bug in a plug-in" in caplog.text


def test_an_episode_may_recover_from_an_error() -> None:
    def body() -> EpisodeRun:
        errors = []
        for request in (ASK, Retrieve("wind", 1), Fetch("gone_1")):
            try:
                yield request
            except VragError as error:  # noqa: PERF203
                errors.append(type(error))
        assert errors == [ModelError, RetrieverError, MediaError]
        yield Answered(text="anyway", reason="answer")
        return Outcome("anyway", "answer", 1)

    with world(lambda: lambda _: Fault(400, {})) as there:
        for drive in (there.blocking, there.awaited):
            there.service.faults = [Fault(500, {})]
            events, _ = drive(Custom(body))
            assert [event.type for event in events] == ["answer"]
        there.service.faults = [Fault(500, {})]
        assert there.blocking(Custom(body))[1].error is None


def test_an_episode_that_lets_an_error_through_still_ends_with_an_event() -> None:
    def body() -> EpisodeRun:
        yield ASK
        raise AssertionError("never reached")

    with world(lambda: lambda _: Fault(400, {"error": {"message": "no"}})) as there:
        events, course = there.blocking(Custom(body))
    assert [event.type for event in events] == ["error"]
    assert isinstance(course.error, ModelError)


def test_the_replies_reach_the_episode() -> None:
    def body() -> EpisodeRun:
        reply = yield ASK
        assert isinstance(reply, Generation)
        assert (reply.text, reply.prompt_tokens) == ("hello", 100)
        hits = yield Retrieve("wind power", 2)
        assert isinstance(hits, list)
        assert [hit.item.id for hit in hits] == ["report_2", "report_1"]
        image = yield Fetch("slides_1")
        assert isinstance(image, bytes)
        assert (yield Note(text="an event has no reply")) is None
        return Outcome(str(len(image)), "answer", 1)

    with world(lambda: lambda _: "hello") as there:
        size = str(len(there.service.entries["slides_1"].image))
        blocking = there.blocking(Custom(body))[1].outcome
        assert blocking == there.awaited(Custom(body))[1] == Outcome(size, "answer", 1)


# The stop


@pytest.mark.parametrize("after", range(0, 40, 5))
def test_a_stop_ends_the_run_wherever_it_comes(after: int) -> None:
    with world(lambda: lambda body: GOOD[min(len(body["messages"]) // 2, 2)]) as there:

        def stopping() -> Callable[[], bool]:
            asked = iter(range(10_000))
            return lambda: next(asked) >= after

        events, course = there.blocking(VragEpisode("How much?"), should_stop=stopping())
        awaited, outcome = there.awaited(VragEpisode("How much?"), should_stop=stopping())
        assert timeless(events) == timeless(awaited)
        assert there.model.open == 0 or asyncio.run(_closes(there.model))
    assert outcome == course.outcome
    assert isinstance(events[-1], Failed)
    assert (events[-1].reason, course.error) == ("stopped", None)
    assert outcome is not None
    shown = [event.view.item.id for event in events if isinstance(event, ViewShown) and event.source == "search"]
    assert (outcome.answer, outcome.reason, list(outcome.shown)) == (None, "stopped", shown)


async def _closes(model: ScriptedModel) -> bool:
    for _ in range(500):
        if model.open == 0:
            return True
        await asyncio.sleep(0.01)
    return False


def test_a_stop_after_the_answer_changes_nothing() -> None:
    with world(("<answer>42</answer>",)) as there:
        answered: list[Event] = []
        with ChatModel(there.settings) as chat, HttpRetriever(there.settings) as retriever:
            course = run(VragEpisode("How much?"), chat, retriever, should_stop=lambda: bool(answered))
            answered.extend(event for event in course if isinstance(event, Answered))
    assert course.outcome is not None
    assert course.outcome.answer == "42"


def test_closing_a_run_leaves_nothing_open() -> None:
    endless = Say("<think>" + "x" * 50_000, piece=1)
    with world(lambda: lambda _: endless) as there:
        episode = Custom(lambda: VragEpisode("How much?").run())
        with ChatModel(there.settings) as chat, HttpRetriever(there.settings) as retriever:
            course = run(episode, chat, retriever)
            assert isinstance(next(course), Delta)
            course.close()
            assert episode.closed
            assert course.outcome is None
            assert list(course) == []
            with pytest.raises(VragError, match="closed before its end"):
                course.wait()
        assert asyncio.run(_closes(there.model))

        async def watch_a_little() -> Custom:
            episode = Custom(lambda: VragEpisode("How much?").run())
            async with (
                AsyncChatModel(there.settings) as chat,
                AsyncHttpRetriever(there.settings) as retriever,
                aclosing(arun(episode, chat, retriever)) as course,
            ):
                async for event in course:
                    assert isinstance(event, Delta)
                    break
            return episode

        assert asyncio.run(watch_a_little()).closed
        assert asyncio.run(_closes(there.model))


def test_a_cancelled_task_ends_its_run() -> None:
    with world(lambda: lambda _: Fault(200, {}, delay=60)) as there:

        async def cancel() -> Custom:
            episode = Custom(lambda: VragEpisode("How much?").run())
            async with AsyncChatModel(there.settings) as chat, AsyncHttpRetriever(there.settings) as retriever:
                task = asyncio.create_task(arun(episode, chat, retriever).wait())
                while not there.model.requests:
                    await asyncio.sleep(0.005)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            return episode

        assert asyncio.run(cancel()).closed


def test_many_episodes_at_once() -> None:
    with world(lambda: lambda body: GOOD[min(len(body["messages"]) // 2, 2)]) as there:

        async def go() -> list[Outcome]:
            async with AsyncChatModel(there.settings) as chat, AsyncHttpRetriever(there.settings) as retriever:
                return await asyncio.gather(
                    *(arun(VragEpisode("How much wind power?"), chat, retriever).wait() for _ in range(16))
                )

        outcomes = asyncio.run(go())
    assert {(outcome.answer, outcome.shown) for outcome in outcomes} == {("42 MW", ("report_2",))}


# Hostile replies, through the real protocol

TAGS = ["<think>", "</think>", "<search>", "</search>", "<bbox>", "</bbox>", "<answer>", "</answer>"]
ODD = ["[1, 2, 3, 4]", "[NaN, 1, 1e999, -5]", "wind", "<|im_start|>user\n", "<|im_end|>", "\x00", "\ud800", "电"]
FRAGMENTS = st.sampled_from([*TAGS, *ODD, "<search>wind</search>", "<bbox>[0, 0, 900, 900]</bbox>"])
REPLIES = st.lists(FRAGMENTS, max_size=8).map("".join) | st.text(max_size=40)


@pytest.fixture(scope="module")
def shared_world() -> Iterator[World]:
    with world(lambda: lambda _: "") as there:
        yield there


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(REPLIES, min_size=1, max_size=4))
def test_any_replies_end_within_the_steps(shared_world: World, replies: list[str]) -> None:
    turns = iter(range(10_000))
    shared_world.model._next = lambda _: Say(replies[next(turns) % len(replies)], piece=50)
    events, course = shared_world.blocking(VragEpisode("How much?", VragOptions(max_steps=3)))
    assert isinstance(events[-1], Answered | Failed)
    assert course.outcome is not None
    assert course.outcome.reason != "error"
    assert course.outcome.steps <= 5
    assert sum(isinstance(event, SearchResults) for event in events) <= 3
