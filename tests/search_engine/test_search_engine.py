"""The search engine over real files: build, search, add, change, remove, several indexes, the command line."""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from search_engine.cli import main
from search_engine.ingest import IngestOptions
from search_engine.models.base import Document, Embedded, Query, Vectors
from search_engine.models.text_page import TextPage
from search_engine.search_engine import EngineRetriever, SearchEngine
from search_engine.settings import RetrievalSettings
from tests import hostile
from vrag.errors import ConfigError, IndexCorrupt, IndexMismatch, ModelError, RetrieverError
from vrag.retriever import Retriever

ROOT = Path(__file__).resolve().parents[2]
PLAIN = IngestOptions(ocr=False)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus" / "docs"
    (folder / "deep" / "er").mkdir(parents=True)
    hostile.pdf(
        folder / "report.pdf", ["Wind turbines of the north coast", "Prices of copper cables", "Index of names"]
    )
    hostile.image_of(folder / "deep" / "Chart.PNG", "Storms per year")
    (folder / "deep" / "er" / "notes.md").write_text("# Notes\n\nThe harbour was dredged in 1974.", "utf-8")
    (folder / "安全.txt").write_text("机密计算保护使用中的数据。", "utf-8")
    return folder


@pytest.fixture
def index(docs: Path) -> Path:
    return docs.parent / "docs_index"


@pytest.fixture
def engine(docs: Path, index: Path) -> SearchEngine:
    engine = SearchEngine("text_page")
    engine.build_index(docs, index, ingest=PLAIN, workers=1)
    return engine


def best(engine: SearchEngine, query: str, **filters: object) -> list[str]:
    return [hit.item.id for hit in engine.retrieve([query], 3, **filters)[0]]  # type: ignore[arg-type]


def test_a_folder_becomes_searchable(docs: Path, index: Path) -> None:
    engine = SearchEngine("text_page")
    seen = []
    report = engine.build_index(docs, index, ingest=PLAIN, workers=2, progress=seen.append)
    assert (report.items, report.documents, report.indexed, report.read, report.unchanged) == (6, 4, 6, 4, 0)
    assert report.problems == ()
    assert report.removed == ()
    assert seen[-1].files_done == seen[-1].files_total == 4
    assert engine.documents == {"report.pdf": 3, "Chart.PNG": 1, "notes.md": 1, "安全.txt": 1}
    assert engine.corpora == {"docs_index": 6}
    assert best(engine, "Which turbines stand on the northern coast?")[0] == "report_1"
    assert best(engine, "price of copper")[0] == "report_2"
    assert best(engine, "When was the harbour dredged?")[0] == "notes"
    assert best(engine, "什么保护数据")[0] == "安全"
    page = engine.item("report_2")
    assert (page.kind, page.document, page.page) == ("image", "report.pdf", 2)
    path = engine.media_path("report_2")
    assert path is not None
    assert path.read_bytes()[:2] == b"\xff\xd8"
    (line,) = engine.lines("report_2")
    assert line.text == "Prices of copper cables"
    assert page.width is not None
    assert 0 < line.box.x1 < line.box.x2 < page.width
    assert engine.position("report_1") == [engine.search(["wind turbines"], 1)[0]["indice"][0]][0]


