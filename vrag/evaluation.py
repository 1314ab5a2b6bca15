"""Many questions at once, resumable: every question leaves one line, and a second run asks only what is missing.

    results = asyncio.run(evaluate(questions, ask, Path("results.jsonl"), concurrency=4))
    figures = summary(results)

``ask(question)`` gives the events of one run. A question whose run ended with an error of the model or the retriever is
written down too, and asked again by the next run; it never counts as a wrong answer, only as unfinished.
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vrag.errors import VragError
from vrag.events import Answered, Citation, Event, Failed, SearchStarted, Usage, ViewShown
from vrag.judge import Judge, JudgeFailed
from vrag.matching import RULE_JUDGES
from vrag.questions import Question

log = logging.getLogger(__name__)

Ask = Callable[[Question], AsyncIterator[Event]]


class Result(BaseModel):
    """How one question went. ``scores`` holds the verdict of each judge by its name; empty without a reference answer."""

    model_config = ConfigDict(frozen=True)

    uid: str
    query: str
    reference: str | None
    answer: str | None
    reason: str
    scores: dict[str, float] = Field(default_factory=dict)
    citations: tuple[tuple[str, int | None, list[float] | None], ...] = Field(
        default=(), description="(file name, page, box) of each"
    )
    cited: bool | None = Field(
        default=None, description="whether a citation lies on a reference page; None: no reference"
    )
    seen: float | None = Field(default=None, description="share of the reference pages that the model was shown")
    error: str = ""
    seconds: float = 0.0
    calls: int = 0
    searches: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    images: int = 0
    image_pixels: int = 0
    image_bytes: int = 0

    @property
    def finished(self) -> bool:
        """Whether the run came to an end of its own, with an answer or without; not through a broken service."""
        return self.reason not in ("error", "stopped")


def judge(question: Question, events: Sequence[Event], seconds: float) -> Result:
    """What the events of a run amount to. The cost is summed over all calls: what was sent again counts again."""
    end = next((event for event in reversed(events) if isinstance(event, Answered | Failed)), None)
    answer = end.text if isinstance(end, Answered) else None
    citations = end.citations if isinstance(end, Answered) else ()
    usages = [event for event in events if isinstance(event, Usage)]
    shown = {_page(event.view.item.document, event.view.item.page) for event in events if isinstance(event, ViewShown)}
    reference = question.reference_answer
    scores = {}
    if reference is not None:
        scores = {name: float(rule(answer, reference)) if answer else 0.0 for name, rule in RULE_JUDGES.items()}
    pages = question.pages
    return Result(
        uid=question.uid,
        query=question.query,
        reference=reference,
        answer=answer,
        reason=end.reason if end is not None else "error",
        scores=scores,
        citations=tuple((c.item.document, c.item.page, c.box.as_list() if c.box else None) for c in citations),
        cited=any(_of(citation) in pages for citation in citations) if pages else None,
        seen=len(shown & pages) / len(pages) if pages else None,
        error=end.text if isinstance(end, Failed) else "",
        seconds=round(seconds, 3),
        calls=len(usages),
        searches=sum(isinstance(event, SearchStarted) for event in events),
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        images=sum(usage.images for usage in usages),
        image_pixels=sum(usage.image_pixels for usage in usages),
        image_bytes=sum(usage.image_bytes for usage in usages),
    )


def _of(citation: Citation) -> tuple[str, int]:
    return _page(citation.item.document, citation.item.page)


def _page(document: str, page: int | None) -> tuple[str, int]:
    """A standalone image or clip counts as its own page 1."""
    return document, page if page is not None else 1


async def evaluate(
    questions: Sequence[Question],
    ask: Ask,
    path: Path,
    *,
    concurrency: int = 4,
    progress: Callable[[Result, int, int], None] | None = None,
) -> list[Result]:
    """Ask every question that ``path`` holds no finished result for; returns all results in the questions' order.

    ``progress(result, done, total)`` is called after each. Cancelling keeps every line written so far.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {result.uid: result for result in read_results(path) if result.finished}
    wanted = {question.uid for question in questions}
    done = {uid: result for uid, result in done.items() if uid in wanted}
    room = asyncio.Semaphore(concurrency)
    with path.open("a", encoding="utf-8") as file:
        if file.tell() and not path.read_bytes().endswith(b"\n"):
            file.write("\n")  # a run that was killed left half a line behind

        async def one(question: Question) -> None:
            async with room:
                started = time.perf_counter()
                events = await _watch(ask, question)
                result = judge(question, events, time.perf_counter() - started)
            done[question.uid] = result
            file.write(result.model_dump_json() + "\n")
            file.flush()
            if progress is not None:
                progress(result, len(done), len(questions))

        tasks = [asyncio.ensure_future(one(question)) for question in questions if question.uid not in done]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
    return [done[question.uid] for question in questions]


