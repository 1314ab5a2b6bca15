"""Indexes of visual models, from real pictures and clips to HTTP: built, searched by text and picture, killed, refused.

The pictures and clips are those of VRAG_DEV_DATA; the checkpoints are tiny and random, or those of VRAG_EMBEDDER_REFERENCE.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from search_engine.index_store import read_manifest
from search_engine.ingest import IngestOptions
from search_engine.models.base import Document
from search_engine.search_engine import SearchEngine
from search_engine.settings import RetrievalSettings
from vrag.errors import IndexMismatch

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("av")
pytest.importorskip("faiss")
pytest.importorskip("pymupdf")

from search_engine.service import create_app
from tests.search_engine.api_server import running, settings_for
from tests.search_engine.test_kill import files

ROOT = Path(__file__).resolve().parents[3]
PLAIN = IngestOptions(ocr=False)
#: Small, so that a clip is read in a moment.
LIMITS = {"image_tokens": (4, 256), "devices": "cpu", "dtype": "float32"}
CLIP_LIMITS = {"frame_tokens": (4, 32), "max_frames": 8}
SRT = "1\n00:00:00,500 --> 00:00:02,000\nBottles pass on the conveyor belt\n\n2\n00:00:02,000 --> 00:00:04,000\nand are counted.\n"
CHILD = """
import sys
from pathlib import Path
from search_engine.ingest import IngestOptions
from search_engine.search_engine import SearchEngine
engine = SearchEngine(sys.argv[1], image_tokens=(4, 256), devices="cpu", dtype="float32", frame_tokens=(4, 32), max_frames=8)
engine.build_index(sys.argv[2], sys.argv[3], bs=2, save_interval=1, workers=1, ingest=IngestOptions(ocr=False))
"""


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published layout, ``corpus/image`` and ``corpus/video``, with a text and a transcript among them."""
    data = Path(os.environ.get("VRAG_DEV_DATA", "-"))
    if not (data / "images").is_dir() or not (data / "videos").is_dir():
        pytest.skip("VRAG_DEV_DATA names no folder with images/ and videos/")
    corpus = tmp_path_factory.mktemp("media") / "corpus"
    shutil.copytree(data / "images", corpus / "image")
    shutil.copytree(data / "videos", corpus / "video")
    clip = sorted((corpus / "video").iterdir())[0]
    (corpus / "video").chmod(0o755)
    clip.with_suffix(".srt").write_text(SRT, "utf-8")
    (corpus / "text").mkdir()
    (corpus / "text" / "minutes.md").write_text("The harbour master keeps the maps of the tidal basin.", "utf-8")
    return corpus


@pytest.fixture(scope="module")
def checkpoint(qwen3_path: Path) -> Path:
    reference = Path(os.environ.get("VRAG_EMBEDDER_REFERENCE", "-")) / "tiny-qwen3-vl-embedding"
    return reference if reference.is_dir() else qwen3_path


