"""The reasoning loop without I/O: what an episode asks for and what it is fed.

An episode is a generator. It yields *events* (for whoever watches) and *requests* (for whoever drives it), and is resumed
with the reply to a request, or with ``None`` after an event::

    run = episode.run()
    item = next(run)
    while True:
        reply = answer(item) if isinstance(item, Request) else None
        item = run.send(reply)          # StopIteration.value is the Outcome

A driver that cannot fulfil a request throws the :class:`vrag.errors.VragError` into the generator (``run.throw``); the
episode then ends with an error event. The same generator is driven by the demo (blocking), the evaluation (async, many at
once) and the trainer (token by token), so all three run the very same code.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Protocol

from vrag.events import Citation, EndReason, Event
from vrag.items import Hit
from vrag.messages import Message


@dataclass(frozen=True, slots=True)
class Generate:
    """Continue ``messages``. ``tools`` are native tool schemas, when the episode speaks that grammar."""

    messages: tuple[Message, ...]
    purpose: str = "act"
    tools: tuple[dict[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    """The reply to :class:`Generate`. ``reasoning`` is what the endpoint streamed beside the content, if it does that."""

    text: str
    reasoning: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    tool_calls: tuple[dict[str, object], ...] = ()
    finish_reason: str = ""
    """Why the reply ended, as the endpoint says it: ``stop``, ``length`` (cut off), ``tool_calls``, ..."""


@dataclass(frozen=True, slots=True)
class Retrieve:
    """Search for one query; the reply is a ranked ``list[Hit]``."""

    query: str
    top_k: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Load the encoded image of an item; the reply is its ``bytes``."""

    item_id: str


Request = Generate | Retrieve | Fetch
Reply = Generation | list[Hit] | bytes | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode ended. ``answer`` is None when there is none."""

    answer: str | None
    reason: EndReason
    steps: int
    citations: tuple[Citation, ...] = ()
    shown: tuple[str, ...] = field(default=())
    """Ids of the pages shown, in order, each once: what the retrieval reward scores."""


EpisodeRun = Generator["Request | Event", Reply, Outcome]


class Episode(Protocol):
    """One question, one run. ``run`` may be called once."""

    def run(self) -> EpisodeRun: ...
