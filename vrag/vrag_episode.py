"""The VRAG-RL episode: a model searches, looks at pages one by one, crops them, and answers. No I/O (see vrag.episode).

    question -> generate -> Search: the best page not shown yet -> generate
                         -> Crop:   that part of the last picture, cut from the page -> generate
                         -> Answer: text and citations

It always ends: at an answer; after ``max_steps`` turns by one turn that asks for the answer, then one in plain text
over the same context; when the time or the tokens are spent by one turn that asks for the answer; with a ``Failed``
event when the model or the retriever is not there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeVar, cast

from vrag import prompts
from vrag.actions import MAX_THOUGHT_CHARS, Action, Answer, Crop, Invalid, Search, clean, parse_tags, plain_text
from vrag.episode import EpisodeRun, Fetch, Generate, Generation, Outcome, Reply, Request, Retrieve
from vrag.errors import ConfigError, MediaError, VragError
from vrag.events import (
    Answered,
    Citation,
    CropRequested,
    EndReason,
    Event,
    Failed,
    Note,
    SearchResults,
    SearchStarted,
    Thought,
    ViewShown,
)
from vrag.geometry import CROP_PADDING, MAX_PIXELS, MIN_PIXELS, Box
from vrag.items import Hit, Item
from vrag.messages import message
from vrag.pages import PageImage, View, open_page, padded_on_page, region_on_page, view_of
from vrag.turns import MAX_PASSAGE_CHARS, Meter, kept_reply, said

_T = TypeVar("_T")
_Step = Generator["Request | Event", Reply, _T]


@dataclass(frozen=True)
class VragPrompts:
    """The texts that a model is given. A checkpoint that was trained on other wording gets it by :meth:`load`.

    ``question`` is the first message and has to hold ``{question}``; the others may use the placeholders named here.
    """

    question: str = field(default_factory=lambda: prompts.load("vrag"))
    invalid: str = field(default_factory=lambda: prompts.load("vrag_invalid"))  # {reason}
    unusable: str = field(default_factory=lambda: prompts.load("vrag_unusable"))  # {reason}
    nothing_new: str = field(default_factory=lambda: prompts.load("vrag_nothing_new"))  # {query}
    passage: str = field(default_factory=lambda: prompts.load("vrag_passage"))  # {source}, {passage}
    answer_now: str = field(default_factory=lambda: prompts.load("vrag_answer_now"))
    fallback: str = field(default_factory=lambda: prompts.load("vrag_fallback"))  # {question}

    def __post_init__(self) -> None:
        if "{question}" not in self.question:
            raise ConfigError("The prompt vrag.txt has to hold {question} where the question belongs.")

    @classmethod
    def load(cls, folder: Path | None = None) -> VragPrompts:
        """The prompts of ``folder``: ``vrag.txt`` for the question, ``vrag_invalid.txt``, ...; ours for the rest."""
        names = {name.name: "vrag" if name.name == "question" else f"vrag_{name.name}" for name in fields(cls)}
        return cls(**{name: prompts.load(file, folder) for name, file in names.items()})


@dataclass(frozen=True)
class VragOptions:
    """Everything about an episode that can be set. Raises ConfigError for values that make no sense."""

    max_steps: int = 10
    """Turns in which the model may act; one or two more ask for the answer."""
    top_k: int = 3
    """Hits per search."""
    pages_per_search: int = 1
    """Pages shown per search; published: the first of the ranking that was not shown yet."""
    min_pixels: int = MIN_PIXELS
    max_pixels: int = MAX_PIXELS
    """Limits of the area of one picture."""
    crop_padding: float = CROP_PADDING
    """Page pixels of surroundings on each side of a crop."""
    max_seconds: float | None = None
    max_tokens: int | None = None
    """Budgets of the whole episode, checked before each turn: wall-clock seconds; prompt and reply tokens, summed."""
    prompts: VragPrompts = field(default_factory=VragPrompts)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        for name in ("max_steps", "top_k", "pages_per_search", "min_pixels", "max_pixels", "max_seconds", "max_tokens"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} has to be above 0, not {value}.")
        if self.min_pixels > self.max_pixels:
            raise ConfigError(f"min_pixels ({self.min_pixels}) must not be above max_pixels ({self.max_pixels}).")
        if not 0 <= self.crop_padding < float("inf"):
            raise ConfigError(f"crop_padding has to be 0 or more page pixels, not {self.crop_padding}.")


@dataclass(frozen=True, slots=True)
class _Observation:
    """What a turn of the user's side shows; ``hint`` says how to go on and gives way to the call to answer."""

    shown: tuple[str | View, ...] = ()
    hint: str = ""


