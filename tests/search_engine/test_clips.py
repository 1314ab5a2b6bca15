"""Clips as items: what is known of them, what is said in them and when, and how the service shows and finds them by picture."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

pytest.importorskip("av")

from search_engine import video
from search_engine.documents import Line, discover
from search_engine.ingest import IngestOptions
from search_engine.models.base import Document, Embedded, Query, Vectors
from search_engine.moments import best_moment
from search_engine.search_engine import SearchEngine
from search_engine.service import create_app
from search_engine.transcripts import plain_lines, timed_lines
from tests.search_engine.api_server import Server, build, running, settings_for
from tests.search_engine.models.conftest import encoded, noise, write_clip
from vrag.errors import ConfigError, MediaError
from vrag.geometry import Box

PLAIN = IngestOptions(ocr=False)
SRT = """\ufeff1
00:00:00,500 --> 00:00:01,000 X1:0
<i>Good</i> evening &amp; welcome.

2
00:00:01,200 --> 00:00:02,000
The lighthouse was rebuilt
in 1912.

3
00:01:02,000 --> 00:01:04,250
Thank you for listening.
"""


class MeanColour:
    """An embedding model without weights: the mean colour of a picture or of a clip's middle frame. It cannot read."""

    name, dimension, fingerprint, sees_pictures = "mean_colour", 3, "1", True

    def embed_documents(self, documents: Sequence[Document]) -> Embedded:
        vectors, failed = np.zeros((len(documents), 3), np.float32), {}
        for row, document in enumerate(documents):
            if document.video is not None:
                picture = video.frame_at(document.video, video.probe(document.video).duration / 2)
            elif document.image is not None:
                picture = Image.open(document.image)
            else:
                failed[row] = "it has no picture"
                continue
            vectors[row] = self._colour(picture)
        return Embedded(vectors, failed)

    def embed_queries(self, queries: Sequence[Query]) -> Vectors:
        vectors = np.zeros((len(queries), 3), np.float32)
        for row, query in enumerate(queries):
            if query.image is not None:
                try:
                    vectors[row] = self._colour(Image.open(io.BytesIO(query.image)))
                except OSError as error:
                    raise MediaError(f"the picture is damaged ({error})") from error
        return vectors

    def _colour(self, picture: Image.Image) -> Vectors:
        mean = np.asarray(picture.convert("RGB"), np.float32).mean(axis=(0, 1)) + 1e-3
        return mean / np.linalg.norm(mean)


def data_url(image: Image.Image) -> str:
    return "data:image/png;base64," + base64.b64encode(encoded(image)).decode()


# ---- transcripts


def test_the_times_of_a_transcript() -> None:
    lines = timed_lines(SRT.replace("\n", "\r\n"))
    assert [(line.span, line.text) for line in lines] == [
        ((0.5, 1.0), "Good evening & welcome."),
        ((1.2, 2.0), "The lighthouse was rebuilt in 1912."),
        ((62.0, 64.25), "Thank you for listening."),
    ]
    vtt = "WEBVTT\n\nSTYLE\n::cue {}\n\nid-1\n01:02.000 --> 01:03.000 align:start\n<v Anna>One <00:00:01.000><c.x>two</c>\n\n"
    rolling = vtt + "01:03.000 --> 01:04.000\nOne two\nthree\n\n01:04.000 --> 01:05.500\nthree\n\nNOTE 1 < 2\n"
    assert [(line.span, line.text) for line in timed_lines(rolling)] == [
        ((62.0, 63.0), "One two"),
        ((63.0, 65.5), "three"),
    ]
    assert [line.text for line in plain_lines("a\n\n b ")] == ["a", "b"]


@settings(max_examples=60, deadline=None)
@given(st.text("0123456789:,.-> \n\r\tab<>{}&;\\", max_size=200) | st.text(max_size=80))
def test_any_text_is_a_transcript_or_none(text: str) -> None:
    for line in timed_lines(text):
        assert line.span is not None
        assert 0 <= line.span[0] <= line.span[1]
        assert line.text


