"""A run in the background of a web page: events are collected by a thread, the page draws what is there.

Streamlit runs a page's script anew at every click. Were the agent called from the script, each click would cut it off; so
the run lives in a thread of its own and the page looks at :attr:`LiveRun.events` as often as it likes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

from vrag.events import Answered, Event, Failed

logger = logging.getLogger(__name__)


class LiveRun:
    """One question being answered. ``events`` only grows; ``done`` is set once nothing more will come."""

    def __init__(self, question: str, stream: Callable[[threading.Event], Iterator[Event]]) -> None:
        """``stream(stop)`` yields the run's events and ends soon after ``stop`` is set."""
        self.question = question
        self.events: list[Event] = []
        self.started = time.time()
        self.finished: float | None = None
        self._stop = threading.Event()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._collect, args=(stream,), daemon=True, name="vrag-run")
        self._thread.start()

    def _collect(self, stream: Callable[[threading.Event], Iterator[Event]]) -> None:
        try:
            for event in stream(self._stop):
                self.events.append(event)
        except Exception as error:
            logger.exception("the run ended with an unexpected error")
            text = f"The run ended unexpectedly: {error}. The log of the web page has the details."
            self.events.append(Failed(text=text, reason="error", error=type(error).__name__))
        finally:
            self.finished = time.time()
            self._done.set()

    def stop(self) -> None:
        """Ask the run to end; it does so at the next piece that the model sends."""
        self._stop.set()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set() and not self.done

    @property
    def done(self) -> bool:
        return self._done.is_set()

    @property
    def seconds(self) -> float:
        return (self.finished or time.time()) - self.started

    @property
    def end(self) -> Answered | Failed | None:
        """The event that ended the run, if it has ended."""
        return next((event for event in reversed(self.events) if isinstance(event, Answered | Failed)), None)