@pytest.fixture(scope="module")
def engine(media: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> SearchEngine:
    engine = SearchEngine(str(checkpoint), **LIMITS, **CLIP_LIMITS)
    report = engine.build_index(
        media, tmp_path_factory.mktemp("visual") / "media_index", bs=4, workers=1, ingest=PLAIN, progress=False
    )
    assert not report.problems
    assert report.items == 12
    return engine


def picture(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def index_of(engine: SearchEngine) -> Path:
    return next(iter(engine._paths.values()))


def test_pictures_clips_and_texts_are_searched_over_http(engine: SearchEngine, media: Path) -> None:
    images = sorted((media / "image").iterdir())
    clip = sorted((media / "video").glob("*.mp4"))[0]
    with running(create_app(settings_for(), open_engine=lambda _: engine)) as server:
        health = server.client.get("/health").json()["index"]
        assert (health["items"], health["dimension"]) == (12, engine.dimension)
        # By picture: each finds itself, as sure as can be.
        answer = server.client.post("/search", json={"images": [picture(path) for path in images], "top_k": 3})
        assert answer.status_code == 200, answer.text
        for path, found in zip(images, answer.json()["results"], strict=True):
            assert len(found["data"]) == 3
            if len(set(found["score"][:2])) == 2:
                assert found["data"][0]["document"] == path.name
        # By text: what the words say is found beside what the pictures look like.
        said = "maps of the tidal basin"
        first = server.client.post("/search", json={"queries": [said], "top_k": 12}).json()["results"][0]
        assert {entry["type"] for entry in first["data"]} == {"image", "video", "text"}
        assert "minutes" in [entry["id"] for entry in first["data"][:2]]
        # A clip by what is said in it, with its moment, and its frames with theirs.
        found = server.client.post("/search", json={"queries": ["bottles on the conveyor belt"], "top_k": 12}).json()
        (hit,) = [entry for entry in found["results"][0]["data"] if entry["document"] == clip.name]
        assert (hit["type"], hit["metadata"]["moment"]["start"]) == ("video", 0.5)
        assert hit["duration"] > 4
        frames = server.client.get(f"/items/{hit['id']}/frames", params={"t": [0.5, 2.0]}).json()["frames"]
        assert [round(frame["t"], 1) for frame in frames] == [0.5, 2.0]
        assert base64.b64decode(frames[0]["image"])[:2] == b"\xff\xd8"
        assert server.client.get(f"/items/{hit['id']}/thumbnail").status_code == 200
    # The service closed the engine's model, which holds nothing here; it is used further below.
    assert len(engine) == 12


def test_a_picture_is_nearest_to_itself(engine: SearchEngine, media: Path) -> None:
    """In the vectors themselves: with random weights two pictures may come close, never closer than the same one."""
    from search_engine.models.base import Query

    vectors = SearchEngine(engine.embedder, settings=RetrievalSettings(hybrid=False))
    vectors.load_index(index_of(engine))
    for path in sorted((media / "image").iterdir()):
        # Queries are told another thing than documents; without that, the vectors are the same.
        embedder: Any = engine.embedder
        before, embedder.query_instruction = embedder.query_instruction, None
        try:
            hits = vectors.retrieve([Query(image=path.read_bytes())], 12)[0]
        finally:
            embedder.query_instruction = before
        assert hits[0].item.document == path.name
        assert hits[0].score == pytest.approx(1, abs=1e-5)


def test_hybrid_is_a_setting(engine: SearchEngine) -> None:
    said = "maps of the tidal basin"
    vectors = SearchEngine(engine.embedder, settings=RetrievalSettings(hybrid=False))
    words = SearchEngine(engine.embedder, settings=RetrievalSettings(vector_weight=0.0))
    for one in (vectors, words):
        one.load_index(index_of(engine))
    assert [hit.item.id for hit in words.retrieve([said], 12)[0]] == ["minutes"]
    seen = vectors.retrieve([said], 12)[0]
    assert len(seen) == 12
    cosines = [hit.score for hit in seen]
    assert cosines == sorted(cosines, reverse=True)
    fused = engine.retrieve([said], 12)[0]
    assert len(fused) == 12
    assert fused != seen


def test_an_image_folder_alone_and_a_mixed_folder_give_the_same_vectors(
    engine: SearchEngine, media: Path, tmp_path: Path
) -> None:
    alone = SearchEngine(engine.embedder)
    alone.build_index(media / "image", tmp_path / "image_index", bs=3, workers=1, ingest=PLAIN)
    assert len(alone) == 7
    documents = [Document(path.stem, image=path) for path in sorted((media / "image").iterdir())]
    direct = engine.embedder.embed_documents(documents).vectors
    stored = np.load(next((tmp_path / "image_index" / "segments").glob("*/vectors.npy")))
    assert np.abs(stored - direct).max() < 1e-6


def test_killed_builds_resume_to_the_same_vectors(media: Path, checkpoint: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

    def child(index: Path) -> list[str]:
        return [sys.executable, "-c", CHILD, str(checkpoint), str(media), str(index)]

    def commits(index: Path) -> int:
        return len(read_manifest(index).segments) if (index / "manifest.json").exists() else 0

    subprocess.run(child(tmp_path / "whole"), env=environment, cwd=ROOT, check=True, capture_output=True)
    killed = 0
    for wanted in (2, 5):
        process = subprocess.Popen(
            child(tmp_path / "index"),
            env=environment,
            cwd=ROOT,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while commits(tmp_path / "index") < wanted and process.poll() is None:
            time.sleep(0.002)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        assert wanted <= commits(tmp_path / "index") < 12
    assert killed == 2
    subprocess.run(child(tmp_path / "index"), env=environment, cwd=ROOT, check=True, capture_output=True)

    def contents(index: Path) -> dict[str, bytes]:
        # The manifest holds the folder's own name, and so differs by nothing else.
        return {name: data for name, data in files(index).items() if name != "manifest.json"}

    assert contents(tmp_path / "index") == contents(tmp_path / "whole")
    assert sum(name.endswith("vectors.npy") for name in contents(tmp_path / "whole")) == 12


def test_an_index_of_another_model_template_or_dimension_is_refused(
    engine: SearchEngine, checkpoint: Path, gve_path: Path, tmp_path: Path
) -> None:
    index = index_of(engine)
    other = shutil.copytree(checkpoint, tmp_path / "other-template")
    other.chmod(0o755)
    template = other / "chat_template.jinja"
    if template.exists():
        template.chmod(0o644)
        template.write_text(template.read_text("utf-8").replace("<|im_start|>", "<|im_start|> "), "utf-8")
    else:
        config = other / "chat_template.json"
        config.chmod(0o644)
        config.write_text(config.read_text("utf-8").replace("<|im_start|>", "<|im_start|> "), "utf-8")
    same_name = tmp_path / "renamed" / checkpoint.name
    same_name.parent.mkdir()
    shutil.move(other, same_name)
    others = {
        "model": SearchEngine(str(gve_path), devices="cpu"),
        "template": SearchEngine(str(same_name), **LIMITS, **CLIP_LIMITS),
        "dimension": SearchEngine(str(checkpoint), dimension=16, **LIMITS, **CLIP_LIMITS),
        "limits": SearchEngine(str(checkpoint), devices="cpu", dtype="float32"),
        "text": SearchEngine(),
    }
    built = str(read_manifest(index).model)
    for other_engine in others.values():
        with pytest.raises(IndexMismatch) as error:
            other_engine.load_index(index)
        running_model = f"{other_engine.embedder.name} ({other_engine.dimension} dimensions"
        assert built in str(error.value)
        assert running_model in str(error.value)
        with pytest.raises(IndexMismatch):
            other_engine.add([checkpoint / "config.json"], index)
    assert "template=" in built
    # Over HTTP: the service says why it is not ready.
    from tests.search_engine.api_server import Server, wait_for

    with Server(create_app(settings_for(index, model="text_page"))) as server:
        wait_for(lambda: server.client.get("/health").json()["status"] == "failed")
        detail = server.client.get("/health").json()["detail"]
        assert checkpoint.name in detail
        assert "text_page (2048 dimensions" in detail


def test_a_reranker_looks_at_pictures_clips_and_texts(engine: SearchEngine, qwen3_path: Path, media: Path) -> None:
    from search_engine.models.base import Query
    from search_engine.models.registry import load_pair_scorer

    limits = {"image_tokens": (4, 256), "max_frames": 8, "devices": "cpu", "dtype": "float32"}
    reranker = load_pair_scorer(str(qwen3_path), **limits)
    second = SearchEngine(engine.embedder, reranker=reranker)
    second.load_index(index_of(engine))
    asked = "What is on the conveyor belt?"
    hits = engine.retrieve([asked], 12)[0]
    documents = [
        Document(
            hit.item.id,
            text=hit.item.content,
            image=engine.media_path(hit.item.id) if hit.item.kind == "image" else None,
            video=engine.media_path(hit.item.id) if hit.item.kind == "video" else None,
        )
        for hit in hits
    ]
    scores = reranker.score(Query(asked), documents)
    assert not scores.failed
    expected = sorted(zip(scores.values.tolist(), [hit.item.id for hit in hits], strict=True), reverse=True)
    with running(create_app(settings_for(), open_engine=lambda _: second)) as server:
        assert server.client.get("/health").json()["index"]["reranker"] == qwen3_path.name
        body = {"queries": [asked], "top_k": 12, "rerank": 12}
        answer = server.client.post("/search", json=body).json()
        assert "notes" not in answer
        (found,) = answer["results"]
        assert found["score"] == pytest.approx([score for score, _ in expected], abs=1e-6)
        assert [entry["id"] for entry in found["data"]] == [item for _, item in expected]
        assert {entry["type"] for entry in found["data"]} == {"image", "video", "text"}


def test_a_service_loads_model_and_reranker_by_its_settings(
    media: Path, checkpoint: Path, qwen3_path: Path, tmp_path: Path
) -> None:
    SearchEngine(str(checkpoint)).build_index(media / "text", tmp_path / "text_index", workers=1, progress=False)
    settings = settings_for(tmp_path / "text_index", model=str(checkpoint), reranker=str(qwen3_path))
    with running(create_app(settings)) as server:
        body = {"queries": ["maps of the tidal basin"], "rerank": True}
        answer = server.client.post("/search", json=body).json()
        assert "notes" not in answer
        (found,) = answer["results"]
        assert [entry["id"] for entry in found["data"]] == ["minutes"]
        assert 0 < found["score"][0] < 1
        # Taken up again, the index keeps the models that are loaded.
        assert server.client.post("/admin/reload").status_code == 200
        assert server.client.post("/search", json=body).json()["results"] == [found]