def test_the_moment_of_a_query() -> None:
    lines = timed_lines(SRT)
    moment = best_moment(lines, "When was the lighthouse rebuilt?")
    assert moment is not None
    assert (moment.start, moment.end) == (1.2, 2.0)
    assert best_moment(lines, "submarine") is None
    assert best_moment(plain_lines("the lighthouse"), "lighthouse") is None
    # Words in neighbouring cues belong together, far ones do not; of equals the first counts.
    said = [(0, 2, "red boats"), (3, 5, "nothing"), (6, 8, "green sails"), (60, 62, "red"), (63, 65, "green")]
    cues = [Line(text, Box(0, 0, 0, 0), span=(float(a), float(b))) for a, b, text in said]
    moment = best_moment(cues, "red green")
    assert moment is not None
    assert (moment.start, moment.end, moment.text) == (60.0, 65.0, "red green")
    moment = best_moment(cues, "boats and sails")
    assert moment is not None
    assert (moment.start, moment.end) == (0.0, 8.0)


# ---- items


def test_a_clip_and_its_transcript_are_one_item(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_clip(folder / "night tour.mp4", 30)
    write_clip(folder / "silent.mp4", 10)
    (folder / "night tour.srt").write_text(SRT, "utf-8")
    (folder / "silent.txt").write_text("Filmed by the harbour office", "utf-8")
    (folder / "other.txt").write_text("A text of its own", "utf-8")
    (folder / "torn.mp4").write_bytes((folder / "silent.mp4").read_bytes()[:300])
    sources, rejected = discover(folder)
    assert ([source.key for source in sources], rejected) == (
        ["night tour.mp4", "other.txt", "silent.mp4", "torn.mp4"],
        [],
    )

    engine = SearchEngine()
    report = engine.build_index(folder, tmp_path / "index", ingest=PLAIN, workers=1)
    (problem,) = report.problems
    assert problem.path == "torn.mp4"
    item = engine.item("night tour")
    assert (item.kind, item.document, item.page) == ("video", "night tour.mp4", None)
    assert (item.duration, item.width, item.height) == (3.0, 64, 48)
    assert item.metadata == {"source": "night tour.mp4", "fps": 10.0, "frames": 30, "transcript": "night tour.srt"}
    assert [line.span for line in engine.lines("night tour")] == [(0.5, 1.0), (1.2, 2.0), (62.0, 64.25)]

    (published,) = engine.search(["the lighthouse that was rebuilt"], top_k=1)
    assert published["data"][0]["duration"] == 3.0
    moment = published["data"][0]["metadata"]["moment"]
    assert moment == {"start": 1.2, "end": 2.0, "text": "The lighthouse was rebuilt in 1912."}
    assert engine.item("night tour") == item
    assert engine.retrieve(["harbour office"], top_k=1)[0][0].item.id == "silent"
    assert engine.retrieve(["the night tour"], top_k=1)[0][0].item.id == "night tour"

    # A transcript that changed is read again, its clip being the same; so is one that went.
    (folder / "night tour.srt").write_text(SRT.replace("lighthouse", "belltower"), "utf-8")
    report = engine.build_index(folder, tmp_path / "index", ingest=PLAIN, workers=1)
    assert (report.read, report.unchanged) == (1, 3)
    assert engine.retrieve(["belltower"], top_k=1)[0][0].item.id == "night tour"
    (folder / "night tour.srt").write_text("no cues", "utf-8")
    report = engine.build_index(folder, tmp_path / "index", ingest=PLAIN, workers=1)
    assert any("no cue" in problem.reason for problem in report.problems)
    (folder / "night tour.srt").unlink()
    engine.build_index(folder, tmp_path / "index", ingest=PLAIN, workers=1)
    assert engine.lines("night tour") == ()


# ---- the service


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("colours")
    (folder / "in").mkdir()
    for name, colour in (("red", (220, 20, 20)), ("green", (20, 200, 40)), ("blue", (10, 30, 230))):
        Image.new("RGB", (60, 40), colour).save(folder / "in" / f"{name}.png")
    write_clip(folder / "in" / "grey tour.mp4", 30)
    (folder / "in" / "grey tour.vtt").write_text("WEBVTT\n\n00:01.000 --> 00:02.000\nThe lighthouse\n", "utf-8")
    SearchEngine(MeanColour()).build_index(folder / "in", folder / "index", ingest=PLAIN, workers=1)

    def opened(_: object) -> SearchEngine:
        engine = SearchEngine(MeanColour())
        engine.load_index(folder / "index")
        return engine

    with running(create_app(settings_for(folder / "index"), open_engine=opened)) as server:
        yield server


def found(server: Server, **body: object) -> list[str]:
    """The first hit of each ranked list."""
    answer = server.client.post("/search", json={"top_k": 1, **body})
    assert answer.status_code == 200, answer.text
    return [ranking["data"][0]["id"] for ranking in answer.json()["results"]]


def test_search_by_picture_and_by_text_in_one_request(server: Server) -> None:
    red, grey = Image.new("RGB", (9, 9), (250, 0, 0)), Image.new("RGB", (30, 9), (90, 90, 90))
    assert found(server, images=[data_url(red), data_url(grey)]) == ["red", "grey tour"]
    plain = base64.b64encode(encoded(Image.new("RGB", (9, 9), (0, 0, 200)), "JPEG")).decode()
    assert found(server, queries=["green", "the lighthouse"], images=[plain]) == ["green", "grey tour", "blue"]
    answer = server.client.post("/search", json={"images": [data_url(grey)], "vrag_ret": True, "top_k": 4}).json()
    assert len(answer[0]) == 3  # the short form names images alone
    assert found(server, images=[data_url(grey)], documents=["blue.png"]) == ["blue"]


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (["https://example.org/a.png"], "not fetched"),
        (["data:image/png,abc"], "not in base64"),
        (["data:image/png;base64,"], "images[0]"),
        ([""], "images[0]"),
        (["aGVsbG8="], "images[0]"),
        ([data_url(noise(64, 64))[:-6000]], "images"),
        ([data_url(Image.new("L", (8000, 5000)))], "pixels"),
        ([data_url(Image.new("L", (2, 2)))] * 17, "17 images"),
        ("data:", "images"),
        ([None], "images[0]"),
    ],
)
def test_pictures_that_cannot_be_used(server: Server, images: object, said: str) -> None:
    answer = server.client.post("/search", json={"images": images})
    assert answer.status_code == 422
    assert said in answer.json()["detail"]