@dataclass(frozen=True, slots=True)
class _Shown:
    """A piece of evidence that the model has seen; ``box`` is None for a whole page or a passage."""

    item: Item
    box: Box | None = None


class VragEpisode:
    """One question, one run. Raises ConfigError for an empty question."""

    def __init__(self, question: str, options: VragOptions | None = None) -> None:
        self.question = clean(question)
        if not self.question:
            raise ConfigError("The question is empty.")
        self.options = options or VragOptions()
        first = prompts.fill(self.options.prompts.question, question=self.question)
        self._messages = [message("user", first)]
        self._seen: set[str] = set()
        self._shown: list[str] = []
        self._evidence: list[_Shown] = []
        self._last: tuple[PageImage, View] | None = None
        self._meter = Meter(self.options.max_seconds, self.options.max_tokens, self.options.clock)

    def run(self) -> EpisodeRun:
        self._meter.start()
        try:
            return (yield from self._loop())
        except VragError as error:
            return (yield from self._fail(str(error), "error", type(error).__name__))

    # The loop

    def _loop(self) -> _Step[Outcome]:
        observation = _Observation()
        for _ in range(self.options.max_steps):
            if self._meter.spent():
                break
            self._observe(observation)
            action = yield from self._read((yield from self._generate("act")))
            if isinstance(action, Answer):
                return (yield from self._finish(action.text, "answer"))
            observation = yield from self._act(action)
        return (yield from self._conclude(observation))

    def _conclude(self, observation: _Observation) -> _Step[Outcome]:
        """No action is left: ask for the answer, then, within the budgets, for plain text over the same context."""
        texts = self.options.prompts
        spent = self._meter.spent()
        self._observe(_Observation(observation.shown, texts.answer_now))
        reply = yield from self._generate("answer_now")
        action = yield from self._read(reply)
        if isinstance(action, Answer):
            return (yield from self._finish(action.text, spent or "forced_answer"))
        spent = spent or self._meter.spent()
        if spent:
            answer = plain_text(said(reply))
        else:
            self._observe(_Observation(hint=prompts.fill(texts.fallback, question=self.question)))
            answer = plain_text(said((yield from self._generate("fallback"))))
        if answer:
            return (yield from self._finish(answer, spent or "fallback"))
        return (yield from self._fail(self._meter.no_answer(spent), spent or "no_answer"))

    def _finish(self, answer: str, reason: EndReason) -> _Step[Outcome]:
        citations = self._citations()
        yield Answered(step=self._meter.step, text=answer, reason=reason, citations=citations)
        return Outcome(answer, reason, self._meter.step, citations, tuple(self._shown))

    def _fail(self, text: str, reason: EndReason, error: str = "") -> _Step[Outcome]:
        yield Failed(step=self._meter.step, text=text, reason=reason, error=error)
        return Outcome(None, reason, self._meter.step, (), tuple(self._shown))

    # One turn of the model

    def _generate(self, purpose: str) -> _Step[Generation]:
        self._meter.step += 1
        context = tuple(self._messages)
        reply = cast(Generation, (yield Generate(context, purpose)))
        yield self._meter.count(context, reply)
        self._messages.append(message("assistant", kept_reply(reply)))
        return reply

    def _read(self, reply: Generation) -> _Step[Action]:
        thought, action = parse_tags(said(reply))
        thoughts = [clean(reply.reasoning, MAX_THOUGHT_CHARS)] if reply.text.strip() else []
        thought = "\n\n".join(filter(None, [*thoughts, thought]))
        if thought:
            yield Thought(step=self._meter.step, text=thought)
        return action

    def _observe(self, observation: _Observation) -> None:
        """Append a turn of the user's side; right after another of them it becomes part of that one."""
        parts = [*observation.shown, *filter(None, [observation.hint])]
        if parts and self._messages[-1].role == "user":
            parts = [*self._messages.pop().content, *parts]
        content: list[str | View] = []
        for part in parts:
            if content and isinstance(part, str) and isinstance(content[-1], str):
                content[-1] += "\n\n" + part
            else:
                content.append(part)
        if content:
            self._messages.append(message("user", *content))

    # Actions

    def _act(self, action: Search | Crop | Invalid) -> _Step[_Observation]:
        if isinstance(action, Search):
            return (yield from self._search(action.query))
        if isinstance(action, Crop):
            return (yield from self._crop(action.box))
        yield Note(step=self._meter.step, text=f"The reply could not be used. {action.reason}")
        return _Observation(hint=prompts.fill(self.options.prompts.invalid, reason=action.reason))

    def _search(self, query: str) -> _Step[_Observation]:
        """Show the best hits that were not shown yet. A page that cannot be shown makes room for the next."""
        yield SearchStarted(step=self._meter.step, query=query)
        hits = cast("list[Hit]", (yield Retrieve(query, self.options.top_k)))
        new: list[tuple[Item, str | View]] = []
        broken: list[str] = []
        for hit in hits:
            # A clip cannot be looked at in this grammar.
            if len(new) == self.options.pages_per_search or hit.item.kind == "video" or hit.item.id in self._seen:
                continue
            self._seen.add(hit.item.id)
            try:
                new.append((yield from self._open(hit.item)))
            except MediaError as error:
                broken.append(hit.item.label)
                yield Note(step=self._meter.step, text=f"A page cannot be shown. {error}")
        ids = tuple(item.id for item, _ in new)
        self._shown.extend(ids)
        yield SearchResults(step=self._meter.step, query=query, hits=tuple(hits), shown=ids)
        for item, part in new:
            self._evidence.append(_Shown(item))
            if isinstance(part, View):
                yield ViewShown(step=self._meter.step, view=part.ref(), source="search")
        if new:
            return _Observation(tuple(part for _, part in new))
        if broken:
            return (yield from self._refuse(f"What was found cannot be shown: {clean(', '.join(broken))} is damaged."))
        yield Note(step=self._meter.step, text="The search brought nothing that was not shown already.")
        return _Observation(hint=prompts.fill(self.options.prompts.nothing_new, query=query))

    def _open(self, item: Item) -> _Step[tuple[Item, str | View]]:
        """What a hit looks like: a passage as text, a page as a picture. Raises MediaError where there is neither."""
        if item.kind == "text":
            passage = clean(item.content or "", MAX_PASSAGE_CHARS)
            if not passage:
                raise MediaError(f"{item.id}: the passage is empty.")
            return item, prompts.fill(self.options.prompts.passage, source=clean(item.label), passage=passage)
        page = open_page(cast(bytes, (yield Fetch(item.id))), item)
        view = view_of(page, None, self.options.min_pixels, self.options.max_pixels)
        self._last = page, view
        return page.item, view

    def _crop(self, displayed: Box) -> _Step[_Observation]:
        """Show a region of the last picture, cut from its page."""
        if self._last is None:
            return (yield from self._refuse("There is no picture yet to look closer at."))
        page, last = self._last
        region = region_on_page(displayed, last)
        if isinstance(region, str):
            return (yield from self._refuse(region))
        yield CropRequested(step=self._meter.step, displayed=displayed, page_box=region, item_id=page.item.id)
        box = padded_on_page(region, self.options.crop_padding, page)
        try:
            view = view_of(page, box, self.options.min_pixels, self.options.max_pixels)
        except MediaError:
            return (yield from self._refuse("This part of the page is damaged and cannot be shown."))
        self._last = page, view
        self._evidence.append(_Shown(page.item, None if view.box == page.box else view.box))
        yield ViewShown(step=self._meter.step, view=view.ref(), source="crop")
        return _Observation((view,))

    def _refuse(self, reason: str) -> _Step[_Observation]:
        """An action that is well-formed but cannot be done: say why, and what else there is."""
        yield Note(step=self._meter.step, text=reason)
        return _Observation(hint=prompts.fill(self.options.prompts.unusable, reason=reason))

    def _citations(self) -> tuple[Citation, ...]:
        """What the model saw last, then every other region that it looked at closely; each page and box once."""
        chosen = self._evidence[-1:] + [shown for shown in self._evidence[:-1] if shown.box is not None]
        once = {(shown.item.id, shown.box): Citation(item=shown.item, box=shown.box) for shown in chosen}
        return tuple(once.values())