def test_the_published_snippet(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = docs.parent / "search_engine" / "corpus" / "image"
    images.mkdir(parents=True)
    for number, text in enumerate(("Storms per year", "Copper price")):
        hostile.image_of(images / f"picture_{number}.jpg", text)
    monkeypatch.chdir(docs.parent)
    snippet = (
        "engine = SearchEngine('text_page')\n"
        "engine.build_index(\n"
        '    input_dir="search_engine/corpus/image",\n'
        '    index_output_path="search_engine/corpus/image_index",\n'
        '    corpus_output_path="search_engine/corpus/image_index",\n'
        "    bs=16\n"
        ")"
    )
    names: dict[str, object] = {"SearchEngine": SearchEngine}
    exec(snippet, names)
    engine = names["engine"]
    assert isinstance(engine, SearchEngine)
    (result,) = engine.search(["How many storms are there in a year?"], top_k=1)
    assert result["data"][0]["id"] == "picture_0"
    assert result["data"][0]["type"] == "image"
    assert Path(result["data"][0]["file_path"]) == images / "picture_0.jpg"
    assert "Storms" in engine.lines("picture_0")[0].text


def test_the_published_form(engine: SearchEngine) -> None:
    results = engine.search(["harbour", "turbines"], top_k=2)
    assert len(results) == 2
    for result in results:
        assert set(result) == {"score", "indice", "data"}
        assert len(result["score"]) == len(result["indice"]) == len(result["data"]) == 2
        assert result["score"] == sorted(result["score"], reverse=True)
    found = results[0]["data"][0]
    assert (found["type"], found["id"], found["document"], found["page"]) == ("text", "notes", "notes.md", None)
    assert "1974" in found["content"]
    json.dumps(results)


def test_filters(engine: SearchEngine) -> None:
    assert set(best(engine, "turbines harbour", documents=["report.pdf"])) <= {"report_1", "report_2", "report_3"}
    assert best(engine, "harbour", documents=["notes.md", "report.pdf"])[0] == "notes"
    assert best(engine, "harbour", corpus="docs_index")[0] == "notes"
    with pytest.raises(ConfigError, match=r"no document 'missing\.pdf'"):
        engine.retrieve(["x"], documents=["missing.pdf"])
    with pytest.raises(ConfigError, match="no corpus 'other'; loaded are: docs_index"):
        engine.retrieve(["x"], corpus="other")


@pytest.mark.parametrize("top_k", [0, -3])
def test_top_k_has_to_be_positive(engine: SearchEngine, top_k: int) -> None:
    with pytest.raises(ConfigError, match="top_k"):
        engine.retrieve(["x"], top_k)


def test_odd_queries(engine: SearchEngine) -> None:
    assert engine.retrieve([], 3) == []
    assert engine.retrieve(["", "?!", "the"], 3) == [[], [], []]
    assert len(engine.retrieve(["turbines"], 1000)[0]) == len(
        {hit.item.id for hit in engine.retrieve(["turbines"], 1000)[0]}
    )
    with pytest.raises(ConfigError, match="list"):
        engine.retrieve("turbines")


def test_an_engine_without_an_index_finds_nothing() -> None:
    engine = SearchEngine()
    assert len(engine) == 0
    assert engine.corpora == {}
    assert engine.retrieve(["anything"], 3) == [[]]
    with pytest.raises(KeyError):
        engine.item("x")


def test_an_unknown_model() -> None:
    with pytest.raises(ConfigError):
        SearchEngine("/no/such/checkpoint")


def test_building_again_reads_only_what_changed(docs: Path, index: Path, engine: SearchEngine) -> None:
    version = engine.version
    report = engine.build_index(docs, index, ingest=PLAIN, workers=1)
    assert (report.read, report.unchanged, report.items) == (0, 4, 6)
    assert engine.version == version
    os.utime(docs / "report.pdf")  # touched, not changed
    (docs / "deep/er/notes.md").write_text("The harbour was dredged in 1981.", "utf-8")
    (docs / "安全.txt").unlink()
    (docs / "new.txt").write_text("Lighthouses of the south.", "utf-8")
    report = engine.build_index(docs, index, ingest=PLAIN, workers=1)
    assert (report.read, report.unchanged, report.removed, report.items) == (2, 2, ("安全.txt",), 6)
    assert engine.version != version
    assert best(engine, "lighthouses")[0] == "new"
    (hit,) = engine.retrieve(["harbour"], 1)[0]
    assert hit.item.id == "notes"
    assert "1981" in (hit.item.content or "")
    assert all("1974" not in line.text for line in engine.lines("notes"))
    assert "安全.txt" not in engine.documents


def test_files_that_are_gone_can_be_kept(docs: Path, index: Path, engine: SearchEngine) -> None:
    (docs / "安全.txt").unlink()
    report = engine.build_index(docs, index, prune=False, ingest=PLAIN, workers=1)
    assert report.removed == ()
    assert best(engine, "机密")[0] == "安全"


def test_an_unmounted_disk_does_not_empty_an_index(docs: Path, index: Path, engine: SearchEngine) -> None:
    shutil.rmtree(docs)
    docs.mkdir()
    with pytest.raises(ConfigError, match="not mounted"):
        engine.build_index(docs, index)
    shutil.rmtree(docs)
    with pytest.raises(ConfigError, match="no file or folder"):
        engine.build_index(docs, index)
    assert len(engine) == 6
    with pytest.raises(ConfigError, match="folder of its own"):
        engine.build_index(index, index)


def test_bad_files_are_listed_and_stop_nothing(docs: Path, index: Path) -> None:
    (docs / "broken.pdf").write_bytes(b"%PDF-1.7 nonsense")
    hostile.encrypted_pdf(docs / "locked.pdf")
    (docs / "empty.png").write_bytes(b"")
    (docs / "movie.xyz").write_bytes(b"?")
    engine = SearchEngine()
    report = engine.build_index(docs, index, ingest=PLAIN, workers=1)
    assert report.items == 6
    named = {Path(problem.path).name for problem in report.problems}
    assert named == {"broken.pdf", "locked.pdf", "empty.png", "movie.xyz"}
    assert all(problem.reason for problem in report.problems)
    again = engine.build_index(docs, index, ingest=PLAIN, workers=1)
    assert (again.read, again.unchanged) == (0, 7)
    assert sorted(map(str, again.problems)) == sorted(map(str, report.problems))
    retried = engine.build_index(docs, index, retry=True, ingest=PLAIN, workers=1)
    assert (retried.read, len(retried.problems)) == (3, 4)
    hostile.pdf(docs / "broken.pdf", ["Now it is whole"])
    mended = engine.build_index(docs, index, ingest=PLAIN, workers=1)
    assert (mended.read, mended.items, len(mended.problems)) == (1, 7, 3)
    assert best(engine, "whole")[0] == "broken_1"


def test_a_list_with_uids(tmp_path: Path) -> None:
    hostile.image_of(tmp_path / "a.png", "Storms")
    rows = [
        {"uid": "storm-chart", "file_path": "a.png", "source": "weather"},
        {"uid": "passage-1", "content": "The harbour was dredged in 1974."},
        {"content": "Lighthouses of the south."},
        {"uid": "gone", "file_path": "missing.png"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    engine = SearchEngine()
    report = engine.build_index(path, tmp_path / "index", ingest=PLAIN, workers=1)
    assert (report.items, len(report.problems)) == (3, 1)
    assert best(engine, "harbour")[0] == "passage-1"
    assert best(engine, "lighthouses")[0] == "rows_3"
    assert engine.item("storm-chart").metadata["source"] == "weather"
    rows[1]["content"] = "The harbour was filled in."
    del rows[2]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    report = engine.build_index(path, tmp_path / "index", ingest=PLAIN, workers=1)
    assert (report.read, report.items) == (1, 2)
    assert "filled" in (engine.item("passage-1").content or "")


def test_documents_are_added_and_removed(tmp_path: Path, index: Path, engine: SearchEngine) -> None:
    extra = tmp_path / "elsewhere" / "report.pdf"
    extra.parent.mkdir()
    hostile.pdf(extra, ["Lighthouses of the south"])
    report = engine.add(extra, ingest=PLAIN, workers=1)
    assert (report.indexed, report.items) == (1, 7)
    assert best(engine, "lighthouses")[0] == "report~2_1"
    assert engine.documents["report.pdf"] == 4
    assert engine.add([extra], "docs_index", ingest=PLAIN, workers=1).read == 0
    assert engine.remove("notes.md") == 1
    assert "notes" not in best(engine, "harbour dredged")
    with pytest.raises(KeyError):
        engine.item("notes")
    with pytest.raises(ConfigError, match=r"no document 'notes\.md'"):
        engine.remove("notes.md")
    fresh = SearchEngine()
    fresh.load_index(index)
    assert fresh.documents == engine.documents
    assert fresh.version == engine.version
    pages = list((index / "pages").rglob("*.jpg"))
    engine.remove([str(extra)])
    engine.compact()
    assert len(engine) == 5
    assert len(list((index / "pages").rglob("*.jpg"))) == len(pages) - 1
    assert best(engine, "turbines")[0] == "report_1"


def test_a_file_added_by_hand_is_the_same_in_its_folder(docs: Path, index: Path, engine: SearchEngine) -> None:
    (docs / "late.txt").write_text("Lighthouses of the south.", "utf-8")
    engine.add(docs / "late.txt", workers=1)
    report = engine.build_index(docs, index, ingest=PLAIN, workers=1)
    assert (report.read, report.items) == (0, 7)
    (docs / "late.txt").unlink()
    assert engine.build_index(docs, index, ingest=PLAIN, workers=1).removed == ("late.txt",)


def test_several_indexes_are_loaded_together(tmp_path: Path, index: Path, engine: SearchEngine) -> None:
    other = tmp_path / "other"
    other.mkdir()
    hostile.pdf(other / "report.pdf", ["Wind over the southern hills"])
    second = tmp_path / "b" / "docs_index"
    SearchEngine().build_index(other, second, ingest=PLAIN, workers=1)
    engine.load_index([index, second])
    assert engine.corpora == {"docs_index": 6, "docs_index~2": 1}
    assert best(engine, "southern hills")[0] == "report_1~2"
    assert engine.lines("report_1~2")[0].text == "Wind over the southern hills"
    assert engine.media_path("report_1~2") != engine.media_path("report_1")
    assert best(engine, "wind", corpus="docs_index~2") == ["report_1~2"]
    assert "report_1~2" not in best(engine, "wind", corpus=["docs_index"])
    engine.load_index({"north": index, "south": second})
    assert best(engine, "wind", corpus="south") == ["report_1~2"]
    with pytest.raises(ConfigError, match="say which index: loaded are north, south"):
        engine.remove("report.pdf")
    assert engine.remove("report.pdf", "south") == 1
    assert engine.corpora == {"north": 6, "south": 0}


def test_a_name_given_to_a_corpus_is_kept(docs: Path, index: Path) -> None:
    engine = SearchEngine()
    engine.build_index(docs, index, name="harbour files", ingest=PLAIN, workers=1)
    assert engine.corpora == {"harbour files": 6}


class Broken(TextPage):
    """Fails on some documents, gives NaN for others, and for some queries."""

    name = "broken"  # type: ignore[assignment]

    def embed_documents(self, documents: Sequence[Document]) -> Embedded:
        embedded = super().embed_documents(documents)
        for row, document in enumerate(documents):
            if "copper" in (document.text or ""):
                embedded.failed[row] = "cannot be decoded"
            if "names" in (document.text or ""):
                embedded.vectors[row, 3] = np.nan
        return embedded

    def embed_queries(self, queries: Sequence[Query]) -> Vectors:
        vectors = super().embed_queries(queries)
        for row, query in enumerate(queries):
            if query.text == "nan":
                vectors[row] = np.nan
        return vectors


def test_vectors_that_are_none_never_enter(docs: Path, index: Path) -> None:
    engine = SearchEngine(Broken(), settings=RetrievalSettings(hybrid=False))
    report = engine.build_index(docs, index, bs=2, ingest=PLAIN, workers=1)
    assert sorted(str(problem) for problem in report.problems) == [
        "report.pdf: report.pdf, page 2 was not embedded: cannot be decoded",
        "report.pdf: report.pdf, page 3 was not embedded: broken gave a vector that is not finite",
    ]
    found = {hit.item.id for hit in engine.retrieve(["copper names turbines"], 100)[0]}
    assert "report_1" in found
    assert not found & {"report_2", "report_3"}
    with pytest.raises(ModelError, match="not finite"):
        engine.retrieve(["turbines", "nan"], 3)
    hybrid = SearchEngine(Broken())
    hybrid.load_index(index)
    assert best(hybrid, "copper")[0] == "report_2", "its words still find it"
    with pytest.raises(IndexMismatch, match=r"broken.*text_page"):
        SearchEngine().load_index(index)


def test_a_damaged_index_leaves_the_loaded_one(index: Path, engine: SearchEngine) -> None:
    vectors = index / "segments" / "000001" / "vectors.npy"
    content = bytearray(vectors.read_bytes())
    content[-1] ^= 1
    vectors.write_bytes(content)
    with pytest.raises(IndexCorrupt, match=r"vectors\.npy"):
        engine.load_index(index)
    assert best(engine, "turbines")[0] == "report_1"


def test_an_index_moves_with_its_neighbours(docs: Path, index: Path, engine: SearchEngine, tmp_path: Path) -> None:
    shutil.move(docs.parent, tmp_path / "moved")
    moved = SearchEngine()
    moved.load_index(tmp_path / "moved" / "docs_index")
    for item in ("report_1", "Chart"):
        path = moved.media_path(item)
        assert path is not None
        assert path.exists()
    report = moved.build_index(tmp_path / "moved/docs", tmp_path / "moved/docs_index", ingest=PLAIN, workers=1)
    assert (report.read, report.unchanged) == (0, 4)


def test_an_index_inside_of_its_input(docs: Path) -> None:
    engine = SearchEngine()
    engine.build_index(docs, docs / "index", docs, ingest=PLAIN, workers=1)
    report = engine.build_index(docs, docs / "index", docs, ingest=PLAIN, workers=1)
    assert (report.read, report.items, report.problems) == (0, 6, ())


def test_many_threads_get_the_serial_answers(engine: SearchEngine) -> None:
    queries = [f"{word} {number}" for word in ("turbines", "copper", "harbour", "数据") for number in range(40)]
    serial = [engine.retrieve([query], 3)[0] for query in queries]
    together = engine.retrieve(queries, 3)
    assert together == serial
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda query: engine.retrieve([query], 3)[0], queries)) == serial


def test_the_retriever_in_one_process(engine: SearchEngine) -> None:
    retriever: Retriever = EngineRetriever(engine)
    ((hit,),) = retriever.search(["turbines"], 1)
    assert hit.item.id == "report_1"
    assert retriever.image("report_1")[:2] == b"\xff\xd8"
    for bad in (
        lambda: retriever.image("nothing"),
        lambda: retriever.image("notes"),
        lambda: retriever.search(["x"], 0),
    ):
        with pytest.raises(RetrieverError):
            bad()
    path = engine.media_path("report_1")
    assert path is not None
    path.unlink()
    with pytest.raises(RetrieverError, match="cannot be read"):
        retriever.image("report_1")


def test_the_command_line(docs: Path, index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (docs / "broken.pdf").write_bytes(b"nonsense")
    command = [
        sys.executable,
        "-m",
        "search_engine.search_engine",
        "build",
        str(docs),
        str(index),
        "--progress",
        "json",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert messages[-2]["done"] == messages[-2]["total"]
    report = messages[-1]["report"]
    assert (report["items"], report["documents"]) == (6, 4)
    assert report["problems"][0].startswith("broken.pdf: ")
    assert main(["info", str(index), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["items"] == 6
    assert facts["documents"]["../docs/report.pdf"] == 3
    assert main(["search", str(index), "harbour", "--top-k", "1"]) == 0
    assert "notes.md" in capsys.readouterr().out
    assert main(["remove", str(index), "notes.md"]) == 0
    assert main(["compact", str(index)]) == 0
    assert main(["info", str(index)]) == 0
    shown = capsys.readouterr().out
    assert "5 items" in shown
    assert "broken.pdf" in shown
    assert "notes.md" not in shown
    assert main(["add", str(index), str(docs / "deep" / "er" / "notes.md"), "--progress", "bar"]) == 0
    assert "1 items of 1 files" in capsys.readouterr().out
    assert main(["info", str(docs)]) == 1
    assert "is not an index" in capsys.readouterr().err
    assert main(["build", str(docs), str(index), "--batch-size", "0"]) == 1
    assert "batch_size must be at least 1" in capsys.readouterr().err


def test_importing_the_engine_is_light() -> None:
    heavy = "{'faiss', 'torch', 'pymupdf', 'rapidocr', 'onnxruntime'}"
    code = f"import sys, search_engine.search_engine; sys.exit(str({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"
