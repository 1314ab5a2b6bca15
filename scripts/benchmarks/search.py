"""Search over HTTP against the published design, and the exact scan against the memory's bandwidth.

Both servers hold the same vectors, embed queries with the same model and answer in the same form, each one uvicorn
worker in a process of its own. The published design is written afresh here: one ``IndexFlatIP.search`` per request
inside an asynchronous endpoint. Ours is the service itself over :class:`search_engine.vector_index.FlatIndex`. They are
measured in turns within one run, so the ratios stand on a noisy machine too; the load comes from this process.

The floor of an exact search is the time to read every vector once. It is measured on the very same bytes by the C
library's ``wmemchr``, which looks for a pattern that no finite number has, on as many threads as there are cores.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vrag.errors import ConfigError, VragError
from vrag.items import Hit, Item

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI

    from search_engine.documents import Line
    from search_engine.models.base import Embedder, Vectors

#: Queries of the batched scan.
BATCH = 64
WORDS = (
    "revenue growth region quarter chart table market share cost energy water report annual survey figure total",
    "percent average customer product export import price index health school city traffic rainfall budget debt",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n", type=int, default=100_000, help="vectors (100000)")
    parser.add_argument("--clients", type=int, default=64, help="concurrent clients (64)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of one measurement (6)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="measurements of each kind, in turns; the median counts (3)"
    )
    parser.add_argument("--top-k", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> dict[str, Any]:
    embedder = make_embedder()
    with tempfile.TemporaryDirectory(prefix="vrag-bench-", dir=roomy(args.n * embedder.dimension * 4)) as folder:
        path = Path(folder) / "vectors.npy"
        write_vectors(path, args.n, embedder.dimension, args.seed)
        scan = measure_scan(np.load(path), args.top_k, 2 + 4 * args.rounds)
        with ExitStack() as stack:
            ports = {name: stack.enter_context(serving(name, path)) for name in SERVERS}
            agreement = asyncio.run(share_of_equal_answers(ports, args.top_k))
            speed = {clients: compare(ports, clients, args) for clients in (1, args.clients)}
    rows = [
        row(f"{clients} client{'s' if clients > 1 else ''}, {unit}", by_name["ours"][key], by_name["published"][key])
        for clients, by_name in speed.items()
        for key, unit in (("per_second", "queries/s"), ("p50_ms", "p50 ms"), ("p95_ms", "p95 ms"))
    ]
    rows += [
        row("exact scan, 1 query, ms", scan["scan_ms"], scan["faiss_ms"], scan["floor_ms"]),
        row(f"exact scan, {BATCH} queries together, ms", scan["batch_ms"], scan["faiss_batch_ms"], scan["floor_ms"]),
    ]
    return {
        "rows": rows,
        "vectors": args.n,
        "dimension": embedder.dimension,
        "equal_answers": agreement,
        "scan": scan,
        "speed": speed,
    }


def row(measure: str, ours: float, published: float, floor: float | None = None) -> dict[str, Any]:
    """One line of the table; the floor is the time of one read of all vectors."""
    return {
        "measure": measure,
        "ours": ours,
        "published": published,
        "ours / published": ours / published,
        "floor": floor,
        "ours / floor": None if floor is None else ours / floor,
    }


def make_embedder() -> Embedder:
    from search_engine.models.registry import load_model

    return load_model("text_page")


def roomy(size: int) -> str | None:
    """Shared memory where it has the room: the disk is not what is measured."""
    shared = Path("/dev/shm")
    if shared.is_dir():
        stat = os.statvfs(shared)
        if stat.f_bavail * stat.f_frsize > size + 2**28:
            return str(shared)
    return None


def write_vectors(path: Path, n: int, dimension: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    out = np.lib.format.open_memmap(path, "w+", np.float32, (n, dimension))
    for start in range(0, n, 10_000):
        block = random.standard_normal((min(10_000, n - start), dimension), np.float32)
        out[start : start + len(block)] = block / np.linalg.norm(block, axis=1, keepdims=True)
    out.flush()


def query(number: int) -> str:
    """A question of six words, different for every number."""
    random = np.random.default_rng(number)
    return " ".join(random.choice(" ".join(WORDS).split(), 6)) + f" {number}"


# --- the two servers


class VectorEngine:
    """The engine of the service reduced to its vectors: the embedder and the exact index, nothing else."""

    version, model_name, reranker_name = "bench", "text_page", None

    def __init__(self, vectors: Vectors, embedder: Embedder) -> None:
        from search_engine.vector_index import FlatIndex

        self._embedder = embedder
        self._index = FlatIndex(vectors.shape[1])
        self._index.add(vectors)
        self.corpora: Mapping[str, int] = {"bench": len(vectors)}
        self.dimension = vectors.shape[1]

    def retrieve(
        self, queries: Sequence[str], top_k: int = 3, corpus: Any = None, documents: Any = None
    ) -> list[list[Hit]]:
        from search_engine.models.base import Query

        found = self._index.search(self._embedder.embed_queries([Query(text) for text in queries]), top_k)
        return [
            [Hit(item=self.item(str(row)), score=float(score)) for row, score in zip(*one, strict=True)]
            for one in found
        ]

    def item(self, item_id: str) -> Item:
        return Item(id=item_id, kind="image", document=f"{item_id}.jpg")

    def position(self, item_id: str) -> int:
        return int(item_id)

    def media_path(self, item_id: str) -> Path | None:
        return Path(f"{item_id}.jpg")

    def lines(self, item_id: str) -> Sequence[Line]:
        return ()


def our_app(path: Path) -> FastAPI:
    from search_engine.service import ServiceSettings, create_app

    return create_app(ServiceSettings(), open_engine=lambda _: VectorEngine(np.load(path), make_embedder()))


def published_app(path: Path) -> FastAPI:
    """As published: the endpoint is asynchronous, but embeds and searches on the event loop, one request at a time."""
    import faiss
    from fastapi import FastAPI
    from pydantic import BaseModel

    from search_engine.models.base import Query

    embedder = make_embedder()
    vectors = np.load(path)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    app = FastAPI()

    class Body(BaseModel):
        queries: list[str]
        top_k: int = 3

    async def search(body: Body) -> dict[str, Any]:
        scores, rows = index.search(embedder.embed_queries([Query(text) for text in body.queries]), body.top_k)
        return {
            "results": [
                {
                    "score": [float(score) for score in some],
                    "indice": [int(row) for row in found],
                    "data": [{"type": "image", "file_path": f"{row}.jpg"} for row in found],
                }
                for some, found in zip(scores, rows, strict=True)
            ]
        }

    async def health() -> dict[str, str]:
        return {"status": "ready"}

    search.__annotations__["body"] = Body
    app.post("/search")(search)
    app.get("/health")(health)
    return app


SERVERS: Mapping[str, Callable[[Path], FastAPI]] = {"ours": our_app, "published": published_app}


def serve(name: str, path: Path, ready: Connection) -> None:
    """Run one server on a port of the system's choice until the process is ended."""
    import uvicorn

    from search_engine.service.server import listen

    listener = listen("127.0.0.1", 0)
    app = SERVERS[name](path)
    ready.send(listener.getsockname()[1])
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])


