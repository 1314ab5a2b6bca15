"""What the service refuses, and how: keys, host names, sizes, nonsense, hostile ids, overload. Always a sentence, never a 5xx."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import math
import socket
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from search_engine.search_engine import SearchEngine
from search_engine.service import ServiceSettings, create_app
from search_engine.service.media import media_type
from search_engine.service.routes import open_router, router
from search_engine.service.wire import Found, finite, readable, record_of, usable
from tests.search_engine.api_server import build, running, settings_for, wait_for, write_documents
from vrag.errors import ConfigError
from vrag.items import Hit, Item

KEY = "a-key-for-the-tests"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("limits")
    (folder / "secret.txt").write_text("do not serve me", encoding="utf-8")
    return build(write_documents(folder / "documents"), folder / "pages_index")


@pytest.fixture(scope="module")
def server(index):
    with running(create_app(settings_for(index))) as server:
        yield server


def refused(response, *statuses: int) -> str:
    """The sentence of a refusal."""
    assert response.status_code in statuses, (response.status_code, response.text)
    detail = response.json()["detail"]
    assert isinstance(detail, str)
    assert detail
    return detail


# --- the key, and the name under which the service is asked


def every_operation(app) -> set[tuple[str, str]]:
    """Method and path of everything that is served, the documentation included."""
    return {
        (method, route.path.replace("{item_id:path}", "energy_1"))
        for route in [*app.routes, *open_router.routes, *router.routes]
        for method in getattr(route, "methods", None) or ()
    }


def test_without_the_key_nothing_but_health_is_answered(index):
    app = create_app(settings_for(index, api_key=KEY))
    with running(app) as server:
        operations = sorted(every_operation(app) | described(server))
        assert len({path for _, path in operations}) >= 10
        wrong = [
            {},
            {"X-API-Key": "wrong"},
            {"X-API-Key": ""},
            {"Authorization": f"Basic {KEY}"},
            {"Authorization": "Bearer"},
        ]
        wrong += [{"Authorization": f"Bearer {KEY}x"}, {"X-API-Key": "ключ".encode()}]
        for method, path in [*operations, ("GET", "/no/such/path"), ("PUT", "/search"), ("POST", "/health/")]:
            for headers in wrong:
                response = server.client.request(method, path, headers=headers)
                if path == "/health":
                    assert response.status_code in (200, 405)
                else:
                    assert response.status_code == 401, (method, path, headers)
                    assert response.headers["www-authenticate"] == "Bearer"
                    if method != "HEAD":
                        assert "key" in refused(response, 401)
        for headers in ({"Authorization": f"Bearer {KEY}"}, {"Authorization": f"bearer {KEY}"}, {"X-API-Key": KEY}):
            assert server.client.post("/search", json={"queries": ["wind"]}, headers=headers).status_code == 200
            assert server.client.get("/items/energy_1/image", headers=headers).status_code == 200
            # With a key, the service may be asked under any name.
            assert server.client.get("/corpora", headers={**headers, "Host": "search:8001"}).status_code == 200


def described(server) -> set[tuple[str, str]]:
    paths = server.client.get("/openapi.json", headers={"X-API-Key": KEY}).json()["paths"]
    return {(method.upper(), path.replace("{item_id}", "energy_1")) for path in paths for method in paths[path]}


def test_every_endpoint_is_in_the_description(server):
    assert described(server) == {
        (method, route.path.replace("{item_id:path}", "energy_1"))
        for route in [*open_router.routes, *router.routes]
        for method in route.methods
    }


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "127.0.0.1.example.org", ""])
def test_an_address_that_others_reach_needs_a_key(host):
    for no_key in (None, "", "EMPTY"):
        with pytest.raises(ConfigError, match="VRAG_SEARCH_API_KEY"):
            ServiceSettings(host=host, api_key=no_key)
    assert ServiceSettings(host=host, api_key=KEY).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_this_machine_alone_needs_none(host):
    assert ServiceSettings(host=host).api_key is None


def test_settings_come_from_the_environment_unless_they_are_given(monkeypatch, tmp_path):
    monkeypatch.setenv("VRAG_SEARCH_PORT", "9001")
    monkeypatch.setenv("VRAG_SEARCH_MAX_TOP_K", "7")
    monkeypatch.setenv("VRAG_SEARCH_INDEX", f"{tmp_path / 'a'}:{tmp_path / 'b'}")
    chosen = ServiceSettings(port=9002, host=None)
    assert (chosen.port, chosen.max_top_k, chosen.host) == (9002, 7, "127.0.0.1")
    assert chosen.index == (tmp_path / "a", tmp_path / "b")
    monkeypatch.setenv("VRAG_SEARCH_MAX_TOP_K", "0")
    with pytest.raises(ConfigError, match="VRAG_SEARCH_MAX_TOP_K"):
        ServiceSettings()
    monkeypatch.setenv("VRAG_SEARCH_API_KEY", "schlüssel-geheim")
    with pytest.raises(ConfigError) as error:
        ServiceSettings()
    assert "geheim" not in str(error.value)


def test_a_foreign_name_for_this_machine_is_refused(server):
    """A page of evil.example, whose name was made to point here, must not read the documents."""
    for name in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", "localhost.evil.example"):
        assert "localhost" in refused(server.client.get("/corpora", headers={"Host": name}), 403)
    for name in (f"localhost:{server.port}", "LOCALHOST", "[::1]:8001", "10.1.2.3:80"):
        assert server.client.get("/corpora", headers={"Host": name}).status_code == 200


# --- bodies


NONSENSE = [
    (b"", "JSON"),
    (b"{", "JSON"),
    (b"[1]", "JSON object"),
    (b'"x"', "JSON object"),
    (b"\xff\xfe{}", "JSON"),
    (b"[" * 100_000, "JSON"),
    (b'{"queries": ["a"], "top_k": %s}' % (b"9" * 5000), "JSON"),
    (b"{}", "queries"),
    (b'{"queries": "a"}', "queries"),
    (b'{"queries": []}', "queries"),
    (b'{"queries": [1]}', "queries[0]"),
    (b'{"queries": [null]}', "queries[0]"),
    (b'{"queries": ["a"], "top_k": 0}', "top_k"),
    (b'{"queries": ["a"], "top_k": -3}', "top_k"),
    (b'{"queries": ["a"], "top_k": 1000000000}', "top_k"),
    (b'{"queries": ["a"], "top_k": 1e400}', "top_k"),
    (b'{"queries": ["a"], "top_k": NaN}', "top_k"),
    (b'{"queries": ["a"], "top_k": 2.5}', "top_k"),
    (b'{"queries": ["a"], "top_k": "3"}', "top_k"),
    (b'{"queries": ["a"], "top_k": true}', "top_k"),
    (b'{"queries": ["a"], "top_k": null}', "top_k"),
    (b'{"queries": ["a"], "search_corpus": 5}', "search_corpus"),
    (b'{"queries": ["a"], "search_corpus": []}', "search_corpus"),
    (b'{"queries": ["a"], "documents": []}', "documents"),
    (b'{"queries": ["a"], "documents": "x.pdf"}', "documents"),
    (b'{"queries": ["a"], "vrag_ret": "maybe"}', "vrag_ret"),
]


@pytest.mark.parametrize(("body", "named"), NONSENSE)
def test_nonsense_gets_a_sentence_that_names_it(server, body, named):
    assert named in refused(server.client.post("/search", content=body, headers=JSON), 400, 422)


def test_a_body_that_is_not_sent_as_json_gets_a_hint(server):
    for headers in ({}, {"Content-Type": "application/x-www-form-urlencoded"}, {"Content-Type": "text/plain"}):
        response = server.client.post("/search", content=b'{"queries": ["a"]}', headers=headers)
        assert "Content-Type: application/json" in refused(response, 422)


def test_the_other_dialects_refuse_alike(server):
    assert "topk" in refused(server.client.post("/retrieve", json={"queries": ["a"], "topk": 0}), 422)
    assert "queries" in refused(server.client.post("/retrieve", json={"topk": 3}), 422)
    assert "queries" in refused(server.client.get("/search"), 422)
    assert "characters" in refused(server.client.get("/search", params={"queries": "x" * 9000}), 422)
    refused(server.client.put("/search"), 405)
    refused(server.client.get("/nothing/here"), 404)


def test_an_unknown_corpus_or_document_is_named_with_what_there_is(server):
    for names in ("nowhere", ["pages_index", "nowhere"], "../pages_index"):
        detail = refused(server.client.post("/search", json={"queries": ["a"], "search_corpus": names}), 404)
        assert "pages_index" in detail
    detail = refused(server.client.post("/search", json={"queries": ["a"], "documents": ["none.pdf"]}), 404)
    assert "none.pdf" in detail


def test_numbers_and_lengths_of_queries_are_limited(server):
    limits = ServiceSettings()
    longest = "x" * limits.max_query_chars
    assert server.client.post("/search", json={"queries": [longest]}).status_code == 200
    assert "Query 2" in refused(server.client.post("/search", json={"queries": ["a", longest + "x"]}), 422)
    most = ["a"] * limits.max_queries
    assert len(server.client.post("/search", json={"queries": most}).json()["results"]) == limits.max_queries
    assert "257" in refused(server.client.post("/search", json={"queries": [*most, "a"]}), 422)


def test_a_body_too_large_is_refused_whether_it_says_so_or_not(index):
    with running(create_app(settings_for(index, max_body_bytes=10_000))) as server:
        fits = json.dumps({"queries": ["a"]}).encode().ljust(10_000)
        assert server.client.post("/search", content=fits, headers=JSON).status_code == 200
        for size in (10_001, 5_000_000):
            assert "10,000" in refused(server.client.post("/search", content=b" " * size, headers=JSON), 413)
            chunks = (b" " * 1000 for _ in range(size // 1000 + 1))
            assert "10,000" in refused(server.client.post("/search", content=chunks, headers=JSON), 413)
        # A client that waits to be asked for its body is refused before it sends any of it.
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.putrequest("POST", "/search")
        for name, value in {**JSON, "Content-Length": "1000000000", "Expect": "100-continue"}.items():
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == 413
        connection.close()
        assert server.client.post("/search", content=fits, headers=JSON).status_code == 200


def test_what_is_odd_but_text_is_searched(server):
    odd = [
        "\ud800 wind",
        "\0",
        "�",
        "日本語 太阳能",
        "'; DROP TABLE items; --",
        "<|im_start|>",
        "a" * 8000,
        "   ",
        "\u202e",
        "🙂",
    ]
    response = server.client.post("/search", content=json.dumps({"queries": odd}).encode(), headers=JSON)
    assert response.status_code == 200
    assert len(response.json()["results"]) == len(odd)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
queries = st.lists(st.text(max_size=60), min_size=1, max_size=4)
bodies = st.fixed_dictionaries(
    {"queries": queries | values},
    optional={
        "top_k": st.integers(-2, 120) | values,
        "search_corpus": st.sampled_from(["pages_index", ["pages_index"], "other"]) | values,
        "documents": st.lists(st.sampled_from(["energy.pdf", "health.pdf", "other.pdf"])) | values,
        "vrag_ret": st.booleans() | values,
        "topk": st.integers(-2, 120) | values,
        "return_scores": st.booleans() | values,
        "more": values,
    },
)


def never(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=bodies, path=st.sampled_from(["/search", "/retrieve"]))
def test_any_body_is_answered_or_refused_in_words(server, body, path):
    response = server.client.post(path, content=json.dumps(body).encode(), headers=JSON)
    answer = json.loads(response.text, parse_constant=never)
    if response.status_code != 200:
        refused(response, 400, 404, 422)
    elif path == "/search" and not body.get("vrag_ret"):
        assert len(answer["results"]) == len(body["queries"])
        for found in answer["results"]:
            assert len(found["score"]) == len(found["indice"]) == len(found["data"]) <= body.get("top_k", 3)
            assert found["score"] == sorted(found["score"], reverse=True)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_any_bytes_are_refused_in_words(server, content):
    refused(server.client.post("/search", content=content, headers=JSON), 400, 422)


# --- ids


HOSTILE_IDS = [
    "..",
    "../secret.txt",
    "../../../../etc/passwd",
    "..%2F..%2Fsecret.txt",
    "%2e%2e%2fsecret.txt",
    "..%5csecret.txt",
    "/etc/passwd",
    "%2Fetc%2Fpasswd",
    "energy_1%00.jpg",
    "energy_1/../../secret.txt",
    "pages/energy/energy_1.jpg",
    "file:///etc/passwd",
    "%EF%BC%8E%EF%BC%8E/secret.txt",
    "%ff%fe",
    "%F0%9F%99%82",
    "~",
    "%20",
    "energy_1.jpg",
    "x" * 400,
]


@pytest.mark.parametrize("suffix", ["", "?lines=true", "/image", "/thumbnail", "/thumbnail?size=64"])
def test_an_id_is_looked_up_and_never_opened(server, suffix):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    for item_id in HOSTILE_IDS:
        connection.request("GET", f"/items/{item_id}{suffix}")  # as it is: httpx would tidy the path up
        response = connection.getresponse()
        content = response.read()
        assert response.status == 404, item_id
        assert json.loads(content)["detail"]
        assert b"do not serve" not in content
        assert b"root:" not in content
    connection.request("GET", f"/items/{'x' * 10_000}{suffix}")
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["detail"]) == (414, "An id has at most 512 characters.")
    connection.close()


def test_what_has_no_image_says_so(server, index):
    engine = SearchEngine()
    engine.load_index(index)
    note = next(hit.item for hit in engine.retrieve(["harbour master archive"], top_k=8)[0] if hit.item.kind == "text")
    for part in ("image", "thumbnail"):
        assert "text" in refused(server.client.get(f"/items/{note.id}/{part}"), 404)
    for size in ("0", "-1", "100000", "nan", "1e3", "x"):
        assert "size" in refused(server.client.get("/items/energy_1/thumbnail", params={"size": size}), 422)


def test_an_image_that_is_gone_or_damaged_is_told(tmp_path):
    index = build(write_documents(tmp_path / "documents"), tmp_path / "pages_index")
    engine = SearchEngine()
    engine.load_index(index)
    gone, damaged = engine.media_path("energy_1"), engine.media_path("energy_2")
    with running(create_app(settings_for(index))) as server:
        gone.unlink()
        damaged.write_bytes(b"<html><script>alert(1)</script>")
        for part in ("image", "thumbnail"):
            assert "energy_1" in refused(server.client.get(f"/items/energy_1/{part}"), 410)
        assert "energy_2" in refused(server.client.get("/items/energy_2/thumbnail"), 410)
        as_it_is = server.client.get("/items/energy_2/image")
        assert as_it_is.headers["content-type"] == "application/octet-stream", "a browser must not run it"
        assert as_it_is.headers["x-content-type-options"] == "nosniff"
        assert server.client.get("/items/energy_3/image").status_code == 200


# --- overload


class Held(SearchEngine):
    """The real engine, whose searches wait for a sign."""

    def __init__(self, index: Path) -> None:
        super().__init__()
        self.load_index(index)
        self.running, self.go = threading.Event(), threading.Event()
        self.asked: list[str] = []

    def retrieve(self, queries: Sequence[str], *rest) -> list[list[Hit]]:  # type: ignore[override]
        self.running.set()
        assert self.go.wait(60)
        self.asked += queries
        return super().retrieve(queries, *rest)


def raw_search(port: int, query: str) -> socket.socket:
    """A search that is sent and not waited for."""
    content = json.dumps({"queries": [query]}).encode()
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    head = f"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


def waiting(server) -> int:
    return server.client.get("/health").json()["waiting"]


def test_a_full_queue_asks_clients_to_come_back_and_loses_nobody_else(index):
    engine = Held(index)
    app = create_app(settings_for(index, max_waiting=2, max_queries=2), open_engine=lambda _: engine)
    with running(app) as server:
        connections = [raw_search(server.port, "running")]
        assert engine.running.wait(60)
        connections += [raw_search(server.port, f"waiting {n}") for n in range(2)]
        wait_for(lambda: waiting(server) == 2)
        response = server.client.post("/search", json={"queries": ["one too many"]})
        assert "try again" in refused(response, 429)
        assert int(response.headers["retry-after"]) >= 1
        assert server.client.get("/items/energy_1/image").status_code == 200, "the event loop is free all the time"
        engine.go.set()
        for connection in connections:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            connection.close()
        assert server.client.post("/search", json={"queries": ["again"]}).status_code == 200
        assert "one too many" not in engine.asked


def test_the_work_of_a_client_that_left_is_dropped(index):
    engine = Held(index)
    with running(create_app(settings_for(index), open_engine=lambda _: engine)) as server:
        stays = raw_search(server.port, "stays")
        assert engine.running.wait(60)
        leaves = raw_search(server.port, "leaves")
        wait_for(lambda: waiting(server) == 1)
        leaves.close()
        wait_for(lambda: waiting(server) == 0)
        engine.go.set()
        assert stays.recv(100).startswith(b"HTTP/1.1 200")
        stays.close()
        assert server.client.post("/search", json={"queries": ["later"]}).status_code == 200
        assert engine.asked == ["stays", "later"]
        assert 'route="/search",status="499"' in server.client.get("/metrics").text


def test_a_search_that_takes_too_long_is_given_up(index):
    engine = Held(index)
    with running(create_app(settings_for(index, answer_seconds=0.2), open_engine=lambda _: engine)) as server:
        response = server.client.post("/search", json={"queries": ["slow"]})
        assert "0.2 s" in refused(response, 503)
        assert response.headers["retry-after"]
        engine.go.set()
        wait_for(lambda: server.client.post("/search", json={"queries": ["quick"]}).status_code == 200)


def test_an_error_of_the_engine_is_a_sentence_without_its_insides(index, caplog):
    class Broken(SearchEngine):
        def retrieve(self, queries: Sequence[str], *rest) -> list[list[Hit]]:  # type: ignore[override]
            if "bad" in queries:
                raise ZeroDivisionError("an inside of the engine")
            return super().retrieve(queries, *rest)

    def opened(_: object) -> SearchEngine:
        engine = Broken()
        engine.load_index(index)
        return engine

    with running(create_app(settings_for(index), open_engine=opened)) as server:
        detail = refused(server.client.post("/search", json={"queries": ["bad"]}), 500)
        assert "inside" not in detail
        assert "an inside of the engine" in caplog.text
        assert server.client.post("/search", json={"queries": ["good"]}).status_code == 200


# --- what never goes over the wire


def test_a_score_that_is_no_number_never_becomes_a_hit():
    item = Item(id="a", kind="image", document="a.png", metadata={"x": [math.nan, {"y": math.inf}], "z": 1.5})
    hits = [Hit(item=item, score=score) for score in (1.0, math.nan, -math.inf, 0.5)]
    assert [hit.score for hit in usable(hits)] == [1.0, 0.5]
    assert Found(**record_of(item)).metadata == {"x": [None, {"y": None}], "z": 1.5}


@settings(max_examples=100, deadline=None)
@given(value=values)
def test_any_metadata_becomes_json(value):
    json.dumps(finite(value), allow_nan=False)


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters()))
def test_any_text_becomes_utf8(text):
    readable(text).encode()
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert readable(text) == text


def test_the_type_of_an_image_is_read_from_its_bytes():
    assert media_type(b"\x89PNG\r\n\x1a\n....") == "image/png"
    assert media_type(b"RIFF\0\0\0\0WEBPVP8 ") == "image/webp"
    assert media_type(b"<svg xmlns=") == media_type(b"") == "application/octet-stream"


def test_several_searches_of_one_request_are_answered_by_one_index(index):
    """However many batches a request is spread over: it keeps the engine it began with."""
    engine = Held(index)
    other = SearchEngine()
    opened = iter([engine, other])
    app = create_app(settings_for(index, max_batch=1, max_queries=4), open_engine=lambda _: next(opened))
    with running(app) as server:
        found: list[list[int]] = []

        def ask() -> None:
            answer = server.client.post(
                "/search", json={"queries": ["wind", "solar", "battery", "knee"], "top_k": 1}
            ).json()
            found.append([len(row["score"]) for row in answer["results"]])

        asking = threading.Thread(target=ask)
        asking.start()
        assert engine.running.wait(60)
        asyncio.run(reload(server.port))
        engine.go.set()
        asking.join()
        assert found == [[1, 1, 1, 1]], "the second engine is empty"
        assert server.client.post("/search", json={"queries": ["wind"]}).json()["results"][0]["score"] == []


async def reload(port: int) -> None:
    from tests.search_engine.api_server import raw_post

    status, answer = await raw_post(port, "/admin/reload", {})
    assert (status, answer["index"]["items"]) == (200, 0)


def test_a_swapped_out_engine_is_let_go_without_another_search(index):
    opened: list[weakref.ref[SearchEngine]] = []

    def open_engine(_: object) -> SearchEngine:
        engine = SearchEngine()
        engine.load_index(index)
        opened.append(weakref.ref(engine))
        return engine

    with running(create_app(settings_for(index), open_engine=open_engine)) as server:
        assert server.client.post("/search", json={"queries": ["wind"]}).status_code == 200
        assert server.client.get("/items/energy_1/image").status_code == 200
        assert server.client.post("/admin/reload").status_code == 200

        def freed() -> bool:
            gc.collect()
            return opened[0]() is None

        wait_for(freed)
        assert opened[1]() is not None