def test_a_damaged_picture_costs_only_its_own_request(server: Server) -> None:
    red = data_url(Image.new("RGB", (9, 9), (250, 0, 0)))
    whole = encoded(noise(64, 64))
    torn = base64.b64encode(whole[: len(whole) // 2]).decode()
    answer = server.client.post("/search", json={"images": [red, torn]})
    assert answer.status_code == 422
    assert "damaged" in answer.json()["detail"]
    assert found(server, images=[red]) == ["red"]


def test_a_clip_is_shown_by_its_middle_frame(server: Server) -> None:
    answer = server.client.get("/items/grey tour/thumbnail", params={"size": 32})
    assert answer.headers["content-type"] == "image/jpeg"
    with Image.open(io.BytesIO(answer.content)) as image:
        assert image.size == (32, 24)
        assert np.asarray(image.convert("L")).mean() == pytest.approx(15 * 7, abs=4)
    again = server.client.get(
        "/items/grey tour/thumbnail", params={"size": 32}, headers={"If-None-Match": answer.headers["etag"]}
    )
    assert again.status_code == 304
    with Image.open(io.BytesIO(server.client.get("/items/grey tour/thumbnail", params={"size": 900}).content)) as image:
        assert image.size == (64, 48)
    refused = server.client.get("/items/grey tour/image")
    assert refused.status_code == 404
    assert "/frames" in refused.json()["detail"]
    (ranking,) = server.client.post("/search", json={"queries": ["lighthouse"], "top_k": 1}).json()["results"]
    hit = ranking["data"][0]
    assert (hit["type"], hit["duration"], hit["width"], hit["height"]) == ("video", 3.0, 64, 48)
    start, end = hit["metadata"]["moment"]["start"], hit["metadata"]["moment"]["end"]
    frames = server.client.get("/items/grey tour/frames", params={"t": [start, end]}).json()["frames"]
    assert [frame["t"] for frame in frames] == [1.0, 2.0]


def test_a_model_that_reads_text_alone_says_so(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "note.md").write_text("The harbour master.\n", "utf-8")
    clip = write_clip(tmp_path / "in" / "c.mp4", 5)
    build(tmp_path / "in", tmp_path / "index")
    with running(create_app(settings_for(tmp_path / "index"))) as server:
        answer = server.client.post("/search", json={"images": [data_url(Image.new("L", (2, 2)))]})
        assert answer.status_code == 422
        assert "text_page" in answer.json()["detail"]
        clip.unlink()
        assert server.client.get("/items/c/thumbnail").status_code == 410
    engine = SearchEngine()
    with pytest.raises(ConfigError, match="reads text alone"):
        engine.retrieve([Query(image=b"x")])
