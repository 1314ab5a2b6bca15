"""Embedding on many GPUs and machines: one actor of Ray for each, behind the protocol of an ordinary embedder.

    with SearchEngine(RayEmbedder("Alibaba-NLP/GVE-3B")) as engine:
        engine.build_index("docs", "docs_index")

The build itself stays where it is: files are read, and batches committed in order, by the one process that holds the
index. Only the batches of documents travel, each to the worker that is free, and come back as vectors. Batches are cut
as a serial build cuts them, so the index is the same, byte for byte (on CPUs: with as many threads; numbers added up in
another order differ in the last bit).

A worker that dies costs the batch that it was working on: it is replaced, and the batch goes to the next one that is
free. A batch that kills its workers again and again ends the build with an error that names its documents; what was
committed stays.

On several machines the corpus (page images, clips) has to be reachable under the same path on each of them.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import queue
import socket
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from search_engine.models.base import Document, Embedded, Embedding, Query, Vectors, reads, sees_pictures
from search_engine.models.registry import load_model
from vrag.errors import ConfigError, ModelError, VragError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a worker's model says of itself."""

    name: str
    dimension: int
    fingerprint: str
    sees_pictures: bool
    fusion_weight: float
    process: int
    machine: str


class EmbeddingWorker:
    """What runs inside an actor: one model. It is loaded by a call of its own, so that its errors arrive as they are."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        self._name, self._options = model, options

    def load(self) -> Facts:
        self._model = model = load_model(self._name, **self._options)
        weight = float(getattr(model, "fusion_weight", 1.0))
        return Facts(
            name=model.name,
            dimension=model.dimension,
            fingerprint=model.fingerprint,
            sees_pictures=sees_pictures(model),
            fusion_weight=weight,
            process=os.getpid(),
            machine=socket.gethostname(),
        )

    def documents(self, documents: Sequence[Document]) -> Embedded:
        embedded = self._model.embed_documents(documents)
        for row in embedded.failed:
            files = [path for path in (documents[row].image, documents[row].video) if path and not Path(path).exists()]
            if files:
                embedded.failed[row] += f" ({files[0]} is not there on {socket.gethostname()}: every machine needs it)"
        return embedded

    def queries(self, queries: Sequence[Query]) -> Vectors:
        return self._model.embed_queries(queries)

    def reads(self, text: str) -> bool:
        return reads(self._model, text)


@dataclass(slots=True, eq=False)
class _Worker:
    actor: Any
    facts: Facts


class RayEmbedder:
    """:class:`search_engine.models.base.Embedder` over actors of Ray, each with a replica of ``model``.

    ``workers``: by default one for every GPU of the cluster, and one where there is none. ``cpus``: cores (and threads) of
    each. ``address``: a cluster to join; by default the one that ``RAY_ADDRESS`` names, else one is started on this
    machine and ends with :meth:`close`. ``attempts``: how often a batch is tried whose worker died. ``options`` go to the
    model. The model is one that :func:`search_engine.models.registry.load_model` knows by name.

    Raises ConfigError when Ray is missing, the cluster cannot be reached or gives no room, or the model cannot be used.
    """

    #: Commits whose batches may be under way while the next files are read.
    ahead = 4

    def __init__(
        self,
        model: str,
        *,
        workers: int | None = None,
        cpus: float = 1,
        address: str | None = None,
        attempts: int = 3,
        start_seconds: float = 600.0,
        **options: Any,
    ) -> None:
        if workers is not None and workers < 1:
            raise ConfigError(f"workers has to be at least 1, not {workers}.")
        if attempts < 1:
            raise ConfigError(f"attempts has to be at least 1, not {attempts}.")
        self._ray = ray = _ray()
        self._own = not ray.is_initialized()
        self._attempts, self._start_seconds = attempts, start_seconds
        self._closed = False
        errors = ray.exceptions
        #: A worker or its machine is gone, and what it was doing with it.
        self._lost = (errors.RayActorError, errors.ObjectLostError, errors.OutOfMemoryError)
        if self._own:
            _connect(ray, address)
        self._pool: ThreadPoolExecutor | None = None
        self._workers: list[_Worker] = []
        try:
            gpus = int(ray.cluster_resources().get("GPU", 0))
            count = workers or gpus or 1
            if gpus and count > gpus:
                raise ConfigError(f"{count} workers are more than the {gpus} GPUs of the cluster; each needs its own.")
            # Ray is to restart nothing by itself: a batch that was lost has to be given out again.
            self._kind: Any = ray.remote(num_cpus=cpus, num_gpus=1 if gpus else 0, max_restarts=0)(EmbeddingWorker)
            self._model, self._options = _absolute(model), options
            actors = [self._start() for _ in range(count)]
            self._workers = [_Worker(actor, self._loaded(actor)) for actor in actors]
            self.facts = self._workers[0].facts
            for worker in self._workers:
                self._check(worker.facts)
        except BaseException:
            self.close()
            raise
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="ray")
        places = sorted({f"{w.facts.machine}:{w.facts.process}" for w in self._workers})
        log.info("%s on %d workers: %s", self.name, count, ", ".join(places))

    # --- what an embedder has

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def dimension(self) -> int:
        return self.facts.dimension

    @property
    def fingerprint(self) -> str:
        return self.facts.fingerprint

    @property
    def sees_pictures(self) -> bool:
        return self.facts.sees_pictures

    @property
    def fusion_weight(self) -> float:
        return self.facts.fusion_weight

    @property
    def processes(self) -> list[int]:
        """The workers' process ids, each on its own machine."""
        return [worker.facts.process for worker in self._workers]

    def submit(self, chunks: Sequence[Sequence[Document]]) -> Embedding:
        """Give out batches; the function that is returned waits for their outcomes, in order."""
        futures = [self._give("documents", list(chunk), f"the batch from {chunk[0].id} on") for chunk in chunks]
        return lambda: [future.result() for future in futures]

    def embed_documents(self, documents: Sequence[Document]) -> Embedded:
        if not documents:
            return Embedded(np.zeros((0, self.dimension), np.float32))
        return self.submit([documents])()[0]

    def embed_queries(self, queries: Sequence[Query]) -> Vectors:
        vectors: Vectors = self._give("queries", list(queries), "the queries").result()
        return vectors

    def reads_script(self, text: str) -> bool:
        return bool(self._give("reads", text, "a query").result())

    def close(self) -> None:
        """End the workers, and the cluster if it was started here."""
        if self._closed:
            return
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        if self._ray.is_initialized():
            for worker in self._workers:
                self._ray.kill(worker.actor)
            if self._own:
                self._ray.shutdown()

    # --- the workers

    def _give(self, method: str, argument: Any, what: str) -> Future[Any]:
        if self._closed or self._pool is None:
            raise ModelError("the workers have been closed.")
        return self._pool.submit(self._done, method, argument, what)

    def _done(self, method: str, argument: Any, what: str) -> Any:
        """Have it done by a worker that is free; runs in a thread of the pool, of which there is one for each worker."""
        worker = self._idle.get()
        try:
            for attempt in range(1, self._attempts + 1):
                try:
                    return self._ray.get(getattr(worker.actor, method).remote(argument))
                except self._ray.exceptions.RayTaskError as error:  # noqa: PERF203 - another attempt may do
                    raise _cause(error, worker.facts) from None
                except self._lost as error:
                    if self._closed:
                        raise ModelError("the workers have been closed.") from None
                    log.warning(
                        "Worker %d on %s died over %s (attempt %d of %d): %s",
                        *(worker.facts.process, worker.facts.machine, what, attempt, self._attempts),
                        str(error).strip().partition("\n")[0],
                    )
                    self._replace(worker)
            raise ModelError(
                f"{what} ended its worker {self._attempts} times; see the log of Ray for why (out of memory?). Give out "
                "smaller batches with batch_size, or take the documents out. What was committed is kept."
            )
        finally:
            self._idle.put(worker)

    def _start(self) -> Any:
        return self._kind.remote(self._model, self._options)

    def _replace(self, worker: _Worker) -> None:
        self._ray.kill(worker.actor)  # it may only have been out of reach
        worker.actor = self._start()
        worker.facts = self._loaded(worker.actor)
        self._check(worker.facts)

    def _loaded(self, actor: Any) -> Facts:
        try:
            facts: Facts = self._ray.get(actor.load.remote(), timeout=self._start_seconds)
            return facts
        except self._ray.exceptions.RayTaskError as error:
            raise _cause(error, None) from None
        except self._ray.exceptions.GetTimeoutError:
            raise ConfigError(
                f"A worker did not start within {self._start_seconds:g} s: has the cluster a free GPU and free cores for "
                f"each? It has {self._ray.available_resources()} left."
            ) from None
        except self._ray.exceptions.RayActorError as error:
            said = str(error).strip().partition("\n")[0]
            raise ConfigError(f"A worker died while it loaded the model ({said}); is there memory for it?") from None

    def _check(self, facts: Facts) -> None:
        """Machines with other weights or another release would mix vectors that cannot be compared."""
        first = self._workers[0].facts if self._workers else facts
        for of in ("name", "dimension", "fingerprint"):
            if getattr(facts, of) != getattr(first, of):
                raise ModelError(
                    f"The worker on {facts.machine} runs another model than the one on {first.machine}: its {of} is "
                    f"{getattr(facts, of)}, not {getattr(first, of)}."
                )


def _ray() -> Any:
    if importlib.util.find_spec("ray") is None:
        raise ConfigError('Building over Ray needs the package ray: pip install "vrag[ray]".')
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    import ray

    return ray


def _connect(ray: Any, address: str | None) -> None:
    try:
        ray.init(address=address, include_dashboard=False, logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = address or os.environ.get("RAY_ADDRESS") or "on this machine"
        raise ConfigError(f"No Ray cluster {where}: {str(error).strip().splitlines()[0]}") from error


def _absolute(model: str) -> str:
    """A checkpoint's folder as every process finds it, whatever folder it is started in; names stay names."""
    return os.path.abspath(model) if os.path.isdir(model) else model


def _cause(error: Any, facts: Facts | None) -> VragError:
    cause = error.cause
    if isinstance(cause, VragError):
        return cause
    where = "" if facts is None else f" on {facts.machine}"
    return ModelError(f"A worker{where} failed: {type(cause).__name__}: {cause}")
