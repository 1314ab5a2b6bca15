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


@dataclass(frozen=True, slots=True)
class FetchFrames:
    """Sample the frames of a clip evenly; the reply is a ``list[Frame]`` in the order of time, at least one."""

    item_id: str
    fps: float = 1.0
    """Frames per second of the clip, as long as there are no more than ``max_frames`` of them."""
    max_frames: int = 32
    max_pixels: int = 512 * 28 * 28
    """Area of a frame at most."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a clip: the encoded image, and when it is shown, in seconds from the start."""

    seconds: float
    image: bytes = field(repr=False)


Request = Generate | Retrieve | Fetch | FetchFrames
Reply = Generation | list[Hit] | bytes | list[Frame] | None


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
