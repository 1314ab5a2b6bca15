"""The search service over Milvus Lite against the service over exact FAISS search: are the answers equal, and what does a query cost?

Passages of words drawn by Zipf's law are indexed with the embedded text model and exported; two servers answer the same questions,
vectors alone, one after the other in turns. Every answer has to be the same: items, order and scores.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--queries", type=int, default=128)
    parser.add_argument("--top-k", type=int, default=10)
    parser.add_argument("--uri", help="a Milvus (default: Milvus Lite in a temporary file)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    from search_engine.search_engine import SearchEngine

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        passages, index = Path(folder) / "passages.jsonl", Path(folder) / "index"
        queries, filters = _write(passages, args.rows, args.queries)
        SearchEngine().build_index(passages, index, save_interval=4096, bs=256, progress=False)
        uri = args.uri or str(Path(folder) / "vectors.db")
        started = time.perf_counter()
        # In a process of its own: a file of Milvus Lite is open in one at a time.
        exporting = [sys.executable, "-m", "search_engine", "milvus-export", str(index), "--uri", uri]
        subprocess.run(exporting, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - started
        servers = {
            "FAISS, exact": stack.enter_context(_served(index, "flat", uri)),
            "Milvus": stack.enter_context(_served(index, "milvus", uri)),
        }
        times: dict[tuple[str, int], list[float]] = {}
        answers: dict[str, list[Any]] = {name: [] for name in servers}
        for batch in (1, 64):
            for start in range(0, len(queries), batch):
                body = {"queries": queries[start : start + batch], "top_k": args.top_k}
                _ask(servers, body, batch, times, answers)
        plain = len(answers["Milvus"])
        for start, names in enumerate(filters):
            body = {"queries": queries[start : start + 1], "top_k": args.top_k, "documents": names}
            _ask(servers, body, 0, times, answers)
        exact, milvus = answers.values()
        equal = [a == b for a, b in zip(exact, milvus, strict=True)]
        return {
            "rows_indexed": args.rows,
            "uri": "Milvus Lite" if args.uri is None else "a server",
            "export_seconds": round(seconds, 1),
            "rows": [
                {
                    "served by": name,
                    "answers": plain,
                    "equal": sum(equal[:plain]),
                    "filtered": len(equal) - plain,
                    "equal, filtered": sum(equal[plain:]),
                    "ms alone": 1e3 * median(times[name, 1]),
                    "ms of 64": 1e3 * median(times[name, 64]) / 64,
                    "ms filtered": 1e3 * median(times[name, 0]),
                }
                for name in servers
            ],
        }


def _ask(
    servers: dict[str, httpx.Client],
    body: dict[str, Any],
    batch: int,
    times: dict[tuple[str, int], list[float]],
    answers: dict[str, list[Any]],
) -> None:
    for name, client in servers.items():
        started = time.perf_counter()
        answer = client.post("/search", json=body)
        times.setdefault((name, batch), []).append(time.perf_counter() - started)
        answer.raise_for_status()
        answers[name] += [
            (result["indice"], result["score"], [entry["id"] for entry in result["data"]])
            for result in answer.json()["results"]
        ]


def _write(path: Path, rows: int, queries: int) -> tuple[list[str], list[list[str]]]:
    """A list of passages; questions of some words of one of them, and filters that name 50 documents each."""
    rng = np.random.default_rng(0)
    syllables = ["ka", "ro", "mi", "ten", "sol", "ver", "dan", "lu", "pex", "hor", "bi", "nas"]
    words = sorted({"".join(rng.choice(syllables, rng.integers(2, 5))) for _ in range(6000)})
    rng.shuffle(words)
    chance = 1 / np.arange(10, len(words) + 10)
    passages = rng.choice(words, (rows, 60), p=chance / chance.sum())
    with path.open("w", encoding="utf-8") as file:
        for number, passage in enumerate(passages):
            row = {"uid": f"p{number}", "type": "text", "content": " ".join(passage)}
            file.write(json.dumps(row) + "\n")
    asked = [" ".join(rng.choice(passages[row], 6, replace=False)) for row in rng.integers(0, rows, queries)]
    named = [[f"p{number}" for number in rng.choice(rows, min(50, rows), replace=False)] for _ in range(32)]
    return asked, named


@contextmanager
def _served(index: Path, vectors: str, uri: str) -> Iterator[httpx.Client]:
    """The real service, in a process of its own on a free port."""
    command = [sys.executable, "-m", "search_engine.search_engine_api", "--port", "0", "--index", str(index)]
    environment = {**os.environ, "VRAG_SEARCH_HYBRID": "false"}
    with tempfile.TemporaryFile("w+") as log:
        options = ["--vectors", vectors, "--milvus-uri", uri]
        process = subprocess.Popen([*command, *options], stderr=log, stdout=log, env=environment)
        try:
            base = _address(process, log)
            with httpx.Client(base_url=base, timeout=300, trust_env=False) as client:
                deadline = time.monotonic() + 300
                while not _ready(client):
                    if process.poll() is not None or time.monotonic() > deadline:
                        log.seek(0)
                        raise RuntimeError(f"the service did not start:\n{log.read()[-2000:]}")
                    time.sleep(0.2)
                yield client
        finally:
            process.terminate()
            process.wait(60)


def _ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def _address(process: subprocess.Popen[bytes], log: Any) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        log.seek(0)
        text = log.read()
        if found := re.search(r"Listening on (http://\S+)", text):
            return found[1]
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError(f"the service did not start:\n{text[-2000:]}")
