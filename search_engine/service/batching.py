"""Micro-batching: calls that wait at the same time are run together in one worker thread.

Nothing waits when the worker is idle: the first call starts at once, and what arrives while it runs forms the next
batch. Only under load, when the callers of the batch that has just ended are about to call again, is there a short
pause, so that they share a batch instead of being split over two.

The worker knows nothing of searching. It runs ``run(key, inputs)``, a blocking function that maps a list of inputs to a
list of outputs of the same length; inputs are only ever run together under an equal key.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
In = TypeVar("In", bound=Hashable)
Out = TypeVar("Out")

log = logging.getLogger(__name__)


class Overloaded(Exception):
    """The queue is full; ``retry_after`` is a guess, in whole seconds, of when it will not be."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many calls are waiting; try again in {retry_after} s")
        self.retry_after = retry_after


class Stopped(Exception):
    """The worker has been stopped; the call was not run."""


@dataclass(eq=False)
class _Call(Generic[In, Out]):
    """One caller's inputs, with the place for each output."""

    inputs: Sequence[In]
    outputs: list[Out | None]
    missing: int
    done: asyncio.Future[list[Out]]

    def put(self, position: int, output: Out) -> None:
        self.outputs[position] = output
        self.missing -= 1
        if not self.missing and not self.done.done():
            self.done.set_result(self.outputs)  # type: ignore[arg-type]  # every place is filled

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


@dataclass
class _Waiting(Generic[Key, In, Out]):
    """The inputs that wait, as (call, position), first in first out, apart for each key."""

    queues: dict[Key, deque[tuple[_Call[In, Out], int]]] = field(default_factory=dict)
    size: int = 0

    def add(self, key: Key, call: _Call[In, Out]) -> None:
        self.queues.setdefault(key, deque()).extend((call, position) for position in range(len(call.inputs)))
        self.size += len(call.inputs)

    def take(self, limit: int) -> tuple[Key, list[tuple[_Call[In, Out], int]]]:
        """At most ``limit`` inputs of one key; the keys take turns, so that none starves."""
        key = next(iter(self.queues))
        queue = self.queues.pop(key)
        taken = [queue.popleft() for _ in range(min(limit, len(queue)))]
        if queue:
            self.queues[key] = queue
        self.size -= len(taken)
        return key, taken

    def drop(self, key: Key, call: _Call[In, Out]) -> None:
        queue = self.queues.get(key)
        if queue is None:
            return
        kept = deque(entry for entry in queue if entry[0] is not call)
        self.size -= len(queue) - len(kept)
        if kept:
            self.queues[key] = kept
        else:
            del self.queues[key]


