"""For the tests of the service: a small real corpus, and the application on a real server on loopback."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pymupdf
import uvicorn
from fastapi import FastAPI
from PIL import Image

from search_engine.search_engine import SearchEngine
from search_engine.service import ServiceSettings

TOPICS = {
    "energy.pdf": [
        "Solar power reached 41 percent of the electricity mix in Andalusia",
        "Wind turbines off the coast of Denmark supply nine million homes",
        "Battery storage costs fell to 110 dollars per kilowatt hour",
    ],
    "health.pdf": [
        "Hospital beds per thousand inhabitants by district",
        "Vaccination coverage among children under five years of age",
        "Waiting times for knee surgery rose by a third",
    ],
}
NOTE = "The archive of the harbour master holds maps of the tidal basin.\n"


def write_documents(folder: Path) -> Path:
    """Two PDFs with a text layer, a picture and a text."""
    folder.mkdir(parents=True)
    for name, pages in TOPICS.items():
        write_pdf(folder / name, pages)
    Image.new("RGB", (640, 360), (30, 90, 160)).save(folder / "harbour.png")
    (folder / "note.md").write_text(NOTE, encoding="utf-8")
    return folder


def write_pdf(path: Path, pages: list[str]) -> None:
    with pymupdf.open() as pdf:
        for text in pages:
            page = pdf.new_page(width=400, height=300)
            for line, part in enumerate([text, *(f"{text.split()[0]} detail {line}" for line in range(6))]):
                page.insert_text((30, 60 + 30 * line), part, fontsize=11)
        pdf.save(path)


def build(documents: Path, index: Path) -> Path:
    from search_engine.ingest import IngestOptions

    report = SearchEngine().build_index(documents, index, index, ingest=IngestOptions(ocr=False), workers=1)
    assert report.items, report
    return index


class Server:
    """The application on a port of the system's choice, in a thread; ``client`` speaks to it over the network."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.port = int(self._listener.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]})
        self.client = httpx.Client(base_url=self.url, trust_env=False, timeout=60)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join(30)
        self._listener.close()

    def until_ready(self, headers: dict[str, str] | None = None) -> None:
        wait_for(lambda: self.client.get("/health", headers=headers).status_code == 200)


@contextmanager
def running(app: FastAPI) -> Iterator[Server]:
    with Server(app) as server:
        server.until_ready()
        yield server


def wait_for(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


async def raw_post(port: int, path: str, body: object) -> tuple[int, Any]:
    """One POST over a connection of its own: status and answer. A client library would be the slower half of a burst."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    status, _, rest = answer.partition(b"\r\n")
    return int(status.split()[1]), json.loads(rest.partition(b"\r\n\r\n")[2])


def settings_for(*index: Path, **more: object) -> ServiceSettings:
    return ServiceSettings(index=index, port=0, **more)