@contextmanager
def serving(name: str, path: Path) -> Iterator[int]:
    """A server in a process of its own; gives its port once it answers."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(name, path, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        try:
            port = ours.recv()
        except EOFError:
            raise ConfigError(f"The server {name!r} did not start; the lines above say why.") from None
        asyncio.run(until_ready(port))
        yield port
    finally:
        process.terminate()
        process.join(10)


# --- the load: a client as thin as can be, since it shares the cores with the servers


class Client:
    """One connection that is kept open."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        content = b"" if body is None else json.dumps(body).encode()
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        return int(head.split(" ", 2)[1]), json.loads(await reader.readexactly(length))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def until_ready(port: int, seconds: float = 120.0) -> None:
    client, deadline = Client(port), time.monotonic() + seconds
    while (await client.ask("GET", "/health"))[0] != 200:
        if time.monotonic() > deadline:
            raise VragError(f"The server was not ready after {seconds:.0f} s.")
        await asyncio.sleep(0.1)
    client.close()


async def load(port: int, clients: int, seconds: float, top_k: int, first: int) -> dict[str, float]:
    """``clients`` connections that each ask their next question as soon as the last is answered."""
    taken: list[float] = []
    started = time.perf_counter()
    end = started + seconds

    async def ask_on(number: int) -> None:
        client, turn = Client(port), 0
        while time.perf_counter() < end:
            body = {"queries": [query(first + number + turn * clients)], "top_k": top_k}
            begun = time.perf_counter()
            status, answer = await client.ask("POST", "/search", body)
            taken.append(time.perf_counter() - begun)
            if status != 200 or len(answer["results"][0]["score"]) != top_k:
                raise VragError(f"A search was answered with {status}: {str(answer)[:200]}")
            turn += 1
        client.close()

    await asyncio.gather(*(ask_on(number) for number in range(clients)))
    spent = time.perf_counter() - started
    cuts = statistics.quantiles(taken, n=20) if len(taken) > 1 else taken * 19
    return {"per_second": len(taken) / spent, "p50_ms": 1000 * statistics.median(taken), "p95_ms": 1000 * cuts[18]}


