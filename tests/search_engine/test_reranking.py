"""The second look: order, failures, notes, over the engine and over real HTTP, with a small scorer that is no model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from search_engine.models.base import Document, PairScorer, Query, Scores
from search_engine.reranking import NO_RERANKER, depth_of, second_look
from search_engine.search_engine import SearchEngine
from search_engine.service import create_app
from search_engine.tokens import document_terms, query_terms
from tests.search_engine.api_server import Server, build, running, settings_for, wait_for, write_documents
from vrag.errors import ConfigError, ModelError
from vrag.items import Hit, Item
from vrag.retriever import HttpRetriever
from vrag.settings import SearchSettings

QUESTION = "Hospital beds by district"


class Overlap:
    """Which share of a question's words a page has. A page without text cannot be judged."""

    name = "overlap"

    def __init__(self) -> None:
        self.seen: list[list[Document]] = []

    def score(self, query: Query, documents: Sequence[Document]) -> Scores:
        self.seen.append(list(documents))
        asked = set(query_terms(query.text or ""))
        values, failed = np.zeros(len(documents), np.float32), {}
        for row, document in enumerate(documents):
            if not document.text:
                failed[row] = "it has no text"
                continue
            values[row] = len(asked & set(document_terms(document.text))) / max(1, len(asked))
        return Scores(values, failed)


class Fewest(Overlap):
    """The contrary order, so that the reranker's hand shows."""

    name = "fewest"

    def score(self, query: Query, documents: Sequence[Document]) -> Scores:
        scores = super().score(query, documents)
        return Scores((1 - scores.values).astype(np.float32), scores.failed)


class Down:
    """A scorer whose machine is away."""

    name = "down"

    def __init__(self, error: Exception) -> None:
        self._error = error

    def score(self, query: Query, documents: Sequence[Document]) -> Scores:
        raise self._error


class Given:
    """Scores from a list."""

    name = "given"

    def __init__(self, values: Sequence[float], failed: dict[int, str] | None = None) -> None:
        self._scores = Scores(np.array(values, np.float32), failed or {})

    def score(self, query: Query, documents: Sequence[Document]) -> Scores:
        return self._scores


def hits(count: int) -> list[Hit]:
    return [Hit(item=Item(id=f"i{n}", kind="text", document="d"), score=1 - n / 10) for n in range(count)]


def looked_at(scorer: PairScorer, count: int) -> tuple[list[str], list[float], tuple[str, ...]]:
    found = second_look(scorer, Query("q"), hits(count), [Document(f"i{n}") for n in range(count)])
    return [hit.item.id for hit in found.hits], [hit.score for hit in found.hits], found.notes


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rerank")
    return build(write_documents(folder / "docs"), folder / "index")


@pytest.fixture(scope="module")
def served(index: Path) -> Iterator[Server]:
    def opened(_: object) -> SearchEngine:
        engine = SearchEngine(reranker=Fewest())
        engine.load_index(index)
        return engine

    with running(create_app(settings_for(index, max_rerank=50), open_engine=opened)) as server:
        yield server


def test_a_failing_item_keeps_its_place() -> None:
    order, scores, notes = looked_at(Given([0.1, 0.5, 0.0, 0.9], {2: "it is torn"}), 4)
    assert order == ["i3", "i1", "i2", "i0"]
    assert scores == pytest.approx([0.9, 0.5, 0.5, 0.1])
    assert notes == ("i2 kept its place: it is torn",)
    order, scores, notes = looked_at(Given([float("nan"), 0.2, 0.7]), 3)
    assert order == ["i0", "i2", "i1"]
    assert scores == sorted(scores, reverse=True)
    assert notes == ("i0 kept its place: its score is not finite",)


def test_equal_scores_keep_their_order_and_all_failing_changes_nothing() -> None:
    assert looked_at(Given([0.5, 0.5, 0.5]), 3)[0] == ["i0", "i1", "i2"]
    order, scores, notes = looked_at(Given([0, 0], {0: "torn", 1: "torn"}), 2)
    assert (order, scores) == (["i0", "i1"], [1.0, 0.9])
    assert len(notes) == 2
    assert second_look(Down(ValueError()), Query("q"), [], []).notes == ()


@pytest.mark.parametrize(
    ("scorer", "said"),
    [
        (Down(ModelError("the card is gone")), "the card is gone"),
        (Down(ZeroDivisionError("an inside")), "ZeroDivisionError"),
        (Given([0.5]), "scores for 3 documents"),
    ],
)
def test_a_scorer_that_fails_leaves_the_hits_as_they_were(scorer: PairScorer, said: str) -> None:
    order, scores, (note,) = looked_at(scorer, 3)
    assert (order, scores) == (["i0", "i1", "i2"], [1.0, 0.9, 0.8])
    assert note.startswith("Not reranked: ")
    assert said in note
    assert "inside" not in note


def test_how_deep_it_looks() -> None:
    assert [depth_of(rerank, 3, 20) for rerank in (False, True, 1, 5)] == [0, 20, 3, 5]
    assert depth_of(True, 30, 20) == 30
    with pytest.raises(ConfigError, match="at least 1"):
        depth_of(-1, 3, 20)


