"""The search service on a real server: the wire forms, items and their images, many at once, hot swap, the published command."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from PIL import Image

from search_engine.search_engine import SearchEngine
from search_engine.service import create_app
from tests.search_engine.api_server import (
    NOTE,
    TOPICS,
    Server,
    build,
    raw_post,
    running,
    settings_for,
    wait_for,
    write_documents,
    write_pdf,
)
from vrag.retriever import HttpRetriever
from vrag.settings import SearchSettings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    return build(write_documents(folder / "documents"), folder / "pages_index")


@pytest.fixture(scope="module")
def server(index):
    with running(create_app(settings_for(index))) as server:
        yield server


@pytest.fixture(scope="module")
def engine(index):
    engine = SearchEngine()
    engine.load_index(index)
    return engine


def post(server: Server, path: str, body: object) -> object:
    response = server.client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


# --- searching


def test_search_answers_in_the_published_form(server, engine):
    queries = ["wind turbines off Denmark", "waiting for knee surgery"]
    answer = post(server, "/search", {"queries": queries, "top_k": 2})
    assert set(answer) == {"results"}
    for given, expected in zip(answer["results"], engine.search(queries, top_k=2), strict=True):
        assert given["score"] == expected["score"]
        assert given["indice"] == expected["indice"]
        for got, want in zip(given["data"], expected["data"], strict=True):
            assert got == {name: value for name, value in want.items() if value is not None}
    first = answer["results"][0]["data"][0]
    assert (first["type"], first["id"], first["document"], first["page"]) == ("image", "energy_2", "energy.pdf", 2)
    with Image.open(first["file_path"]) as page:
        assert page.size == (first["width"], first["height"])


def test_top_k_is_three_by_default(server):
    assert len(post(server, "/search", {"queries": ["detail"]})["results"][0]["data"]) == 3


def test_the_short_form_holds_images_only(server, engine):
    (row,) = post(
        server, "/search", {"queries": ["maps of the tidal basin in the harbour"], "vrag_ret": True, "top_k": 8}
    )
    assert row
    assert all(set(hit) == {"idx", "image_file"} for hit in row)
    assert {hit["idx"] for hit in row} <= {
        engine.position(f"{n}_{p}") for n in ("energy", "health") for p in (1, 2, 3)
    } | {engine.position("harbour")}
    assert all(Path(hit["image_file"]).is_file() for hit in row)


def test_the_older_get_form(server, engine):
    answer = server.client.get("/search", params={"queries": ["solar power", "hospital beds"]}).json()
    assert [row[0] for row in answer] == [
        {"idx": engine.position(item_id), "image_file": str(engine.media_path(item_id))}
        for item_id in ("energy_1", "health_1")
    ]
    assert all(len(row) <= 10 for row in answer)


def test_retrieve_speaks_search_r1(server):
    body = {
        "queries": ["archive of the harbour master", "battery storage costs", " "],
        "topk": 1,
        "return_scores": True,
    }
    notes, costs, blank = post(server, "/retrieve", body)["result"]
    assert blank == []
    assert notes[0]["document"]["contents"].endswith(NOTE.strip())
    title, _, text = costs[0]["document"]["contents"].partition("\n")
    assert (costs[0]["document"]["id"], title) == ("energy_3", '"energy.pdf, page 3"')
    assert text.startswith(TOPICS["energy.pdf"][2])
    assert isinstance(costs[0]["score"], float)
    plain = post(server, "/retrieve", {**body, "return_scores": False})["result"]
    assert plain == [[hit["document"] for hit in row] for row in (notes, costs, blank)]
    assert len(post(server, "/retrieve", {"queries": ["detail"]})["result"][0]) == 3


def test_corpora_and_documents_narrow_a_search(server):
    assert server.client.get("/corpora").json() == {"corpora": [{"name": "pages_index", "items": 8}]}
    for filters in ({"documents": ["health.pdf"]}, {"documents": ["health.pdf"], "search_corpus": "pages_index"}):
        (found,) = post(server, "/search", {"queries": ["wind turbines"], "top_k": 8, **filters})["results"]
        assert {hit["document"] for hit in found["data"]} <= {"health.pdf"}
    (found,) = post(server, "/search", {"queries": ["wind"], "search_corpus": ["pages_index"]})["results"]
    assert found["data"][0]["id"] == "energy_2"


def test_the_retriever_client_of_the_agents_understands_the_service(server, engine):
    with HttpRetriever(SearchSettings(search_url=f"{server.url}/search")) as retriever:
        (hits,) = retriever.search(["vaccination of children"], top_k=2)
        assert hits == engine.retrieve(["vaccination of children"], top_k=2)[0]
        assert retriever.image(hits[0].item.id) == engine.media_path(hits[0].item.id).read_bytes()


# --- items


def test_an_item_has_a_record_lines_with_boxes_and_an_image(server, engine):
    record = server.client.get("/items/health_3").json()
    item = engine.item("health_3")
    assert (record["type"], record["page"], record["width"], record["height"]) == ("image", 3, item.width, item.height)
    assert "lines" not in record
    lines = server.client.get("/items/health_3", params={"lines": True}).json()["lines"]
    assert lines[0]["text"] == TOPICS["health.pdf"][2]
    x1, y1, x2, y2 = lines[0]["box"]
    assert 0 <= x1 < x2 <= item.width
    assert 0 <= y1 < y2 <= item.height

    image = server.client.get("/items/health_3/image")
    assert image.headers["content-type"] == "image/jpeg"
    assert image.content == engine.media_path("health_3").read_bytes()
    assert server.client.get("/items/harbour/image").headers["content-type"] == "image/png"


def test_images_are_not_sent_twice(server):
    for path in ("/items/energy_1/image", "/items/energy_1/thumbnail?size=64"):
        first = server.client.get(path)
        assert "max-age" in first.headers["cache-control"]
        again = server.client.get(path, headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        assert server.client.get(path, headers={"If-None-Match": '"other"'}).content == first.content


def test_thumbnails_keep_the_aspect_and_never_enlarge(server):
    def size(query: str) -> tuple[int, int]:
        response = server.client.get(f"/items/harbour/thumbnail{query}")
        assert response.headers["content-type"] == "image/jpeg"
        import io

        with Image.open(io.BytesIO(response.content)) as image:
            return image.size

    assert size("") == (256, 144)
    assert size("?size=64") == (64, 36)
    assert size("?size=1024") == (640, 360)


def test_an_id_may_hold_anything(tmp_path):
    ids = ["a/b c#1?.png", "ü 100%", "..", "x/image", "日本語"]
    rows = []
    for number, item_id in enumerate(ids):
        path = tmp_path / f"{number}.png"
        Image.new("RGB", (20 + number, 30), "green").save(path)
        rows.append({"uid": item_id, "file_path": path.name})
    listed = tmp_path / "list.jsonl"
    listed.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    index = build(listed, tmp_path / "odd_index")
    app = create_app(settings_for(index))
    with running(app) as server, HttpRetriever(SearchSettings(search_url=f"{server.url}/search")) as retriever:
        for number, item_id in enumerate(ids):
            assert retriever.image(item_id) == (tmp_path / f"{number}.png").read_bytes(), item_id


# --- many at once, and another index meanwhile


def test_a_thousand_concurrent_searches_equal_the_serial_ones(server):
    words = [word for pages in TOPICS.values() for text in pages for word in text.split()]
    narrowed = [
        {},
        {"documents": ["energy.pdf"]},
        {"search_corpus": "pages_index", "documents": ["note.md", "health.pdf"]},
    ]
    bodies = [
        {
            "queries": [f"{words[n % len(words)]} {words[(7 * n + 3) % len(words)]}", words[n % 11]][: 1 + n % 5 // 4],
            "top_k": 2 + n % 4,
            **narrowed[n % 3],
        }
        for n in range(120)
    ]
    serial = [(200, post(server, "/search", body)) for body in bodies]
    before = server.client.get("/metrics").text

    async def main() -> list[tuple[int, object]]:
        return await asyncio.gather(*(raw_post(server.port, "/search", bodies[n % 120]) for n in range(1000)))

    assert asyncio.run(main()) == [serial[n % 120] for n in range(1000)]

    def batches(text: str) -> float:
        return float(re.search(r"^vrag_search_batch_queries_count (\S+)$", text, re.M)[1])

    assert batches(server.client.get("/metrics").text) - batches(before) < 1000, "none were run together"


def test_the_index_is_swapped_while_searches_go_on(tmp_path):
    documents = write_documents(tmp_path / "documents")
    index = build(documents, tmp_path / "pages_index")
    query = {"queries": ["glaciers of Patagonia"], "top_k": 1}
    with running(create_app(settings_for(index))) as server:
        found: list[tuple[int, str]] = []
        stop = threading.Event()

        def search() -> None:
            with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
                while not stop.is_set():
                    response = client.post("/search", json=query)
                    data = response.json()["results"][0]["data"] if response.status_code == 200 else []
                    found.append((response.status_code, data[0]["id"] if data else ""))

        def first() -> str:
            data = post(server, "/search", query)["results"][0]["data"]
            return data[0]["id"] if data else ""

        threads = [threading.Thread(target=search) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            before = first()
            versions = [server.client.get("/health").json()["index"]["version"]]
            write_pdf(tmp_path / "ice.pdf", ["The glaciers of Patagonia lose ice every year"])
            builder = SearchEngine()
            builder.add(tmp_path / "ice.pdf", index, workers=1)
            assert first() == before, "nothing changes until it is asked for"
            answer = post(server, "/admin/reload", {})
            assert (answer["previous"]["items"], answer["index"]["items"]) == (8, 9)
            assert first() == "ice_1"
            versions.append(answer["index"]["version"])
            builder.remove("ice.pdf", index)
            versions.append(post(server, "/admin/reload", {})["index"]["version"])
            assert first() == before
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert len(set(versions)) == 3
        assert {status for status, _ in found} == {200}
        assert {item_id for _, item_id in found} == {before, "ice_1"}
        assert 'vrag_search_reloads_total{outcome="taken"} 2.0' in server.client.get("/metrics").text


def test_a_broken_index_is_not_taken_and_the_old_one_keeps_serving(tmp_path):
    index = build(write_documents(tmp_path / "documents"), tmp_path / "pages_index")
    with running(create_app(settings_for(index))) as server:
        expected = post(server, "/search", {"queries": ["solar power"]})
        vectors = next(index.rglob("vectors.npy"))
        content = bytearray(vectors.read_bytes())
        content[-100] ^= 1
        vectors.with_suffix(".new").write_bytes(content)
        vectors.with_suffix(".new").replace(vectors)
        refused = server.client.post("/admin/reload")
        assert refused.status_code == 409
        assert "vectors.npy" in refused.json()["detail"]
        assert "keeps serving" in refused.json()["detail"]
        assert post(server, "/search", {"queries": ["solar power"]}) == expected
        assert server.client.get("/health").status_code == 200


def test_an_optional_index_is_served_as_soon_as_it_exists(tmp_path, index):
    later = tmp_path / "uploads"
    settings = settings_for(index, optional_index=(later,), watch_seconds=0.05)
    with running(create_app(settings)) as server:
        assert server.client.get("/health").json()["index"]["corpora"] == ["pages_index"]
        write_pdf(tmp_path / "ice.pdf", ["The glaciers of Patagonia lose ice every year"])
        build(tmp_path / "ice.pdf", later)
        wait_for(lambda: server.client.get("/health").json()["index"]["corpora"] == ["pages_index", "uploads"])
        (found,) = post(server, "/search", {"queries": ["glaciers"], "search_corpus": "uploads"})["results"]
        assert found["data"][0]["id"] == "ice_1"


# --- state


def test_health_metrics_and_the_description(server, engine):
    health = server.client.get("/health").json()
    assert health["status"] == "ready"
    assert health["index"] == {
        "version": engine.version,
        "items": len(engine),
        "model": "text_page",
        "dimension": 2048,
        "corpora": ["pages_index"],
    }
    server.client.get("/items/no%20such")
    text = server.client.get("/metrics").text
    assert 'vrag_search_requests_total{method="GET",route="/items/{item_id:path}",status="404"}' in text
    assert "no such" not in text, "an id in a label would make the metrics grow without end"
    assert "vrag_search_index_items 8.0" in text
    paths = server.client.get("/openapi.json").json()["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            assert operation["summary"], f"{method} {path}"
            assert operation["description"], f"{method} {path}"
    page = server.client.get("/docs")
    assert page.status_code == 200
    assert "http" not in page.text.replace("<!doctype html>", "").replace("http-equiv", ""), (
        "nothing comes from elsewhere"
    )
    for path in server.client.get("/openapi.json").json()["paths"]:
        assert f"</b> {path}</h2>" in page.text
    assert "vrag_ret" in page.text


def test_two_services_in_one_process_count_apart(server, index):
    with running(create_app(settings_for(index))) as other:
        post(other, "/search", {"queries": ["x"]})
        line = 'vrag_search_requests_total{method="POST",route="/search",status="200"} 1.0'
        assert line in other.client.get("/metrics").text
        assert line not in server.client.get("/metrics").text


def test_while_loading_the_service_says_so_and_a_failure_is_told(index):
    loading, go = threading.Event(), threading.Event()

    def slow(_: object) -> SearchEngine:
        loading.set()
        assert go.wait(60)
        engine = SearchEngine()
        engine.load_index(index)
        return engine

    with Server(create_app(settings_for(index), open_engine=slow)) as server:
        assert loading.wait(60)
        health = server.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "loading")
        refused = server.client.post("/search", json={"queries": ["x"]})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "loaded" in refused.json()["detail"]
        go.set()
        server.until_ready()
        post(server, "/search", {"queries": ["x"]})

    missing = index.with_name("missing_index")
    failed = threading.Event()
    with Server(create_app(settings_for(missing), on_failure=failed.set)) as server:
        assert failed.wait(60)
        health = server.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "failed")
        assert "build" in health.json()["detail"]
        assert server.client.post("/search", json={"queries": ["x"]}).json()["detail"] == health.json()["detail"]


# --- the published command


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VRAG_")}
    return {**kept, **more}


def test_the_published_steps_work_as_written(tmp_path):
    """cp the images, build the index with the snippet, start the server, curl: in a copy of the project, with its defaults."""
    for package in ("search_engine", "vrag"):
        ignored = shutil.ignore_patterns("__pycache__", "corpus")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    corpus = tmp_path / "search_engine" / "corpus"
    write_documents(corpus / "image")
    snippet = """if __name__ == "__main__":
    from search_engine.search_engine import SearchEngine
    engine = SearchEngine("text_page")
    engine.build_index(
        input_dir="search_engine/corpus/image",
        index_output_path="search_engine/corpus/image_index",
        corpus_output_path="search_engine/corpus/image_index",
        bs=16
    )
