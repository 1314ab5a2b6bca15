"""Items that the model fails on: reported, found by their text, tried again by the next build, and nobody else's concern."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from search_engine.index_store import read_manifest
from search_engine.models.base import Document, Embedded, Query, Vectors
from search_engine.models.text_page import TextPage
from search_engine.search_engine import SearchEngine
from search_engine.settings import RetrievalSettings
from tests.search_engine.test_kill import files
from vrag.errors import ModelError


class Choosy(TextPage):
    """The embedded default, which refuses what it is told to."""

    def __init__(self, refuses: str = "") -> None:
        super().__init__()
        self.refuses = refuses
        self.asked: list[str] = []

    def embed_documents(self, documents: Sequence[Document]) -> Embedded:
        self.asked += [document.id for document in documents]
        embedded = super().embed_documents(documents)
        failed = {
            row: "it is too long for the model"
            for row, document in enumerate(documents)
            if self.refuses and self.refuses in (document.text or "")
        }
        return Embedded(embedded.vectors, failed)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name, text in {"a": "wind power", "b": "solar cells", "c": "tidal basin", "d": "hydrogen tanks"}.items():
        (folder / f"{name}.txt").write_text(text, "utf-8")
    return folder


def near(engine: SearchEngine, query: str) -> list[str]:
    """What the vectors alone find, with a cosine that says something."""
    alone = SearchEngine(engine.embedder, settings=RetrievalSettings(hybrid=False))
    alone.load_index(engine._paths)
    return [hit.item.id for hit in alone.retrieve([query], 4)[0] if hit.score > 0.5]


def test_what_failed_is_reported_found_by_its_text_and_tried_again(docs: Path, tmp_path: Path) -> None:
    model = Choosy("solar")
    engine = SearchEngine(model)
    report = engine.build_index(docs, tmp_path / "index", bs=3, workers=1)
    assert [str(problem) for problem in report.problems] == [
        "b.txt: b.txt was not embedded: it is too long for the model"
    ]
    assert report.items == report.indexed == 4
    assert engine.retrieve(["solar cells"], 1)[0][0].item.id == "b"
    assert near(engine, "solar cells") == []
    assert [near(engine, text) for text in ("wind power", "tidal basin", "hydrogen tanks")] == [["a"], ["c"], ["d"]]

    before = files(tmp_path / "index")
    model.asked.clear()
    again = engine.build_index(docs, tmp_path / "index", bs=3, workers=1)
    assert model.asked == ["b"], "only what failed is tried again"
    assert files(tmp_path / "index") == before, "what fails as before is not written again"
    assert (again.read, again.indexed, again.unchanged, len(again.problems)) == (1, 0, 3, 1)

    model.refuses = ""
    report = engine.build_index(docs, tmp_path / "index", bs=3, workers=1)
    assert (report.indexed, report.items, report.problems) == (1, 4, ())
    assert near(engine, "solar cells") == ["b"]
    assert engine.retrieve(["solar cells"], 1)[0][0].item.id == "b"
    model.asked.clear()
    assert engine.build_index(docs, tmp_path / "index", workers=1).unchanged == 4
    assert model.asked == []


def test_an_embedder_that_gives_something_else_is_refused(docs: Path, tmp_path: Path) -> None:
    class Short(TextPage):
        def embed_documents(self, documents: Sequence[Document]) -> Embedded:
            return Embedded(super().embed_documents(documents).vectors[:1])

    with pytest.raises(ModelError, match=r"gave \(1, 2048\) for 4 documents"):
        SearchEngine(Short()).build_index(docs, tmp_path / "index", workers=1)

    class Beyond(TextPage):
        def embed_documents(self, documents: Sequence[Document]) -> Embedded:
            return Embedded(super().embed_documents(documents).vectors, {9: "?"})

    with pytest.raises(ModelError, match="document 9 of 4"):
        SearchEngine(Beyond()).build_index(docs, tmp_path / "index2", workers=1)


def test_a_vector_that_is_not_finite_is_no_vector(docs: Path, tmp_path: Path) -> None:
    class Sick(TextPage):
        def embed_documents(self, documents: Sequence[Document]) -> Embedded:
            vectors = super().embed_documents(documents).vectors
            vectors[1, 5] = np.nan
            return Embedded(vectors)

    engine = SearchEngine(Sick())
    report = engine.build_index(docs, tmp_path / "index", workers=1)
    assert ["not finite" in str(problem) for problem in report.problems] == [True]
    assert engine.retrieve(["solar cells"], 1)[0][0].item.id == "b"
    assert read_manifest(tmp_path / "index").segments[0].items == 4


class Elsewhere(TextPage):
    """Works when it is told to begin, not when the result is asked for; notes the order of both."""

    ahead = 2

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    def submit(self, chunks):  # type: ignore[no-untyped-def]
        name = chunks[0][0].id
        self.log.append(f"begin {name}")
        done = [self.embed_documents(chunk) for chunk in chunks]

        def result() -> list[Embedded]:
            self.log.append(f"take {name}")
            return done

        return result

    def embed_queries(self, queries: Sequence[Query]) -> Vectors:
        return super().embed_queries(queries)


def test_batches_under_way_are_committed_in_order(docs: Path, tmp_path: Path) -> None:
    model = Elsewhere()
    SearchEngine(model).build_index(docs, tmp_path / "index", save_interval=1, workers=1)
    assert model.log == [
        *("begin a", "begin b", "begin c", "take a", "begin d", "take b"),
        *("take c", "take d"),
    ]
    SearchEngine().build_index(docs, tmp_path / "plain" / "index", save_interval=1, workers=1)
    # The folder's own place differs, and with it how the manifest and the sources name the documents.
    vectors = [path.read_bytes() for path in sorted((tmp_path / "index").rglob("vectors.npy"))]
    assert vectors == [path.read_bytes() for path in sorted((tmp_path / "plain" / "index").rglob("vectors.npy"))]