def test_the_engine_reads_deeper_than_it_answers(index: Path) -> None:
    scorer = Overlap()
    assert isinstance(scorer, PairScorer)
    engine = SearchEngine(reranker=scorer)
    engine.load_index(index)
    plain = engine.retrieve([QUESTION], 2)[0]
    assert not scorer.seen
    found = engine.retrieve([QUESTION], 2, rerank=6)[0]
    assert len(scorer.seen[0]) == 6
    assert found[0].item.id == plain[0].item.id == "health_1"
    assert found[0].score == pytest.approx(1.0)
    pages = [document for document in scorer.seen[0] if document.image]
    assert pages
    assert all(document.image and document.image.is_file() for document in pages)
    assert all("detail" in (document.text or "") for document in pages if document.id != "harbour")
    published = engine.search([QUESTION], 2, rerank=6)[0]
    assert [entry["id"] for entry in published["data"]] == [hit.item.id for hit in found]
    assert published["indice"] == [engine.position(hit.item.id) for hit in found]


def test_without_a_reranker_a_search_says_that_it_was_not_done(index: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = SearchEngine()
    engine.load_index(index)
    with caplog.at_level(logging.WARNING):
        answer = engine.search([QUESTION], 2, rerank=True)[0]
    assert answer["notes"] == [NO_RERANKER]
    assert NO_RERANKER in caplog.text
    plain = engine.search([QUESTION], 2)[0]
    assert "notes" not in plain
    assert plain["data"] == answer["data"]


def test_over_http_the_reranker_decides(served: Server) -> None:
    assert served.client.get("/health").json()["index"]["reranker"] == "fewest"
    plain = served.client.post("/search", json={"queries": [QUESTION, " "], "top_k": 3}).json()
    assert plain["results"][0]["data"][0]["id"] == "health_1"
    answer = served.client.post("/search", json={"queries": [QUESTION, " "], "top_k": 3, "rerank": 30}).json()
    first, second = answer["results"]
    assert second["data"] == []
    assert first["score"] == sorted(first["score"], reverse=True)
    assert first["score"][0] == pytest.approx(1.0)
    assert first["data"][0]["id"] != "health_1"
    assert len(first["data"]) == 3
    again = served.client.post("/search", json={"queries": [QUESTION], "top_k": 3, "rerank": True}).json()
    assert again["results"][0] == first


def test_over_http_what_makes_no_sense_is_refused(served: Server) -> None:
    for rerank in (0, -3, 51):
        response = served.client.post("/search", json={"queries": [QUESTION], "rerank": rerank})
        assert response.status_code == 422
        assert "between 1 and 50" in response.json()["detail"]
    assert served.client.post("/search", json={"queries": [QUESTION], "rerank": "yes"}).status_code == 422


def test_a_service_without_a_reranker_answers_with_a_note(index: Path) -> None:
    with running(create_app(settings_for(index))) as server:
        plain = server.client.post("/search", json={"queries": [QUESTION]}).json()
        assert "notes" not in plain
        response = server.client.post("/search", json={"queries": [QUESTION], "rerank": True})
        assert response.status_code == 200
        assert response.json()["results"] == plain["results"]
        assert response.json()["notes"] == [NO_RERANKER]
        short = server.client.post("/search", json={"queries": [QUESTION], "rerank": True, "vrag_ret": True})
        assert short.headers["x-notes"].startswith("Not reranked")
        assert isinstance(short.json(), list)


def test_a_service_whose_reranker_fails_answers_all_the_same(index: Path) -> None:
    def opened(_: object) -> SearchEngine:
        engine = SearchEngine(reranker=Down(RuntimeError("an inside of the engine")))
        engine.load_index(index)
        return engine

    with running(create_app(settings_for(index), open_engine=opened)) as server:
        response = server.client.post("/search", json={"queries": [QUESTION], "rerank": True})
        assert response.status_code == 200
        assert response.json()["results"][0]["data"][0]["id"] == "health_1"
        assert "RuntimeError" in response.json()["notes"][0]
        assert "an inside" not in response.text


def test_the_client_asks_for_it_and_passes_the_notes_on(
    served: Server, index: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = SearchSettings(search_url=f"{served.url}/search", rerank=30)
    with HttpRetriever(settings) as retriever:
        assert retriever.search([QUESTION], 3)[0][0].item.id != "health_1"
    with running(create_app(settings_for(index))) as server:
        plain = SearchSettings(search_url=f"{server.url}/search", rerank=True)
        with HttpRetriever(plain) as retriever, caplog.at_level(logging.WARNING, "vrag.retriever"):
            assert retriever.search([QUESTION], 3)[0][0].item.id == "health_1"
        assert NO_RERANKER in caplog.text


def test_the_setting_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAG_RERANK", "true")
    assert SearchSettings().rerank is True
    monkeypatch.setenv("VRAG_RERANK", "40")
    assert SearchSettings().rerank == 40
    monkeypatch.delenv("VRAG_RERANK")
    assert SearchSettings().rerank is False


def test_a_model_is_closed_with_its_engine(index: Path) -> None:
    class Held(Overlap):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    scorer = Held()
    with SearchEngine(reranker=scorer) as engine:
        engine.load_index(index)
    assert scorer.closed == 1

    def opened(_: object) -> SearchEngine:
        engine = SearchEngine(reranker=scorer)
        engine.load_index(index)
        return engine

    with running(create_app(settings_for(index), open_engine=opened)) as server:
        assert server.client.post("/search", json={"queries": [QUESTION]}).status_code == 200
        assert scorer.closed == 1
    assert scorer.closed == 2


def test_a_reranker_that_cannot_be_used_stops_the_start_with_a_sentence(index: Path, tmp_path: Path) -> None:
    with Server(create_app(settings_for(index, reranker=str(tmp_path / "nothing")))) as server:
        wait_for(lambda: server.client.get("/health").json()["status"] == "failed")
        detail = server.client.get("/health").json()["detail"]
    assert "nothing" in detail
    assert "no directory" in detail or "pip install" in detail