"""
    (tmp_path / "build.py").write_text(snippet, encoding="utf-8")
    subprocess.run([sys.executable, "build.py"], cwd=tmp_path, env=environment(), check=True, timeout=300)

    command = [sys.executable, "search_engine/search_engine_api.py"]
    service = subprocess.Popen(
        command, cwd=tmp_path, env=environment(VRAG_SEARCH_PORT="0"), stderr=subprocess.PIPE, text=True
    )
    try:
        port = next(found[1] for line in service.stderr if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line)))
        threading.Thread(target=service.stderr.read, daemon=True).start()
        health = f"http://127.0.0.1:{port}/health"
        wait_for(lambda: httpx.get(health, trust_env=False).status_code == 200)
        if shutil.which("curl"):
            curl = f"""curl -X POST http://localhost:{port}/search \\
                -H "Content-Type: application/json" \\
                -d '{{"queries": ["your search query"], "top_k": 3}}'"""
            done = subprocess.run(
                curl, shell=True, env=environment(no_proxy="*"), capture_output=True, text=True, check=True
            )
            (found,) = json.loads(done.stdout)["results"]
            assert len(found["score"]) == len(found["indice"]) == len(found["data"])
        if hasattr(signal, "SIGHUP"):
            version = httpx.get(health, trust_env=False).json()["index"]["version"]
            write_pdf(corpus / "image" / "ice.pdf", ["The glaciers of Patagonia lose ice every year"])
            subprocess.run([sys.executable, "build.py"], cwd=tmp_path, env=environment(), check=True, timeout=300)
            service.send_signal(signal.SIGHUP)
            wait_for(lambda: httpx.get(health, trust_env=False).json()["index"]["version"] != version)
    finally:
        service.terminate()
        assert service.wait(30) in (0, -signal.SIGTERM)
        service.stderr.close()


def start_and_fail(*options: str, **more: str) -> str:
    """What the command says when it cannot start; it never says it with a stack trace."""
    command = [sys.executable, "search_engine/search_engine_api.py", *options]
    done = subprocess.run(command, cwd=ROOT, env=environment(**more), capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    return done.stderr


def test_what_keeps_the_service_from_starting_is_said_in_a_sentence(tmp_path, index):
    missing = start_and_fail("--port", "0", "--index", str(tmp_path / "my_index"))
    assert f"python -m search_engine.search_engine build {tmp_path / 'my'} {tmp_path / 'my_index'}" in missing
    assert "./run_demo.sh search" in missing
    assert "VRAG_SEARCH_API_KEY" in start_and_fail("--host", "0.0.0.0", VRAG_SEARCH_INDEX=str(index))
    assert "VRAG_SEARCH_PORT" in start_and_fail(VRAG_SEARCH_INDEX=str(index), VRAG_SEARCH_PORT="seven")

    with Server(create_app(settings_for(index))) as busy:
        assert "--port" in start_and_fail("--port", str(busy.port), "--index", str(index))

    broken = tmp_path / "broken_index"
    shutil.copytree(index, broken)
    next(broken.rglob("items.jsonl")).write_bytes(b"")
    assert "items.jsonl" in start_and_fail("--port", "0", "--index", str(broken))