def compare(ports: Mapping[str, int], clients: int, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The medians of both servers over the rounds, measured in turns."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ports}
    for number in range(args.rounds):
        for name, port in ports.items():
            first = 1_000_000 * (number + 1)
            found[name].append(asyncio.run(load(port, clients, args.seconds, args.top_k, first)))
    return {
        name: {key: statistics.median(one[key] for one in several) for key in several[0]}
        for name, several in found.items()
    }


async def share_of_equal_answers(ports: Mapping[str, int], top_k: int, count: int = 50) -> float:
    """How often both servers find the same rows: both search exactly."""
    found = []
    for port in ports.values():
        client = Client(port)
        body = {"queries": [query(number) for number in range(count)], "top_k": top_k}
        found.append([one["indice"] for one in (await client.ask("POST", "/search", body))[1]["results"]])
        client.close()
    return sum(a == b for a, b in zip(*found, strict=True)) / count


# --- the scan and its floor


def measure_scan(vectors: Vectors, top_k: int, turns: int) -> dict[str, float]:
    """Milliseconds of our scan, FAISS' own and one read of all the bytes: the best of several turns, as noise only adds."""
    import faiss

    from search_engine.vector_index import FlatIndex

    ours, theirs = FlatIndex(vectors.shape[1]), faiss.IndexFlatIP(vectors.shape[1])
    ours.add(vectors)
    theirs.add(vectors)
    queries = vectors[:BATCH].copy()
    usual, tuned = 128_000, faiss.cvar.distance_compute_blas_threshold  # FAISS' own default, and ours
    best: dict[str, float] = {}
    with ThreadPoolExecutor(cores()) as pool:
        kinds: dict[str, Callable[[], object]] = {
            "floor_ms": lambda: read_all(vectors, pool),
            "scan_ms": lambda: ours.search(queries[:1], top_k),
            "faiss_ms": lambda: theirs.search(queries[:1], top_k),
            "batch_ms": lambda: ours.search(queries, top_k),
            "faiss_batch_ms": lambda: theirs.search(queries, top_k),
        }
        for _ in range(turns):
            for name, work in kinds.items():
                faiss.cvar.distance_compute_blas_threshold = usual if name.startswith("faiss") else tuned
                begun = time.perf_counter()
                work()
                best[name] = min(best.get(name, math.inf), 1000 * (time.perf_counter() - begun))
    faiss.cvar.distance_compute_blas_threshold = tuned
    return {**best, "floor_gb_per_second": vectors.nbytes / best["floor_ms"] / 1e6}


def read_all(vectors: Vectors, pool: ThreadPoolExecutor) -> None:
    """Read every byte once and write none, on all cores; ctypes lets go of the interpreter's lock meanwhile."""
    libc = ctypes.CDLL(None)
    libc.wmemchr.restype = ctypes.c_void_p
    libc.wmemchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    share = -(-vectors.size // (8 * cores()))
    parts = [(vectors.ctypes.data + 4 * at, min(share, vectors.size - at)) for at in range(0, vectors.size, share)]
    all_bits_set = -1  # no finite number looks like it
    if any(found is not None for found in pool.map(lambda part: libc.wmemchr(part[0], all_bits_set, part[1]), parts)):
        raise VragError("A vector holds something that is not a number.")


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
