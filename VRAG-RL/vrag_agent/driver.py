"""Drives an episode token in, token out: what the model sampled is what it is trained on.

    trajectory = await roll_out(VragEpisode(question), model, retriever, template, Limits(4096, 4096))

The episodes are the product's own, run by :mod:`vrag.runner` as in the demo. Only the chat model differs: it takes ids and
pictures (a :class:`TokenModel`), and the conversation is kept here as ids. When a request goes on from the turn before it,
only the new messages are tokenised and appended, with mask 0. When the episode built its context anew (VimRAG does after
every judged search), a new :class:`vrag_agent.trajectory.Sample` begins.

A turn that was cut off is closed by the template's token as a part of the observation, so the model is not trained to have
ended it. An observation that does not fit is never split: the trajectory ends before it, with a reason.

Another episode needs nothing here: any generator of :mod:`vrag.episode` can be rolled out. Emit ``SearchStarted`` and
``SearchResults`` with a ``node`` and ``GraphChanged`` for GGPO to know the searches; without them each search is a node that
builds on the root. To roll out against another engine, write a :class:`TokenModel`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

from PIL import Image

from vrag.chat import Piece
from vrag.episode import Episode, Frame, Generate, Generation, Outcome
from vrag.errors import MediaError, ModelError, RetrieverError, VragError
from vrag.events import Answered, CropRequested, Event, GraphChanged, Memorized, SearchResults, SearchStarted
from vrag.items import Hit
from vrag.memory_graph import ROOT
from vrag.messages import Message
from vrag.records import RecordWriter
from vrag.retriever import AsyncRetriever
from vrag.runner import arun
from vrag.turns import kept_reply
from vrag_agent.template import ChatTemplate
from vrag_agent.trajectory import Action, Sample, Span, Trajectory

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; a temperature of 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    seed: int | None = None
    """For engines that can draw reproducibly whatever else they serve."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A turn of the model: ids up to and with the token that ended it, log-probabilities of each (None: not known)."""

    ids: list[int]
    logprobs: list[float] | None = None
    stop_reason: Literal["stop", "length", "aborted"] = "stop"


class TokenModel(Protocol):
    """A policy. Raises :class:`vrag.errors.ModelError` when it cannot be reached or fails."""

    async def generate(
        self,
        prompt_ids: list[int],
        images: list[Image.Image],
        *,
        max_tokens: int,
        sampling: Sampling,
        request_id: str,
    ) -> Sampled:
        """Continue ``prompt_ids``, whose image tokens are expanded. ``request_id`` is the same for all turns of a sample."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens, those of pictures included, and seconds."""

    max_prompt_tokens: int
    """Of a sample's prompt."""
    max_response_tokens: int
    """Of a sample's response: turns and observations."""
    max_turn_tokens: int = 2048
    """Of one turn of the model."""
    min_turn_tokens: int = 1
    """Less room than this for the next turn ends the trajectory before the observation."""
    model_seconds: float = 600.0
    """For one turn, waiting in the engine's queue included."""
    retriever_seconds: float = 120.0
    """For one request to the retriever, its own attempts included."""


class NoRoom(VragError):
    """A limit leaves no room for what comes next. ``kind``: ``prompt_limit`` or ``response_limit``."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


async def roll_out(
    episode: Episode,
    model: TokenModel,
    retriever: AsyncRetriever,
    template: ChatTemplate,
    limits: Limits,
    record: RecordWriter | None = None,
    *,
    uid: str = "",
    sampling: Sampling | None = None,
) -> Trajectory:
    """Run the episode to its end. Whatever fails is the trajectory's ``ended``; only a cancellation is raised."""
    started = time.monotonic()
    chat = _TokenChat(model, template, limits, sampling or Sampling(), uid)
    watched = _Watched(retriever, limits.retriever_seconds)
    searches = _Searches()
    course = arun(episode, chat, watched, record=record)
    async for event in course:
        searches.see(event)
    outcome = course.outcome
    assert outcome is not None  # a run that was not closed has one
    ended, error = _ended(outcome, course.error)
    chat.name_turns(searches)
    return Trajectory(
        uid=uid,
        question=str(getattr(episode, "question", "")),
        samples=[sample for sample in chat.samples if sample.sampled],
        outcome=outcome,
        turns=chat.turns,
        graph=searches.graph(outcome),
        ended=ended,
        error=error,
        notes=chat.notes,
        seconds=time.monotonic() - started,
        model_seconds=chat.seconds,
        retriever_seconds=watched.seconds,
        searches=watched.searches,
    )


async def roll_out_all(jobs: Iterable[Callable[[], Awaitable[_T]]], concurrency: int = 256) -> list[_T]:
    """Run many rollouts at once, at most ``concurrency`` of them; the results in the order of the jobs."""
    gate = asyncio.Semaphore(concurrency)

    async def one(job: Callable[[], Awaitable[_T]]) -> _T:
        async with gate:
            return await job()

    return list(await asyncio.gather(*(one(job) for job in jobs)))


