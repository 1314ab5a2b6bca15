"""Vectors in Milvus (a real Milvus Lite): the same answers as exact search, through the API too, and filters that hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from search_engine.cli import main
from search_engine.index_store import IndexWriter, read_index
from search_engine.search_engine import SearchEngine
from search_engine.settings import RetrievalSettings
from tests.search_engine.api_server import running
from tests.search_engine.vector_corpus import DIMENSION, KEY, clustered, commit, opened, remove, write
from vrag.errors import ConfigError, IndexMismatch, RetrieverError

pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

from search_engine.milvus_index import Export, collection_name, document_filter, export  # noqa: E402

HOSTILE = [
    "plain.pdf",
    'a "quoted" name.pdf',
    "it's.pdf",
    "back\\slash\\",
    '"] or number >= 0 or document in ["',
    "line\nbreak\ttab.pdf",
    "{braces} %s %(x)s.pdf",
    "风力发电 😀.pdf",
    "",
    "\x00nul\x7f\u2028.pdf",
]


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("milvus") / "vectors.db")


def exported(index: Path, uri: str, **options: object) -> Export:
    return export(read_index(index), RetrievalSettings(milvus_uri=uri), **options)  # type: ignore[arg-type]


def test_the_same_as_exact_search(tmp_path: Path, uri: str) -> None:
    vectors = clustered(1000)
    vectors[5] = 0.0
    first = write(tmp_path / "first", vectors[:700], [300, 400], per_document=10)
    second = write(tmp_path / "second", vectors[700:], [300], per_document=10, first=700)
    remove(first, [2, 299, 300])
    assert exported(first, uri).copied == 696
    assert exported(first, uri).copied == 0
    exported(second, uri)
    exact, served = opened(first, second), opened(first, second, vectors="milvus", milvus_uri=uri)
    queries = clustered(70, 2)
    documents = ["d3.txt", "d17.txt", "d70.txt"]
    names = [f"d{number // 10}.txt" for number in range(1000) if number not in (2, 299, 300)]
    by_document = np.array([name in documents for name in names])
    one_corpus = np.arange(len(names)) < 697
    some = np.random.default_rng(0).random(len(names)) < 0.3
    for allowed, named in ((None, None), (by_document, documents), (one_corpus, None), (some, None)):
        for k in (1, 10, 200):
            for (a, a_scores), (b, b_scores) in zip(
                exact.search(queries, k, allowed, named), served.search(queries, k, allowed, named), strict=True
            ):
                assert a.tolist() == b.tolist()
                assert a_scores.tolist() == b_scores.tolist()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, uri: str) -> tuple[Path, list[str]]:
    """An index whose documents have names that are hard to quote, and the document of each item."""
    folder = tmp_path_factory.mktemp("hostile") / "index"
    names = [HOSTILE[number % len(HOSTILE)] for number in range(220)]
    from dataclasses import replace

    from tests.search_engine.index_child import segment

    data = segment([f"n{number}" for number in range(220)], DIMENSION)
    items = [
        stored.model_copy(update={"item": stored.item.model_copy(update={"document": name})})
        for stored, name in zip(data.items, names, strict=True)
    ]
    with IndexWriter(folder, KEY) as writer:
        writer.commit(replace(data, items=items, vectors=clustered(220, 4)))
    exported(folder, uri)
    return folder, names


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chosen=st.lists(
        st.one_of(st.sampled_from(HOSTILE), st.text(max_size=12).filter(lambda text: text not in HOSTILE)),
        min_size=1,
        max_size=4,
    )
)
def test_a_name_is_only_a_name(hostile: tuple[Path, list[str]], uri: str, chosen: list[str]) -> None:
    folder, names = hostile
    from search_engine.milvus_index import connect

    found = connect(uri).query(
        collection_name(read_index(folder)), filter=document_filter(chosen), output_fields=["number"]
    )
    assert sorted(row["number"] for row in found) == [row for row, name in enumerate(names) if name in chosen]


def test_a_state_that_was_not_exported_is_not_served(tmp_path: Path, uri: str) -> None:
    vectors = clustered(120, 6)
    index = write(tmp_path / "growing", vectors[:100], [100])
    before = exported(index, uri)
    serving = opened(index, vectors="milvus", milvus_uri=uri)
    commit(index, vectors[100:], 100)
    with pytest.raises(IndexMismatch, match="milvus-export"):
        opened(index, vectors="milvus", milvus_uri=uri)
    after = exported(index, uri)
    assert (after.copied, after.others) == (120, (before.collection,))
    assert len(opened(index, vectors="milvus", milvus_uri=uri)) == 120
    assert len(serving.search(vectors[:1], 10)[0][0]) == 10  # who serves the state before goes on
    assert exported(index, uri, drop_others=True).others == ()
    with pytest.raises(RetrieverError, match="Milvus at"):
        serving.search(vectors[:1], 10)


@pytest.mark.parametrize("half_written", [False, True])
def test_an_export_that_was_killed_is_not_served_and_is_made_again(tmp_path: Path, half_written: bool) -> None:
    index = write(tmp_path / "index", clustered(400, 3), [400])
    uri = str(tmp_path / "killed.db")
    # The process dies for good after its first batch of rows, of which there are four.
    script = (
        "import os, sys\nfrom pathlib import Path\nimport search_engine.milvus_index as m\n"
        "from pymilvus import MilvusClient\nfrom search_engine.index_store import read_index\n"
        "from search_engine.settings import RetrievalSettings\n"
        "m._MESSAGE_BYTES = 100 * (4 * 48 + 512)\ninsert = MilvusClient.insert\n"
        "def first(self, *args, **kw):\n    insert(self, *args, **kw)\n    self.flush(args[0])\n    os._exit(9)\n"
        "MilvusClient.insert = first\n"
        f"m.export(read_index(Path({str(index)!r})), RetrievalSettings(milvus_uri={uri!r}))\n"
    )
    child = subprocess.run([sys.executable, "-c", script], timeout=120, stderr=subprocess.DEVNULL, check=False)
    assert child.returncode == 9
    if half_written:
        for path in (tmp_path / "killed.db").rglob("*.idx"):
            path.write_bytes(path.read_bytes()[:4096])
    # Milvus Lite may not have had the time to write the whole of it to its file.
    with pytest.raises(IndexMismatch, match=r"(100 of the 400|half-written).*milvus-export"):
        opened(index, vectors="milvus", milvus_uri=uri)
    assert exported(index, uri).copied == 400
    found = opened(index, vectors="milvus", milvus_uri=uri).search(clustered(5, 9), 10)
    right = opened(index).search(clustered(5, 9), 10)
    assert [rows.tolist() for rows, _ in found] == [rows.tolist() for rows, _ in right]


def test_addresses_that_lead_nowhere(tmp_path: Path) -> None:
    index = write(tmp_path / "index", clustered(20), [20])
    for wrong, kind, reason in (
        (str(tmp_path / "none" / "a.db"), ConfigError, "does not exist"),
        (str(tmp_path / "vectors"), ConfigError, "ends in .db"),
        ("http://127.0.0.1:9", RetrieverError, "Milvus at http://127.0.0.1:9 failed"),
    ):
        with pytest.raises(kind, match=reason):
            exported(index, wrong)
    with pytest.raises(ConfigError, match="index_type"):
        exported(index, str(tmp_path / "a.db"), index_type="TREE")


def test_the_same_top_ten_through_the_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    words = [
        f"{a}{b}" for a in ("wind", "solar", "tide", "coal", "peat") for b in ("park", "farm", "price", "law", "map")
    ]
    passages = tmp_path / "passages.jsonl"
    with passages.open("w") as file:
        for number in range(800):
            row = {"uid": f"p{number}", "type": "text", "content": " ".join(rng.choice(words, 14))}
            file.write(json.dumps(row) + "\n")
    index = tmp_path / "index"
    SearchEngine().build_index(passages, index, workers=1, save_interval=300)
    uri = tmp_path / "api.db"
    assert main(["milvus-export", str(index), "--uri", str(uri)]) == 0
    from search_engine.service import ServiceSettings, create_app

    monkeypatch.setenv("VRAG_SEARCH_HYBRID", "false")
    queries = [" ".join(rng.choice(words, 5)) for _ in range(20)]
    answers = []
    for options in ({"vectors": "flat"}, {"vectors": "milvus", "milvus_uri": os.fspath(uri)}):
        with running(create_app(ServiceSettings(index=(index,), **options))) as server:
            asked = [
                {"queries": queries, "top_k": 10},
                {"queries": queries[:5], "top_k": 10, "documents": [f"p{number}" for number in range(0, 800, 7)]},
            ]
            answers.append([server.client.post("/search", json=body).json()["results"] for body in asked])
            assert server.client.post("/admin/reload").status_code == 200
    assert answers[0] == answers[1]
    assert [len(result["data"]) for result in answers[0][0]] == [10] * 20
