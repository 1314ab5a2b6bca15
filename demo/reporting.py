"""What both agents share for ``report(question)``: run the question to its end, then have the report written."""

from __future__ import annotations

import time
from datetime import datetime, timezone

from vrag.chat import ChatModel
from vrag.events import Delta
from vrag.report import Report, RunTrace, WriterOptions, write_report
from vrag.retriever import HttpRetriever
from vrag.runner import Run
from vrag.settings import Settings, VimragSettings

#: Tokens of a report at least; an answer needs fewer.
MIN_TOKENS = 4_096


def report(course: Run, question: str, agent: str, settings: Settings | VimragSettings) -> Report:
    """Finish ``course``, the run of ``question``, and report on it.

    Raises the error that ended the run, if one did (:class:`vrag.errors.VragError`). A run without an answer still has a
    report: on what was looked at.
    """
    started, clock = datetime.now(timezone.utc), time.monotonic()
    events = [event for event in course if not isinstance(event, Delta)]
    if course.error is not None:
        raise course.error
    trace = RunTrace.of_events(
        question,
        events,
        agent=agent,
        settings=settings.public(),
        started=started,
        seconds=time.monotonic() - clock,
        id=course.record.id if course.record is not None else "",
    )
    return write(trace, settings)


def write(trace: RunTrace, settings: Settings | VimragSettings) -> Report:
    """A report on a run that has ended, e.g. ``RunTrace.of_record(record)``; opens its own connections."""
    limits = (
        (settings.min_pixels, settings.max_pixels) if isinstance(settings, Settings) else (1, settings.max_pixels_image)
    )
    options = WriterOptions.load(settings.prompts, min_pixels=limits[0], max_pixels=limits[1])
    longer = settings.replace(max_tokens=max(settings.max_tokens, MIN_TOKENS))
    with ChatModel(longer) as chat, HttpRetriever(settings) as retriever:
        return write_report(trace, chat, retriever, options)