def _ended(outcome: Outcome, error: Exception | None) -> tuple[str, str]:
    """The reason of an end and, for an error, its sentence."""
    if outcome.reason != "error":
        return outcome.reason, ""
    if isinstance(error, NoRoom):
        return error.kind, str(error)
    kinds: tuple[tuple[type[Exception], str], ...] = (
        (RetrieverError, "retriever"),
        (ModelError, "model"),
        (MediaError, "media"),
    )
    kind = next((name for of, name in kinds if isinstance(error, of)), "unexpected")
    return kind, f"{type(error).__name__}: {error}"


class _TokenChat:
    """A chat model for :mod:`vrag.runner` that keeps the conversation as token ids."""

    def __init__(self, model: TokenModel, template: ChatTemplate, limits: Limits, sampling: Sampling, uid: str) -> None:
        self.samples: list[Sample] = []
        self.turns: list[str] = []
        self.notes: dict[str, int] = {}
        self.seconds = 0.0
        self._model = model
        self._template = template
        self._limits = limits
        self._sampling = sampling
        self._uid = uid
        self._messages: tuple[Message, ...] = ()
        self._said: str | None = None
        self._purposes: list[str] = []

    async def stream(self, request: Generate) -> AsyncGenerator[Piece | Generation, None]:
        yield await self.complete(request)

    async def complete(self, request: Generate) -> Generation:
        sample = self._extended(request) or self._begun(request)
        self._purposes.append(request.purpose)
        limits = self._limits
        room = min(limits.max_turn_tokens, limits.max_response_tokens - len(sample.response_ids))
        started = time.monotonic()
        reply = await self._generate(sample, room)
        seconds = time.monotonic() - started
        self.seconds += seconds
        ids, whole = self._usable(reply, room)
        prompt_tokens = len(sample.prompt_ids) + len(sample.response_ids)
        self._take(sample, ids, None if reply.logprobs is None else reply.logprobs[: len(ids)])
        text = self._template.decode(ids)
        self.turns.append(text)
        generation = Generation(
            text,
            prompt_tokens=prompt_tokens,
            completion_tokens=len(ids),
            seconds=seconds,
            finish_reason="stop" if whole else "length",
        )
        self._messages = request.messages
        self._said = kept_reply(generation)
        return generation

    async def _generate(self, sample: Sample, room: int) -> Sampled:
        try:
            return await asyncio.wait_for(
                self._model.generate(
                    sample.ids,
                    list(sample.images),
                    max_tokens=room,
                    sampling=self._drawn(),
                    request_id=f"{self._uid}/{len(self.samples)}",
                ),
                self._limits.model_seconds,
            )
        except asyncio.TimeoutError as error:
            raise ModelError(
                f"The model gave no turn within {self._limits.model_seconds:g} s; raise model_seconds if it is only slow."
            ) from error

    def _drawn(self) -> Sampling:
        """The sampling of this turn: with a seed, every turn has its own stream."""
        seed = self._sampling.seed
        return self._sampling if seed is None else replace(self._sampling, seed=seed * 1009 + len(self.turns))

    def _usable(self, reply: Sampled, room: int) -> tuple[list[int], bool]:
        """The ids that count, and whether the model ended its turn itself.

        An engine may hand out more than a turn; and a picture can only be forged by its tokens, so a turn ends before one, and
        before one that is spelt in letters: verl reads the text of a sample again, and would miss its picture.
        """
        template = self._template
        ids: list[int] = []
        for token in reply.ids[:room]:
            if token in template.forbidden:
                self._note("forbidden")
                return ids, False
            ids.append(token)
            if token == template.end_id:
                break
        genuine = template.genuine(ids)
        if len(genuine) < len(ids):
            self._note("forbidden")
            return genuine, False
        if ids[-1:] == [template.end_id]:
            return ids, True
        ended = reply.stop_reason == "stop" and len(reply.ids) <= room
        if not ended:
            self._note("cut")
        return ids, ended

    def _take(self, sample: Sample, ids: list[int], logprobs: list[float] | None) -> None:
        start = len(sample.response_ids)
        sample.response_ids += ids
        sample.response_mask += [1] * len(ids)
        if logprobs is None or len(logprobs) != len(ids):
            sample.logprobs = None
        elif sample.logprobs is not None:
            sample.logprobs += logprobs
        # What the turn did is not known before the episode has read it; see name_turns.
        sample.spans.append(Span(start, start + len(ids), len(self.turns) + 1, "invalid"))

    def _extended(self, request: Generate) -> Sample | None:
        """The current sample with the new messages appended, where the request goes on from its last turn."""
        known = len(self._messages)
        messages = request.messages
        if self._said is None or len(messages) <= known or messages[:known] != self._messages:
            return None
        turn, new = messages[known], messages[known + 1 :]
        if turn.role != "assistant" or turn.tool_calls or turn.text != self._said:
            return None
        sample = self.samples[-1]
        piece = self._template.observation(new, request.tools)
        closed = sample.response_ids[-1:] == [self._template.end_id]
        ids = piece.ids[1:] if closed else piece.ids
        room = self._limits.max_response_tokens - len(sample.response_ids) - len(ids)
        if room < self._limits.min_turn_tokens:
            sample.truncated = True
            raise NoRoom(
                "response_limit",
                f"An observation of {len(ids)} tokens leaves no room for another turn within "
                f"{self._limits.max_response_tokens} response tokens.",
            )
        sample.response_ids += ids
        sample.response_mask += [0] * len(ids)
        if sample.logprobs is not None:
            sample.logprobs += [0.0] * len(ids)
        sample.images += piece.images
        return sample

    def _begun(self, request: Generate) -> Sample:
        piece = self._template.prompt(request.messages, request.tools)
        if self.samples:
            self._note("rebuilt")
        if len(piece.ids) > self._limits.max_prompt_tokens:
            if self.samples:
                self.samples[-1].truncated = True
            raise NoRoom(
                "prompt_limit",
                f"A prompt of {len(piece.ids)} tokens is more than the {self._limits.max_prompt_tokens} allowed.",
            )
        sample = Sample(piece.ids, images=list(piece.images), prompt_images=len(piece.images))
        self.samples.append(sample)
        return sample

    def name_turns(self, searches: _Searches) -> None:
        """Say in every span what its turn did; turns without a token have none."""
        for sample in self.samples:
            named: list[Span] = []
            for span in sample.spans:
                pending = self._purposes[span.step - 1] == "memorize"
                action, node = searches.turn(span.step, pending)
                named.append(Span(span.start, span.end, span.step, action, node))
            sample.spans = [span for span in named if span.end > span.start]

    def _note(self, what: str) -> None:
        self.notes[what] = self.notes.get(what, 0) + 1


