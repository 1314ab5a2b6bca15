"""The client of an embeddings server against a server that speaks the protocol, on loopback."""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse

from search_engine.models.base import Document, Embedder, Query
from search_engine.models.registry import load_model
from search_engine.models.remote import RemoteEmbedder
from tests.search_engine.models.conftest import encoded, noise, write_clip
from tests.servers import dead_url, serve
from vrag.errors import ConfigError, MediaError, ModelError


@dataclass
class EmbeddingServer:
    """``/v1/embeddings`` of vLLM's pooling runner. ``embed`` turns a request's body into a vector; ``faults`` come first."""

    embed: Any = None
    faults: list[Any] = field(default_factory=list)
    models: tuple[str, ...] = ("Qwen/Qwen3-VL-Embedding-2B",)
    delay: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    busy: int = 0
    most_busy: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def app(self) -> FastAPI:
        app = FastAPI()

        @app.get("/v1/models")
        def models() -> Any:
            return {"data": [{"id": name} for name in self.models]}

        @app.post("/v1/embeddings")
        async def embeddings(request: Request) -> Any:
            import asyncio

            return await asyncio.to_thread(self._answer, await request.json())

        return app

    def _answer(self, body: dict[str, Any]) -> Any:
        with self.lock:
            self.busy += 1
            self.most_busy = max(self.most_busy, self.busy)
            self.bodies.append(body)
            fault = self.faults.pop(0) if self.faults else None
        try:
            time.sleep(self.delay)
            if fault is not None:
                return fault
            vector = (self.embed or hashed)(body)
            if isinstance(vector, JSONResponse):
                return vector
            if body.get("encoding_format") == "base64":
                coded: Any = base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()
            else:
                coded = [float(x) for x in vector]
            return {"data": [{"index": 0, "embedding": coded}], "model": body["model"]}
        finally:
            with self.lock:
                self.busy -= 1


def hashed(body: dict[str, Any]) -> Any:
    """A vector that any change of the content changes."""
    digest = hashlib.sha256(repr(body.get("messages", body.get("input"))).encode()).digest()
    return np.frombuffer(digest, dtype=np.uint8).astype(np.float32)


def test_vectors_are_normalised_in_order_and_the_model_is_found(tmp_path: Path) -> None:
    server = EmbeddingServer()
    with serve(server.app) as url, RemoteEmbedder(url + "/v1/", pause=0.01) as model:
        assert isinstance(model, Embedder)
        assert (model.name, model.dimension) == ("Qwen3-VL-Embedding-2B", 32)
        documents = [Document(str(i), text=f"text {i}") for i in range(20)]
        first = model.embed_documents(documents)
        assert not first.failed
        assert np.allclose(np.linalg.norm(first.vectors, axis=1), 1)
        single = model.embed_documents([documents[7]]).vectors[0]
        assert np.array_equal(first.vectors[7], single)
        assert model.embed_queries([]).shape == (0, 32)
    assert "remote:messages" in model.fingerprint


def test_the_messages_are_those_of_the_local_model(tmp_path: Path) -> None:
    server = EmbeddingServer()
    noise(100, 50).save(tmp_path / "p.png")
    with serve(server.app) as url, RemoteEmbedder(url + "/v1") as model:
        _ = model.dimension
        server.bodies.clear()
        model.embed_documents([Document("p", text="words", image=tmp_path / "p.png")])
        model.embed_queries([Query("find it")])
    document, query = server.bodies
    assert document["messages"][0]["content"][0]["text"] == "Represent the user's input."
    assert [part["type"] for part in document["messages"][1]["content"]] == ["image_url"]
    assert document["mm_processor_kwargs"] == {"size": {"shortest_edge": 4096, "longest_edge": 1843200}}
    assert document["add_generation_prompt"] is True
    assert query["messages"][0]["content"][0]["text"].startswith("Retrieve images or text")
    assert "mm_processor_kwargs" not in query


def test_a_server_that_lets_no_request_set_limits_is_asked_without_them(caplog: pytest.LogCaptureFixture) -> None:
    def embed(body: dict[str, Any]) -> Any:
        if "mm_processor_kwargs" in body:
            return JSONResponse({"error": {"message": "Per-request mm_processor_kwargs are disabled by default"}}, 400)
        return hashed(body)

    server = EmbeddingServer(embed=embed)
    queries = [Query(image=encoded(noise(64, 64, seed))) for seed in range(3)]
    with serve(server.app) as url, RemoteEmbedder(url + "/v1", model="m", concurrency=1) as model:
        assert model.embed_queries(queries).shape == (3, 32)
        asked = len(server.bodies)
        model.embed_queries(queries)
    assert len(server.bodies) == asked + 3, "once told, it does not try again"
    assert caplog.text.count("--mm-processor-kwargs") == 1


def test_requests_under_way_are_bounded() -> None:
    server = EmbeddingServer(delay=0.02)
    with serve(server.app) as url, RemoteEmbedder(url + "/v1", concurrency=3) as model:
        assert not model.embed_documents([Document(str(i), text=str(i)) for i in range(24)]).failed
    assert 1 < server.most_busy <= 3


def test_a_busy_or_failing_server_is_asked_again() -> None:
    faults = [
        JSONResponse({"error": {"message": "overloaded"}}, 503),
        JSONResponse({"detail": "slow down"}, 429, headers={"Retry-After": "0"}),
        PlainTextResponse("bad gateway", 502),
    ]
    server = EmbeddingServer(faults=faults)
    with serve(server.app) as url, RemoteEmbedder(url + "/v1", model="m", pause=0.001) as model:
        assert model.dimension == 32
    assert len(server.bodies) == 4


