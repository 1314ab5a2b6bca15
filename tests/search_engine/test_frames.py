"""The frames of a clip over the wire: from a real file through the service to the client that episodes use."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("av")

from search_engine.service import create_app
from tests.search_engine.api_server import Server, build, running, settings_for
from tests.search_engine.models.conftest import write_clip
from vrag.episode import Frame
from vrag.errors import MediaError
from vrag.retriever import AsyncHttpRetriever, HttpRetriever
from vrag.settings import SearchSettings


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("clips")
    (folder / "in").mkdir()
    write_clip(folder / "in" / "harbour view.mp4", 30)  # 3 seconds at 10 frames a second, 64 x 48 pixels
    (folder / "in" / "note.md").write_text("The harbour master.\n", encoding="utf-8")
    build(folder / "in", folder / "index")
    with running(create_app(settings_for(folder / "index"))) as server:
        yield server


def test_a_sample_is_spread_evenly(server: Server) -> None:
    answer = server.client.get("/items/harbour view/frames", params={"fps": 2, "max_frames": 4})
    assert answer.status_code == 200
    frames = answer.json()["frames"]
    assert [frame["t"] for frame in frames] == [0.0, 1.0, 1.9, 2.9]
    for frame in frames:
        with Image.open(io.BytesIO(base64.b64decode(frame["image"], validate=True))) as image:
            assert (image.format, image.size) == ("JPEG", (64, 48))


def test_frames_at_given_times_and_sizes(server: Server) -> None:
    answer = server.client.get("/items/harbour view/frames", params={"t": [2.04, 0.5, 99, 0.51], "max_pixels": 1000})
    frames = answer.json()["frames"]
    assert [frame["t"] for frame in frames] == [0.5, 2.0, 2.9]
    with Image.open(io.BytesIO(base64.b64decode(frames[0]["image"]))) as image:
        assert 900 < image.width * image.height <= 1000


def test_the_clients(server: Server) -> None:
    settings = SearchSettings(search_url=f"{server.url}/search")
    with HttpRetriever(settings) as retriever:
        blocking = retriever.frames("harbour view", 1.0, 32, 401_408)
        with pytest.raises(MediaError, match="has no frames"):
            retriever.frames("note", 1.0, 32, 401_408)
        with pytest.raises(MediaError, match="no item"):
            retriever.frames("elsewhere", 1.0, 32, 401_408)

    async def awaited() -> list[Frame]:
        async with AsyncHttpRetriever(settings) as retriever:
            return await retriever.frames("harbour view", 1.0, 32, 401_408)

    assert [frame.seconds for frame in blocking] == [0.0, 1.4, 2.9]
    assert asyncio.run(awaited()) == blocking


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/items/note/frames", 404),
        ("/items/nothing/frames", 404),
        ("/items/harbour view/frames?fps=0", 422),
        ("/items/harbour view/frames?max_frames=100000", 422),
        ("/items/harbour view/frames?t=nan", 422),
        ("/items/harbour view/frames?t=x", 422),
        ("/items/harbour view/frames?" + "t=1&" * 500, 422),
        ("/items/../../etc/passwd/frames", 404),
    ],
)
def test_what_cannot_be_asked_for(server: Server, path: str, status: int) -> None:
    answer = server.client.get(path)
    assert answer.status_code == status
    assert answer.json()["detail"]


def test_a_clip_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    clip = write_clip(tmp_path / "in" / "c.mp4", 5)
    build(tmp_path / "in", tmp_path / "index")
    with running(create_app(settings_for(tmp_path / "index"))) as server:
        assert server.client.get("/items/c/frames").status_code == 200
        stored = [*tmp_path.rglob("c*.mp4")]
        assert clip in stored
        for path in stored:
            path.unlink()
        answer = server.client.get("/items/c/frames")
    assert answer.status_code == 410
    assert "c.mp4" in answer.json()["detail"]