class Batcher(Generic[Key, In, Out]):
    """Collects calls and runs them in batches; use it as an asynchronous context manager on the event loop that calls
    it.

    ``run`` is called in one thread of its own, never twice at a time. Equal inputs of a batch are run once. When a
    batch fails, its inputs are run one by one, so that only the callers of the bad ones see the error. ``observe`` is
    told the size of every batch.
    """

    def __init__(
        self,
        run: Callable[[Key, list[In]], list[Out]],
        *,
        max_batch: int = 128,
        max_waiting: int = 4096,
        max_pause: float = 0.02,
        observe: Callable[[int], None] | None = None,
    ) -> None:
        self._run = run
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._max_pause = max_pause
        self._observe = observe
        self._waiting: _Waiting[Key, In, Out] = _Waiting()
        self._wanted = 1  # how many inputs have to wait before the worker is woken
        self._wake = asyncio.Event()
        self._rate = 0.0  # inputs a second of the last batch
        self._stopped = True

    @property
    def depth(self) -> int:
        """How many inputs wait (those that run now are not counted)."""
        return self._waiting.size

    async def __aenter__(self) -> Batcher[Key, In, Out]:
        self._stopped = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")
        self._worker = asyncio.create_task(self._work(), name="batcher")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        self._worker.cancel()
        await asyncio.gather(self._worker, return_exceptions=True)
        while self._waiting.size:
            for call, _ in self._waiting.take(self._max_batch)[1]:
                call.fail(Stopped())
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def submit(self, key: Key, inputs: Sequence[In]) -> list[Out]:
        """The outputs for ``inputs``, in order. Cancelling the awaiting task takes its inputs out of the queue.

        Raises :class:`Overloaded` when the queue is full, and whatever ``run`` raised for one of these inputs.
        """
        if self._stopped:
            raise Stopped
        if not inputs:
            return []
        if self._waiting.size and self._waiting.size + len(inputs) > self._max_waiting:
            raise Overloaded(self._seconds_to_drain())
        done: asyncio.Future[list[Out]] = asyncio.get_running_loop().create_future()
        call: _Call[In, Out] = _Call(inputs, [None] * len(inputs), len(inputs), done)
        self._waiting.add(key, call)
        if self._waiting.size >= self._wanted:
            self._wake.set()
        try:
            return await done
        finally:
            if call.missing:  # cancelled, or failed half-way
                self._waiting.drop(key, call)

    def _seconds_to_drain(self) -> int:
        seconds = self._waiting.size / self._rate if self._rate else 1.0
        return max(1, min(60, round(seconds)))

    async def _work(self) -> None:
        size, ended, pause = 0, 0.0, 0.0
        while True:
            await self._until(1)
            if size > 1:  # the callers of the last batch are about to come back
                await self._until(size, ended + pause - time.monotonic())
            if self._waiting.size:
                started = time.monotonic()
                size = await self._run_one_batch()
                ended = time.monotonic()
                # Half of a run is what a pause may cost at most, and it never exceeds the limit.
                pause = min(self._max_pause, (ended - started) / 2)
                self._rate = size / max(ended - started, 1e-6)

    async def _run_one_batch(self) -> int:
        """The number of inputs that were run. (A method of its own: nothing of the batch outlives it, the key least.)"""
        key, batch = self._waiting.take(self._max_batch)
        inputs = list(dict.fromkeys(call.inputs[position] for call, position in batch))
        if self._observe:
            self._observe(len(batch))
        try:
            outcome = await asyncio.get_running_loop().run_in_executor(self._thread, self._attempt, key, inputs)
        except asyncio.CancelledError:
            for call, _ in batch:
                call.fail(Stopped())
            raise
        for call, position in batch:
            output = outcome[call.inputs[position]]
            if isinstance(output, _Failed):
                call.fail(output.error)
            else:
                call.put(position, output)
        return len(batch)

    async def _until(self, waiting: int, timeout: float | None = None) -> None:
        """Return once ``waiting`` inputs wait or ``timeout`` seconds have passed."""
        self._wanted = min(waiting, self._max_batch)
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._waiting.size < self._wanted:
            self._wake.clear()
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            try:
                await asyncio.wait_for(self._wake.wait(), left)
            except asyncio.TimeoutError:
                return

    def _attempt(self, key: Key, inputs: list[In]) -> dict[In, Out | _Failed]:
        """Run a batch in the worker's thread: every input gets its output or its own error."""
        try:
            return dict(zip(inputs, self._checked(key, inputs), strict=True))
        except Exception as error:
            if len(inputs) == 1:
                return {inputs[0]: _Failed(error)}
            log.info("A batch of %d failed (%s: %s); running it one by one", len(inputs), type(error).__name__, error)
        outcome: dict[In, Out | _Failed] = {}
        for one in inputs:
            outcome.update(self._attempt(key, [one]))
        return outcome

    def _checked(self, key: Key, inputs: list[In]) -> list[Out]:
        outputs = self._run(key, inputs)
        if len(outputs) != len(inputs):
            raise RuntimeError(f"{len(inputs)} inputs gave {len(outputs)} outputs")
        return outputs


@dataclass(frozen=True)
class _Failed:
    error: Exception
