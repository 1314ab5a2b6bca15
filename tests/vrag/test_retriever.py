"""The HTTP retriever against a real service on loopback, faults included."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.servers import Entry, Fault, TinyRetriever, clip, dead_url, page, serve
from vrag.episode import Frame
from vrag.errors import ConfigError, MediaError, RetrieverError, VragError
from vrag.items import Hit
from vrag.retriever import AsyncHttpRetriever, HttpRetriever
from vrag.settings import SearchSettings


def corpus() -> list[Entry]:
    return [page("report_1", "solar power"), page("report_2", "wind power"), page("slides_1", "water")]


@contextmanager
def connected(
    entries: list[Entry] | None = None, key: str | None = None, **settings: Any
) -> Iterator[tuple[HttpRetriever, TinyRetriever]]:
    service = TinyRetriever(corpus() if entries is None else entries, key)
    with serve(service.app) as url, HttpRetriever(SearchSettings(search_url=f"{url}/search", **settings)) as retriever:
        yield retriever, service


def outcomes(settings: SearchSettings, service: TinyRetriever, faults: list[Fault], image: bool) -> list[Any]:
    """What the blocking and the async client make of the same faults: a value, or an error's class and text."""

    def told(error: VragError) -> tuple[type, str]:
        return type(error), str(error)

    async def awaited() -> Any:
        async with AsyncHttpRetriever(settings) as retriever:
            try:
                return await (retriever.image("report_1") if image else retriever.search(["power"], 2))
            except VragError as error:
                return told(error)

    def blocking() -> Any:
        with HttpRetriever(settings) as retriever:
            try:
                return retriever.image("report_1") if image else retriever.search(["power"], 2)
            except VragError as error:
                return told(error)

    out = []
    for ask in (blocking, lambda: asyncio.run(awaited())):
        service.faults = list(faults)
        out.append(ask())
    return out


def test_search_and_image() -> None:
    with connected() as (retriever, service):
        first, second = retriever.search(["wind power", "water"], top_k=2)
        assert [hit.item.id for hit in first] == ["report_2", "report_1"]
        assert first[0].score == 2.0
        assert (first[0].item.kind, first[0].item.page, first[0].item.label) == ("image", 2, "report.pdf, page 2")
        assert second[0].item.id == "slides_1"
        assert retriever.image("report_2") == service.entries["report_2"].image
        assert service.requests[0] == {"queries": ["wind power", "water"], "top_k": 2}


def test_the_search_url_may_be_given_alone_and_with_or_without_its_path() -> None:
    service = TinyRetriever(corpus())
    with serve(service.app) as url:
        for given in (url, f"{url}/", f"{url}/search", url.replace("127.0.0.1", "0.0.0.0") + "/search"):
            with HttpRetriever(given) as retriever:
                assert retriever.search(["water"], 1)[0][0].item.id == "slides_1"


def test_corpus_and_documents_pass_through() -> None:
    with connected(corpus="reports", documents="slides.pdf") as (retriever, service):
        assert [hit.item.id for hit in retriever.search(["power"], 3)[0]] == ["slides_1"]
        retriever.search(["power"], 3, corpus=["a", "b"], documents=("report.pdf",))
    assert service.requests[0]["search_corpus"] == "reports"
    assert service.requests[0]["documents"] == ["slides.pdf"]
    assert service.requests[1]["search_corpus"] == ["a", "b"]
    assert service.requests[1]["documents"] == ["report.pdf"]


def test_a_single_string_is_not_taken_for_a_list_of_queries() -> None:
    with connected() as (retriever, _), pytest.raises(ConfigError, match="list of strings"):
        retriever.search("power", 3)


def test_the_key_is_sent_and_asked_for() -> None:
    with connected(key="k-123456", search_api_key="k-123456") as (retriever, _):
        assert retriever.search(["water"], 1)[0]
        assert retriever.image("slides_1")
    with connected(key="k-123456") as (retriever, _), pytest.raises(RetrieverError, match=r"401.*VRAG_SEARCH_API_KEY"):
        retriever.search(["water"], 1)


def test_a_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAG_SEARCH_API_KEY", "k-123456")
    with connected(key="k-123456") as (retriever, _):
        assert retriever.search(["water"], 1)[0]


@pytest.mark.parametrize(
    "item_id", ["a b_1", "年报_1", "../../etc/passwd_1", "x/y_1", "100%_1", "q?a=b#c_1", ".", ".."]
)
def test_ids_are_data_not_paths(item_id: str) -> None:
    entry = page("x_1", "water")
    entry.data["id"] = item_id
    with connected([entry]) as (retriever, service):
        assert retriever.image(item_id) == entry.image
    assert service.loaded == [item_id]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize("image", [True, False])
