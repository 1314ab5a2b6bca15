"""A run in the background of a web page: events are collected by a thread, the page draws what is there.

Streamlit runs a page's script anew at every click. Were the agent called from the script, each click would cut it off; so
the run lives in a thread of its own and the page looks at it as often as it likes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass

from vrag.errors import VragError
from vrag.events import Answered, Delta, Event, Failed

logger = logging.getLogger(__name__)

Stream = Callable[[Callable[[], bool]], Generator[Event, None, object]]


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment, live or read from a record: everything that drawing it needs."""

    question: str
    events: tuple[Event, ...]
    """Without the streamed pieces."""
    writing: str = ""
    """The reply that is being written right now, with what is thought before it."""
    thinking: str = ""
    """Of that, what arrives as reasoning."""
    done: bool = True
    stopping: bool = False
    seconds: float = 0.0

    @property
    def end(self) -> Answered | Failed | None:
        """The event that ended the run, if it has ended."""
        return next((event for event in reversed(self.events) if isinstance(event, Answered | Failed)), None)


class LiveRun:
    """One question being answered. Safe to look at from any thread."""

    def __init__(self, question: str, stream: Stream) -> None:
        """``stream(should_stop)`` yields the run's events and ends soon after ``should_stop()`` is true."""
        self.question = question
        self._events: list[Event] = []
        self._writing: list[Delta] = []
        self._started = time.monotonic()
        self._finished: float | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._collect, args=(stream,), daemon=True, name="vrag-run")
        self._thread.start()

    def _collect(self, stream: Stream) -> None:
        try:
            with closing(stream(self._stop.is_set)) as events:
                for event in events:
                    self._take(event)
        except VragError as error:  # settings that no run can be made of
            self._take(Failed(text=str(error), reason="error", error=type(error).__name__))
        except Exception as error:
            logger.exception("the run ended with an unexpected error")
            text = f"The run ended unexpectedly: {error}. The log of the web page has the details."
            self._take(Failed(text=text, reason="error", error=type(error).__name__))
        finally:
            self._finished = time.monotonic()
            self._done.set()

    def _take(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, Delta):
                self._writing.append(event)
            else:
                self._writing.clear()
                self._events.append(event)

    def stop(self) -> None:
        """Ask the run to end; it does so at the next piece that the model sends."""
        self._stop.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether the run is over, at the latest after ``seconds``."""
        return self._done.wait(seconds)

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def snapshot(self) -> Snapshot:
        done = self.done  # before the events are read: what is done has all of them
        with self._lock:
            events, pieces = tuple(self._events), tuple(self._writing)
        return Snapshot(
            question=self.question,
            events=events,
            writing="".join(piece.text for piece in pieces),
            thinking="".join(piece.text for piece in pieces if piece.channel == "reasoning"),
            done=done,
            stopping=self._stop.is_set() and not done,
            seconds=(self._finished or time.monotonic()) - self._started,
        )