async def graded(results: Sequence[Result], judge: Judge, concurrency: int = 8) -> list[Result]:
    """The results with the verdicts of one more judge in ``scores``, under its name (a model's id, or ``rule:...``).

    Where the judge failed there is no entry, so a figure never rests on a missing verdict; :func:`summary` counts them.
    Raises JudgeError when too many fail.
    """
    room = asyncio.Semaphore(concurrency)

    async def one(result: Result) -> Result:
        if result.reference is None:
            return result
        async with room:
            judgement = await judge.ajudge(result.query, result.reference, result.answer)
        if isinstance(judgement, JudgeFailed):
            log.warning("%s: %s", result.uid, judgement.reason)
            return result
        return result.model_copy(update={"scores": {**result.scores, judge.name: judgement.score}})

    return list(await asyncio.gather(*(one(result) for result in results)))


async def _watch(ask: Ask, question: Question) -> list[Event]:
    """All events of one run; a question that cannot even be asked ends with the error that says why."""
    events: list[Event] = []
    try:
        async for event in ask(question):
            events.append(event)  # noqa: PERF401 - what came before an error counts
    except VragError as error:
        events.append(Failed(text=str(error), reason="error", error=type(error).__name__))
    return events


def read_results(path: Path) -> list[Result]:
    """The results in a file, the last of each question; lines that a killed run cut off are left out."""
    if not path.exists():
        return []
    results: dict[str, Result] = {}
    # Not splitlines: U+2028 may stand in a text.
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
        if not line.strip():
            continue
        try:
            result = Result.model_validate(json.loads(line))
        except (ValueError, ValidationError):
            log.warning("%s, line %d is not a whole result and is left out", path, number)
            continue
        results[result.uid] = result
    return list(results.values())


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Shares and medians over the results. Shares of right answers are over all questions that have a reference."""
    answerable = [result for result in results if result.reference is not None]
    paged = [result for result in results if result.cited is not None]

    def mean(values: Sequence[float]) -> float | None:
        return sum(values) / len(values) if values else None

    figures: dict[str, Any] = {
        "questions": len(results),
        "finish_rate": mean([float(result.finished) for result in results]),
        "answered": mean([float(result.answer is not None) for result in results]),
    }
    for name in RULE_JUDGES:
        figures[name] = mean([result.scores.get(name, 0.0) for result in answerable])
    for name in sorted({name for result in answerable for name in result.scores} - set(RULE_JUDGES)):
        verdicts = [result.scores[name] for result in answerable if name in result.scores]
        figures[f"judge {name}"] = mean(verdicts)
        figures[f"judge {name} failed"] = len(answerable) - len(verdicts)
    figures["cited_reference_page"] = mean([float(bool(result.cited)) for result in paged])
    figures["saw_reference_pages"] = mean([result.seen or 0.0 for result in paged])
    for field in ("seconds", "calls", "searches", "images", "image_pixels", "image_bytes", "prompt_tokens"):
        values = [float(getattr(result, field)) for result in results]
        figures[f"median_{field}"] = statistics.median(values) if values else None
        figures[f"mean_{field}"] = mean(values)
    return figures
