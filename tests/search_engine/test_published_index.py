"""Indexes in the layout of the published code: served, taken over, and refused when they do not fit together."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from PIL import Image

from search_engine.cli import main
from search_engine.ingest import IngestOptions
from search_engine.models.base import Document, Embedded, Query, Vectors
from search_engine.search_engine import SearchEngine
from search_engine.settings import RetrievalSettings
from tests.search_engine.api_server import running
from vrag.errors import IndexCorrupt, IndexMismatch

COLOURS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (30, 30, 220), "grey": (128, 128, 128)}


class Colours:
    """A tiny visual model: a picture is its mean colour, a text the colour that it names."""

    fingerprint = "rgb"
    sees_pictures = False

    def __init__(self, name: str = "GVE-3B", dimension: int = 8) -> None:
        self.name, self.dimension = name, dimension

    def vector(self, colour: Sequence[float]) -> np.ndarray:
        out = np.zeros(self.dimension, np.float32)
        out[:3] = np.asarray(colour, np.float32) + 1
        return out / np.linalg.norm(out)

    def embed_documents(self, documents: Sequence[Document]) -> Embedded:
        rows = []
        for document in documents:
            if document.image is not None:
                with Image.open(document.image) as image:
                    rows.append(self.vector(np.asarray(image.convert("RGB")).mean(axis=(0, 1))))
            else:
                rows.append(self.named(document.text or ""))
        return Embedded(np.stack(rows))

    def named(self, text: str) -> np.ndarray:
        return self.vector(next((rgb for name, rgb in COLOURS.items() if name in text), (1, 1, 1)))

    def embed_queries(self, queries: Sequence[Query]) -> Vectors:
        return np.stack([self.named(query.text or "") for query in queries])


def publish(folder: Path, rows: list[dict[str, Any]], vectors: np.ndarray, model: str = "Alibaba-NLP/GVE-3B") -> Path:
    """The three files, written as the published code writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    name = model.replace("/", "_").replace("-", "_")
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    faiss.write_index(index, str(folder / f"{name}_faiss_index.bin"))
    meta = {
        "vector_dimension": vectors.shape[1],
        "num_vectors": len(vectors),
        "model_name": model,
        "date_created": "2026-01-05T10:00:00",
    }
    (folder / f"{name}_meta_data.json").write_text(json.dumps(meta, indent=4))
    with (folder / f"{name}_file_data_list.jsonl").open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return folder


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pictures, a text and their published index, with paths as seen from the folder that the build ran in."""
    images = tmp_path / "search_engine" / "corpus" / "image"
    images.mkdir(parents=True)
    for name in ("red", "green", "blue"):
        Image.new("RGB", (64, 48), COLOURS[name]).save(images / f"{name}.png")
    (images / "note.txt").write_text("The grey harbour wall was built in 1974.\n")
    model = Colours()
    rows: list[dict[str, Any]] = [
        {"type": "image", "file_path": f"search_engine/corpus/image/{name}.png"} for name in ("red", "green", "blue")
    ]
    rows.append(
        {"type": "text", "file_path": "search_engine/corpus/image/note.txt", "content": "The grey harbour wall"}
    )
    rows.append({"type": "image", "file_path": "search_engine/corpus/image/gone/red.png", "uid": 17})
    vectors = np.stack([model.vector(COLOURS[name]) for name in ("red", "green", "blue", "grey", "red")])
    index = publish(images.with_name("image_index"), rows, vectors)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return index


def engine_of(*indexes: Path, model: Colours | None = None, **settings: Any) -> SearchEngine:
    engine = SearchEngine(model or Colours(), settings=RetrievalSettings(**settings))
    engine.load_index(list(indexes))
    return engine


def test_it_is_recognised_and_served(corpus: Path) -> None:
    engine = engine_of(corpus)
    (answer,) = engine.search(["something green"], top_k=2)
    first = answer["data"][0]
    assert (first["type"], first["id"], first["width"], first["height"]) == ("image", "green", 64, 48)
    assert Path(first["file_path"]).read_bytes() == (corpus.with_name("image") / "green.png").read_bytes()
    assert engine.corpora == {"image_index": 5}
    # its text is found by its words as well, and can be filtered by
    (hits,) = engine.retrieve(["harbour wall 1974"], 1)
    assert hits[0].item.content == "The grey harbour wall"
    assert [hit.item.id for hit in engine.retrieve(["red"], 5, documents=["blue.png"])[0]] == ["blue"]
    # a picture that is gone stays an item, so that the others keep their vectors
    assert {hit.item.id for hit in engine.retrieve(["red"], 2)[0]} == {"red", "17"}


def test_it_is_served_over_http(corpus: Path) -> None:
    from search_engine.service import ServiceSettings, create_app

    app = create_app(ServiceSettings(index=(corpus,)), open_engine=lambda _: engine_of(corpus))
    with running(app) as server:
        (found,) = server.client.post("/search", json={"queries": ["blue"], "top_k": 1, "vrag_ret": True}).json()
        assert found[0]["idx"] == 2
        assert found[0]["image_file"].endswith("blue.png")
        assert server.client.get("/items/blue/image").content == (corpus.with_name("image") / "blue.png").read_bytes()


def test_beside_an_index_of_ours(corpus: Path, tmp_path: Path) -> None:
    engine = SearchEngine(Colours())
    own = tmp_path / "own"
    engine.build_index(corpus.with_name("image"), own, workers=1, ingest=IngestOptions(ocr=False))
    engine.load_index([own, corpus])
    assert engine.corpora == {"own": 4, "image_index": 5}
    assert engine.item("red~2").document == "red.png"
    for kind in ("sq8", "hnsw"):
        other = engine_of(own, corpus, vectors=kind, exact_rows=0, hybrid=False)
        engine = engine_of(own, corpus, hybrid=False)
        for query in ("red", "blue"):
            assert other.search([query], 9) == engine.search([query], 9)


@pytest.mark.parametrize("name", ["gve-3b", "GVE_3B", "GVE-Qwen25-VL-3B"])
def test_a_model_goes_by_its_name_however_it_is_written(corpus: Path, name: str) -> None:
    assert len(engine_of(corpus, model=Colours(name))) == 5


def test_another_model_or_dimension_is_refused_with_both_names(corpus: Path) -> None:
    with pytest.raises(IndexMismatch, match=r"Alibaba-NLP/GVE-3B.*Qwen3-VL-Embedding-2B"):
        engine_of(corpus, model=Colours("Qwen3-VL-Embedding-2B"))
    with pytest.raises(IndexMismatch, match=r"8 dimensions.*16 dimensions"):
        engine_of(corpus, model=Colours(dimension=16))


def test_several_models_in_one_folder(corpus: Path) -> None:
    publish(
        corpus,
        [{"type": "text", "content": "red", "file_path": None}],
        Colours().named("red")[None],
        "Qwen/Qwen3-VL-8B",
    )
    assert len(engine_of(corpus)) == 5
    assert len(engine_of(corpus, model=Colours("Qwen3-VL-8B"))) == 1
    with pytest.raises(IndexMismatch, match=r"Alibaba_NLP_GVE_3B, Qwen_Qwen3_VL_8B, none of bge-m3"):
        engine_of(corpus, model=Colours("bge-m3"))


def part(corpus: Path, suffix: str) -> Path:
    (path,) = corpus.glob(f"*{suffix}")
    return path


def drop_a_line(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


DAMAGE = {
    "a list that is behind": ("list.jsonl", drop_a_line, "different states.*index.bin 5.*list.jsonl 4"),
    "a line that is none": ("list.jsonl", lambda p: p.write_text(p.read_text().replace('"type"', "type", 1)), "line 1"),
    "a list of lists": ("list.jsonl", lambda p: p.write_text("[]\n" * 5), "line 1"),
    "facts that are behind": (
        "data.json",
        lambda p: p.write_text(p.read_text().replace("5,", "3,", 1)),
        "different states",
    ),
    "facts without a model": (
        "data.json",
        lambda p: p.write_text('{"vector_dimension": 8, "num_vectors": 5}'),
        "model_name",
    ),
    "facts cut off": ("data.json", lambda p: p.write_bytes(p.read_bytes()[:-9]), "does not describe"),
    "vectors cut off": ("index.bin", lambda p: p.write_bytes(p.read_bytes()[:-9]), "truncated"),
    "vectors cut to nothing": ("index.bin", lambda p: p.write_bytes(b""), "truncated"),
    "no vectors": ("index.bin", Path.unlink, "is missing"),
    "no list": ("list.jsonl", Path.unlink, "is missing"),
    "no facts": ("data.json", Path.unlink, "is missing"),
}


@pytest.mark.parametrize("harm", DAMAGE)
def test_what_does_not_fit_together_is_named(corpus: Path, harm: str, capsys: pytest.CaptureFixture[str]) -> None:
    suffix, do, reason = DAMAGE[harm]
    path = part(corpus, suffix)
    before = engine_of(corpus)
    do(path)
    with pytest.raises(IndexCorrupt, match=f"(?s){reason}") as error:
        before.load_index(corpus)
    assert path.name in str(error.value)
    assert len(before) == 5  # what was loaded stays
    assert main(["index-info", str(corpus)]) == 1
    assert path.name in capsys.readouterr().err


def test_other_kinds_of_vectors_are_refused(corpus: Path) -> None:
    index = faiss.index_factory(8, "SQ8", faiss.METRIC_INNER_PRODUCT)
    vectors = np.random.default_rng(0).random((5, 8), np.float32)
    index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(part(corpus, "index.bin")))
    with pytest.raises(IndexMismatch, match="only a flat index"):
        engine_of(corpus)


def test_vectors_that_are_not_finite_are_left_out(corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = faiss.read_index(str(part(corpus, "index.bin")))
    vectors = index.reconstruct_n(0, 5)
    vectors[1] = np.nan
    index = faiss.IndexFlatIP(8)
    index.add(vectors)
    faiss.write_index(index, str(part(corpus, "index.bin")))
    with caplog.at_level(logging.WARNING):
        engine = engine_of(corpus, hybrid=False)
    assert "not finite" in caplog.text
    assert "green" not in {hit.item.id for hit in engine.retrieve(["green"], 5)[0]}
    assert len(engine.retrieve(["green"], 5)[0]) == 4


def test_taken_over_it_is_an_index_of_ours(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search_engine.cli.load_model", lambda name: Colours(name))
    taken = tmp_path / "taken"
    assert main(["import", "--model", "GVE-3B", str(corpus), str(taken)]) == 0
    served, ours = engine_of(corpus, hybrid=False), engine_of(taken, hybrid=False)
    for query in ("red", "green", "grey"):
        (a,), (b,) = served.search([query], 5), ours.search([query], 5)
        assert a == b
    assert main(["import", "--model", "GVE-3B", str(corpus), str(taken)]) == 1
    # A build goes on from it: what is unchanged is not embedded again.
    report = ours.build_index(corpus.with_name("image"), taken, workers=1, ingest=IngestOptions(ocr=False))
    assert (report.indexed, report.unchanged) == (0, 4)


def test_taken_over_under_another_name(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search_engine.cli.load_model", lambda name: Colours(name))
    command = ["import", "--model", "my-copy", str(corpus), str(tmp_path / "taken")]
    assert main(command) == 1
    assert not (tmp_path / "taken").exists()
    assert main([*command, "--renamed"]) == 0
    assert len(engine_of(tmp_path / "taken", model=Colours("my-copy"))) == 5