def test_a_busy_service_is_asked_again(status: int, image: bool) -> None:
    service = TinyRetriever(corpus())
    with serve(service.app) as url:
        settings = SearchSettings(search_url=url, search_retries=2)
        busy = Fault(status, {"detail": "busy"}, {"retry-after": "0"})
        blocking, awaited = outcomes(settings, service, [busy, busy], image)
        assert blocking == awaited
        assert isinstance(blocking, bytes) if image else isinstance(blocking[0][0], Hit)
        blocking, awaited = outcomes(settings, service, [busy, busy, busy], image)
    assert blocking == awaited
    assert blocking[0] is RetrieverError
    assert f"answered {status}: busy" in blocking[1]
    assert "3 attempts" in blocking[1]


def test_a_long_retry_after_is_not_waited_for() -> None:
    with connected(search_retries=3) as (retriever, service):
        service.faults = [Fault(503, {"detail": "rebuilding"}, {"retry-after": "3600"})]
        with pytest.raises(RetrieverError, match="503: rebuilding"):
            retriever.search(["water"], 1)
    assert len(service.requests) == 1


def ranked(**changes: Any) -> str:
    data = {**page("report_1", "solar").data, **changes}
    return json.dumps({"results": [{"score": [1.0], "indice": [0], "data": [data]}]})