@dataclass
class _Search:
    node: str
    parents: tuple[str, ...]
    retrieved: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()


@dataclass
class _Searches:
    """What the events of a run tell about its turns and its searches."""

    _all: list[_Search] = field(default_factory=list)
    _turns: dict[int, tuple[Action, str | None]] = field(default_factory=dict)
    _graph: dict[str, Any] | None = None

    def see(self, event: Event) -> None:
        step = event.step
        if isinstance(event, SearchStarted):
            node = event.node or f"search {len(self._all) + 1}"
            self._all.append(_Search(node, event.parents or (ROOT,)))
            self._turns[step] = "search", node
        elif isinstance(event, SearchResults) and self._all:
            self._all[-1].retrieved = tuple(hit.item.id for hit in event.hits)
            self._all[-1].shown = event.shown
        elif isinstance(event, CropRequested):
            brought = next((one.node for one in self._all if event.item_id in one.shown), None)
            self._turns[step] = "crop", brought
        elif isinstance(event, Memorized):
            self._turns.setdefault(step, ("memorize", event.node))
        elif isinstance(event, Answered):
            self._turns.setdefault(step, ("answer", None))
        elif isinstance(event, GraphChanged):
            self._graph = event.graph

    def turn(self, step: int, pending: bool) -> tuple[Action, str | None]:
        """What a turn did, and the node it belongs to; ``pending``: it was asked to judge a search."""
        if step in self._turns:
            return self._turns[step]
        earlier = [node for at, (_, node) in sorted(self._turns.items()) if at < step and node is not None]
        return "invalid", earlier[-1] if pending and earlier else None

    def graph(self, outcome: Outcome) -> dict[str, Any] | None:
        """See :attr:`vrag_agent.trajectory.Trajectory.graph`."""
        nodes = [
            {
                "id": one.node,
                "parents": list(one.parents),
                "retrieved": list(one.retrieved),
                "shown": list(one.shown),
            }
            for one in self._all
        ]
        if self._graph is not None:
            answer = self._graph.get("answer")
            parents = None if answer is None or outcome.answer is None else list(answer["parent_ids"])
        elif outcome.answer is None:
            parents = None
        else:
            cited = {citation.item.id for citation in outcome.citations}
            parents = [one.node for one in self._all if cited & set(one.shown)]
        return {"nodes": nodes, "answer_parents": parents} if nodes or parents else None


class _Watched:
    """A retriever whose every request ends within a time, and is timed and counted."""

    def __init__(self, retriever: AsyncRetriever, seconds: float) -> None:
        self.seconds = 0.0
        self.searches = 0
        self._retriever = retriever
        self._limit = seconds

    async def search(self, queries: Sequence[str], top_k: int, corpus: str | None = None) -> list[list[Hit]]:
        self.searches += len(queries)
        return await self._timed(self._retriever.search(queries, top_k, corpus))

    async def image(self, item_id: str) -> bytes:
        return await self._timed(self._retriever.image(item_id))

    async def frames(self, item_id: str, fps: float, max_frames: int, max_pixels: int) -> list[Frame]:
        return await self._timed(self._retriever.frames(item_id, fps, max_frames, max_pixels))

    async def _timed(self, reply: Awaitable[_T]) -> _T:
        started = time.monotonic()
        try:
            return await asyncio.wait_for(reply, self._limit)
        except asyncio.TimeoutError as error:
            raise RetrieverError(f"The retriever did not answer within {self._limit:g} s.") from error
        finally:
            self.seconds += time.monotonic() - started
