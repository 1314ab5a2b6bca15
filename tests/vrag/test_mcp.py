"""The MCP server as a client of the official package sees it: over stdio, over HTTP, and over the real search service."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

pytest.importorskip("mcp.server.mcpserver")

from mcp import Client, StdioServerParameters

from search_engine.search_engine import SearchEngine
from tests.servers import TinyRetriever, dead_url, page, page_image, passage, serve
from vrag.mcp import build, main
from vrag.settings import SearchSettings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("VRAG_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def corpus() -> Iterator[str]:
    """The URL of a small search service."""
    entries = [page("report_1", "solar power"), page("report_2", "wind power"), passage("notes", "wind turbines hum")]
    with serve(TinyRetriever(entries).app) as url:
        yield f"{url}/search"


def server_process(search_url: str) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable, args=["-m", "vrag.mcp", "--search-url", search_url], cwd=ROOT, env=dict(os.environ)
    )


@contextmanager
def http_server(search_url: str, **environment: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vrag.mcp", "--http", "--port", str(port), "--search-url", search_url]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment})
    try:
        deadline = time.monotonic() + 60
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(10)


def picture(result: Any) -> Image.Image:
    """The picture of a result: its only image part."""
    assert not result.is_error, result.content
    (part,) = [part for part in result.content if part.type == "image"]
    assert part.mime_type == "image/jpeg"
    image = Image.open(io.BytesIO(base64.b64decode(part.data, validate=True)))
    image.load()
    return image


async def tour(target: Any) -> None:
    """What an assistant does: look at the tools, search, open the page that was found, look closer."""
    async with Client(target) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"search", "get_page", "crop"}
        assert set(tools["search"].input_schema["properties"]) == {"query", "top_k", "corpus", "documents"}
        assert set(tools["crop"].input_schema["required"]) == {"id", "box"}
        assert all(tool.description for tool in tools.values())

        found = await client.call_tool("search", {"query": "wind power", "top_k": 2})
        assert not found.is_error, found.content
        best = found.structured_content["hits"][0]
        assert (best["id"], best["label"], best["width"], best["height"]) == (
            "report_2",
            "report.pdf, page 2",
            800,
            1000,
        )

        whole = await client.call_tool("get_page", {"id": best["id"]})
        assert picture(whole).size == (800, 1000)
        assert "800 x 1000 page pixels" in whole.content[0].text
        small = picture(await client.call_tool("get_page", {"id": best["id"], "max_pixels": 20_000}))
        assert small.width * small.height <= 20_000

        part = await client.call_tool("crop", {"id": best["id"], "box": [100, 100, 300, 200], "padding": 10})
        assert picture(part).size == (220, 120)
        assert "the box [90, 90, 310, 210]" in part.content[0].text


def test_a_session_over_stdio(corpus: str) -> None:
    asyncio.run(tour(server_process(corpus)))


def test_a_session_over_http(corpus: str) -> None:
    with http_server(corpus) as url:
        asyncio.run(tour(url))
        # A page in a browser must not reach it under another name (DNS rebinding).
        answer = httpx.post(url, json={}, headers={"Host": "evil.example"}, trust_env=False)
        assert answer.status_code in (403, 421)


def test_the_real_search_service(tmp_path: Path) -> None:
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "chart.jpg").write_bytes(page_image("wind power grew", (600, 400)))
    (documents / "notes.txt").write_text("Solar power stands on many roofs in the south of the country.", "utf-8")
    SearchEngine().build_index(documents, tmp_path / "index", tmp_path / "corpus")

    async def session(search_url: str) -> None:
        async with Client(build(SearchSettings(search_url=search_url))) as client:
            found = await client.call_tool("search", {"query": "solar power on roofs"})
            hits = found.structured_content["hits"]
            text = next(hit for hit in hits if hit["type"] == "text")
            assert "many roofs" in text["content"]
            chart = next(hit for hit in hits if hit["type"] == "image")
            assert picture(await client.call_tool("get_page", {"id": chart["id"]})).size == (600, 400)
            part = await client.call_tool("crop", {"id": chart["id"], "box": [0, 0, 150, 100], "padding": 0})
            assert picture(part).size == (150, 100)
            only = await client.call_tool("search", {"query": "power", "documents": ["chart.jpg"]})
            assert {hit["document"] for hit in only.structured_content["hits"]} == {"chart.jpg"}
            gone = await client.call_tool("get_page", {"id": "no such page"})
            assert gone.is_error
            assert "no such page" in gone.content[0].text

    with search_service(tmp_path / "index") as url:
        asyncio.run(session(url))


@contextmanager
def search_service(index: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "search_engine/search_engine_api.py", "--port", str(port), "--index", str(index)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).json()["status"] == "ready":
                    break
            except httpx.TransportError:
                pass
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/search"
    finally:
        process.terminate()
        process.wait(15)


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("get_page", {"id": "report_9"}, "report_9"),
        ("get_page", {"id": ""}, "id"),
        ("get_page", {"id": "report_1", "max_pixels": 0}, "max_pixels"),
        ("get_page", {"id": "../health"}, "health"),
        ("crop", {"id": "report_1", "box": [900, 10, 950, 20]}, "800 x 1000 page pixels"),
        ("crop", {"id": "report_1", "box": [1, 2, 3]}, "box"),
        ("crop", {"id": "report_1", "box": [1, 2, 3, float("nan")]}, "box"),
        ("crop", {"id": "report_1", "box": [10, 10, 10, 10]}, "not on the page"),
        ("search", {"query": ""}, "query"),
        ("search", {"query": "wind", "top_k": 1000}, "top_k"),
    ],
)
def test_what_cannot_be_done_is_a_tool_error_that_says_why(
    corpus: str, tool: str, arguments: dict[str, Any], said: str
) -> None:
    async def ask() -> Any:
        async with Client(build(SearchSettings(search_url=corpus))) as client:
            return await client.call_tool(tool, arguments)

    result = asyncio.run(ask())
    assert result.is_error
    assert said in result.content[0].text


def test_a_search_service_that_is_down_is_a_tool_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> list[Any]:
        async with Client(build(SearchSettings(search_url=dead_url(), search_retries=0))) as client:
            return [
                await client.call_tool("search", {"query": "wind"}),
                await client.call_tool("get_page", {"id": "report_1"}),
            ]

    for result in asyncio.run(ask()):
        assert result.is_error
        assert "Is the search service running?" in result.content[0].text


def test_beyond_loopback_a_key_is_needed(corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--http", "--host", "0.0.0.0", "--search-url", corpus]) == 1
    assert "VRAG_MCP_API_KEY" in capsys.readouterr().err
    with http_server(corpus, VRAG_MCP_API_KEY="secret") as url:
        assert httpx.post(url, json={}, trust_env=False).status_code == 401
        wrong = httpx.post(url, json={}, headers={"Authorization": "Bearer secre"}, trust_env=False)
        assert wrong.status_code == 401
        right = httpx.post(url, json={}, headers={"Authorization": "Bearer secret"}, trust_env=False)
        assert right.status_code not in (401, 500)


def test_a_wrong_address_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--search-url", "not a url"]) == 1
    assert "search_url" in capsys.readouterr().err