def test_what_the_server_refuses_fails_alone(tmp_path: Path) -> None:
    def embed(body: dict[str, Any]) -> Any:
        if "poison" in repr(body):
            return JSONResponse({"error": {"message": "too long for this model"}}, 400)
        return hashed(body)

    server = EmbeddingServer(embed=embed)
    (tmp_path / "bad.png").write_bytes(b"nothing")
    documents = [
        Document("a", text="fine"),
        Document("b", text="poison"),
        Document("c", image=tmp_path / "bad.png"),
        Document("d", video=write_clip(tmp_path / "c.mp4", 5)),
        Document("e", text="fine too"),
    ]
    with serve(server.app) as url, RemoteEmbedder(url + "/v1", model="m") as model:
        embedded = model.embed_documents(documents)
        assert sorted(embedded.failed) == [1, 2, 3]
        assert "too long for this model" in embedded.failed[1]
        assert "bad.png" in embedded.failed[2]
        assert "clips=True" in embedded.failed[3]
        assert embedded.vectors[[0, 4]].any(axis=1).all()
        with pytest.raises(MediaError):
            model.embed_queries([Query("poison")])


@pytest.mark.parametrize(
    "answer",
    [
        PlainTextResponse("<html>hello</html>"),
        JSONResponse([1]),
        JSONResponse({"data": []}),
        JSONResponse({"data": [{"embedding": "***"}]}),
        JSONResponse({"data": [{"embedding": ["a"]}]}),
        JSONResponse({"error": {"message": "wrong key"}}, 401),
        JSONResponse({"error": "unknown model"}, 404),
    ],
)
def test_nonsense_is_an_error_of_the_server(answer: Any) -> None:
    server = EmbeddingServer(faults=[answer])
    with (
        serve(server.app) as url,
        RemoteEmbedder(url + "/v1", model="m", retries=0) as model,
        pytest.raises(ModelError),
    ):
        _ = model.dimension


def test_no_server_and_a_hanging_one_end_in_a_sentence() -> None:
    with (
        RemoteEmbedder(dead_url() + "/v1", model="m", retries=1, pause=0.001) as model,
        pytest.raises(ModelError, match="2 tries"),
    ):
        model.embed_documents([Document("a", text="x")])
    server = EmbeddingServer(delay=0.5)
    with (
        serve(server.app) as url,
        RemoteEmbedder(url + "/v1", model="m", retries=0, timeout=0.05) as model,
        pytest.raises(ModelError, match="Is the server up"),
    ):
        _ = model.dimension


def test_a_shorter_dimension_and_plain_strings() -> None:
    server = EmbeddingServer()
    with serve(server.app) as url, RemoteEmbedder(url + "/v1", style="input", dimension=5) as model:
        vectors = model.embed_documents([Document("a", text="x")]).vectors
        assert vectors.shape == (1, 5)
        assert abs(float(np.linalg.norm(vectors[0])) - 1) < 1e-6
        with pytest.raises(MediaError, match="text only"):
            model.embed_queries([Query(image=encoded(noise(32, 32)))])
    assert server.bodies[-1]["input"] == "x"


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="address"):
        RemoteEmbedder("localhost:8003")
    with pytest.raises(ConfigError, match="style"):
        RemoteEmbedder("http://localhost:1", style="chat")  # type: ignore[arg-type]
    server = EmbeddingServer(models=("a", "b"))
    with serve(server.app) as url:
        model: Any = load_model(url + "/v1")
        with model, pytest.raises(ConfigError, match="2 models"):
            _ = model.name


def test_a_server_of_the_local_model_gives_the_local_vectors(qwen3_path: Path, tmp_path: Path) -> None:
    """The server sees only the messages, as vLLM would; it renders, resizes and embeds by itself."""
    pytest.importorskip("torch")
    from search_engine.models.visual import Content

    local: Any = load_model(str(qwen3_path), devices="cpu")

    def embed(body: dict[str, Any]) -> Any:
        system, user = body["messages"]
        text, image = None, None
        for part in user["content"]:
            if part["type"] == "text":
                text = part["text"]
            else:
                image = base64.b64decode(part["image_url"]["url"].split(",", 1)[1])
        return local.embed([Content(text, image, None, system["content"][0]["text"])]).vectors[0]

    noise(333, 517).save(tmp_path / "p.png")
    noise(20, 15).save(tmp_path / "small.png")
    documents = [
        Document("t", text="some words"),
        Document("p", image=tmp_path / "p.png"),
        Document("s", image=tmp_path / "small.png"),
        Document("e", text=""),
    ]
    queries = [
        Query("words"),
        Query(image=encoded(noise(70, 90).convert("RGBA"))),
        Query("both", encoded(noise(70, 90))),
    ]
    with serve(EmbeddingServer(embed=embed).app) as url, RemoteEmbedder(url + "/v1") as remote:
        assert remote.dimension == local.dimension
        there, here = remote.embed_documents(documents), local.embed_documents(documents)
        assert not there.failed
        assert np.abs(there.vectors - here.vectors).max() < 1e-5
        assert np.abs(remote.embed_queries(queries) - local.embed_queries(queries)).max() < 1e-5