WRONG: dict[str, tuple[Fault, str]] = {
    "not json": (Fault(200, "no json {"), "no search result.*search_url"),
    "nested": (Fault(200, "[" * 100_000), "no search result"),
    "another shape": (Fault(200, {"result": []}), "no search result"),
    "the older shape": (Fault(200, [[{"idx": 0, "image_file": "a.jpg"}]]), "no search result"),
    "too few lists": (Fault(200, {"results": []}), "0 lists of hits to 1 queries"),
    "scores missing": (Fault(200, {"results": [{"score": [], "data": [{}]}]}), "1 hits, but 0 scores"),
    "no id": (Fault(200, ranked(id=None)), "No hit .* can be used"),
    "no kind": (Fault(200, ranked(type="hologram")), "No hit .* can be used"),
    "score NaN": (Fault(200, ranked().replace("1.0", "NaN")), "No hit .* can be used"),
    "refused": (Fault(422, {"detail": "top_k must be at least 1"}), "422: top_k must be at least 1."),
    "no such path": (Fault(404, {"detail": "Not Found"}), "404: Not Found. Does search_url end with"),
    "failing": (Fault(500, "<html>"), "500: <html>. The fault is the service's"),
    "redirect": (Fault(307, "", {"location": "http://127.0.0.1:1/"}), "answered 307"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_search_result_becomes_a_sentence(name: str) -> None:
    fault, expected = WRONG[name]
    service = TinyRetriever(corpus())
    with serve(service.app) as url:
        blocking, awaited = outcomes(SearchSettings(search_url=url, search_retries=0), service, [fault], image=False)
    assert blocking == awaited
    assert blocking[0] is RetrieverError
    import re

    assert re.search(expected, blocking[1]), blocking[1]


def test_a_damaged_hit_does_not_cost_the_others() -> None:
    good = page("report_2", "wind").data
    answer = {"results": [{"score": [3.0, 2.0, 1.0], "data": [{"id": 5}, good, {**good, "id": ""}]}]}
    with connected() as (retriever, service):
        service.faults = [Fault(200, answer)]
        assert retriever.search(["x"], 3) == [[Hit(item=retriever.search(["wind"], 1)[0][0].item, score=2.0)]]


def test_more_hits_than_asked_for_are_cut() -> None:
    with connected() as (retriever, service):
        many = {"results": [{"score": [1.0] * 9, "data": [page("report_1", "solar").data] * 9}]}
        service.faults = [Fault(200, many)]
        assert len(retriever.search(["x"], 2)[0]) == 2


def test_no_hits_are_no_error() -> None:
    with connected([]) as (retriever, _):
        assert retriever.search(["x"], 2) == [[]]


def test_an_image_that_cannot_be_had_is_that_item_s_trouble() -> None:
    with connected(max_image_bytes=5000) as (retriever, service):
        with pytest.raises(MediaError, match=r"404.*'gone_1'"):
            retriever.image("gone_1")
        with pytest.raises(MediaError, match="5,000 bytes"):
            retriever.image("report_1")
        with pytest.raises(MediaError, match="without an id"):
            retriever.image("")
        service.entries["report_2"].image_type = "text/html"
        service.entries["report_2"].image = b"<html>"
        with pytest.raises(MediaError, match="text/html"):
            retriever.image("report_2")
        service.faults = [Fault(500, {"detail": "disk error"})]
        with pytest.raises(RetrieverError, match="disk error"):
            retriever.image("report_2")


@pytest.mark.parametrize("image", [True, False])
def test_a_slow_service(image: bool) -> None:
    service = TinyRetriever(corpus())
    with serve(service.app) as url:
        settings = SearchSettings(search_url=url, search_timeout=0.2)
        blocking, awaited = outcomes(settings, service, [Fault(delay=30)], image)
    assert blocking == awaited
    assert "did not answer within 0.2 s" in blocking[1]
    assert len(service.loaded if image else service.requests) == 2  # once per client: slow stays slow


def test_nobody_answers() -> None:
    settings = SearchSettings(search_url=dead_url(), search_retries=1)
    blocking, awaited = outcomes(settings, TinyRetriever([]), [], image=False)
    assert blocking == awaited
    assert blocking[0] is RetrieverError
    assert "Nothing answers" in blocking[1]
    assert "./run_demo.sh search" in blocking[1]


def test_a_service_that_comes_back_is_found_again() -> None:
    service = TinyRetriever(corpus())
    with serve(service.app) as url:
        retriever = HttpRetriever(SearchSettings(search_url=url, search_retries=0))
        assert retriever.search(["water"], 1)[0]
    with pytest.raises(RetrieverError):
        retriever.search(["water"], 1)
    retriever.close()


def test_the_environment_s_proxy_does_not_stand_before_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", dead_url())
    monkeypatch.setenv("ALL_PROXY", dead_url())
    with connected() as (retriever, _):
        assert retriever.search(["water"], 1)[0]


def test_many_threads_share_one_client() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with connected() as (retriever, _), ThreadPoolExecutor(8) as pool:
        ask: Callable[[str], str] = lambda words: retriever.search([words], 1)[0][0].item.id  # noqa: E731
        queries = ["solar", "wind", "water"] * 20
        expected = {"solar": "report_1", "wind": "report_2", "water": "slides_1"}
        assert list(pool.map(ask, queries)) == [expected[query] for query in queries]


def frames_of(settings: SearchSettings) -> list[list[Frame] | str]:
    """What both clients give for the frames of one clip; an error is given as its text."""

    async def awaited() -> list[Frame] | str:
        async with AsyncHttpRetriever(settings) as retriever:
            try:
                return await retriever.frames("harbour 1/2", 0.5, 3, 9_000)
            except VragError as error:
                return f"{type(error).__name__}: {error}"

    with HttpRetriever(settings) as retriever:
        try:
            blocking: list[Frame] | str = retriever.frames("harbour 1/2", 0.5, 3, 9_000)
        except VragError as error:
            blocking = f"{type(error).__name__}: {error}"
    return [blocking, asyncio.run(awaited())]


def test_the_frames_of_a_clip() -> None:
    service = TinyRetriever([clip("harbour 1/2", "wind", frames=5)])
    with serve(service.app) as url:
        blocking, awaited = frames_of(SearchSettings(search_url=url))
    assert blocking == awaited
    assert [frame.seconds for frame in blocking if isinstance(frame, Frame)] == [0.0, 1.0, 2.0]
    assert all(isinstance(frame, Frame) and frame.image.startswith(b"\xff\xd8") for frame in blocking)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(200, "no json"), "MediaError: harbour 1/2: "),
        (Fault(200, {"frames": [{"t": 1, "image": "not base64!"}]}), "no list of frames"),
        (Fault(200, {"frames": [{"t": "soon", "image": ""}]}), "no list of frames"),
        (Fault(200, "[" * 100_000), "no list of frames"),
        (Fault(200, {"frames": []}), "MediaError: harbour 1/2: the clip has no frames"),
        (Fault(200, '{"frames": [{"t": 1e999, "image": ""}]}'), "the clip has no frames"),
        (Fault(410, {"detail": "The clip is gone."}), "MediaError"),
        (Fault(501, {"detail": "Reading video needs PyAV."}), "needs PyAV"),
        (Fault(500, {"detail": "Out of memory."}), "RetrieverError"),
    ],
)
def test_frames_that_cannot_be_used(fault: Fault, said: str) -> None:
    service = TinyRetriever([clip("harbour 1/2", "wind", frames=5)])
    with serve(service.app) as url:
        service.faults = [fault, fault]
        blocking, awaited = frames_of(SearchSettings(search_url=url, search_retries=0))
    assert blocking == awaited
    assert isinstance(blocking, str)
    assert said in blocking
